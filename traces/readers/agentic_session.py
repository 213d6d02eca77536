"""The requests of one agentic session: who waits for whom, sub-agents included.

* A request waits for the one before it in its list and comes `think_time` after that one's end. Files without think
  times have it from the recorded times: from the end of the one before (`t` + `api_time`) to `t`, at least 0.
* A sub-agent (`type` "subagent", with `requests` of its own) is spawned by the answer of the request before it: its
  first request waits for that one's end. The recording's times agree: a sub-agent is a tool call, and those end a
  response.
* The request after sub-agents waits for the sub-agent that ended last in the recording, as agents wait for their tools.
  A row has one parent, so the others are taken to have ended by then. Sub-agents that were still running when the
  request was sent, or that were launched without waiting (`status` "async_launched"), hold nobody up.
* A request that is left out (no output, say) hands its waits on: whoever waited for it waits for the one before it, for
  the think times of both and the time that the failed call took.
* Times inside a sub-agent are counted from its spawn, or from the start of the session: files of both kinds exist
  (kv-cache-tester's own; SemiAnalysis'). They count from the spawn if a sub-agent's first request would come before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from traces.readers.bad_rows import BadRow, BadRows
from traces.readers.block_ids import NewIds, whole_block_ids
from traces.readers.chains import Chain, Link, later_ps
from traces.readers.documents import object_at
from traces.readers.fields import PS_PER_S, num_tokens, time_ps
from traces.readers.source import Source
from traces.schema import IntArray

MAX_NESTING = 16  # of sub-agents in sub-agents


class Request(NamedTuple):
    arrival_ps: int
    end_ps: int  # in the recording
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: IntArray
    session: int
    link: Link


class _Item(NamedTuple):
    """A request or sub-agent at its place in the document."""

    place: str
    time_ps: int
    values: dict[str, Any]

    @property
    def is_agent(self) -> bool:
        return "requests" in self.values or self.values.get("type") == "subagent"

    def value(self, key: str, expected: str) -> object:
        if key not in self.values:
            raise BadRow("missing_value", f"{self.place}.{key}", None, expected)
        return self.values[key]

    def optional_ps(self, key: str) -> int | None:
        value = self.values.get(key)
        return None if value is None else time_ps(f"{self.place}.{key}", value, PS_PER_S)


class _Document(NamedTuple):
    source: Source
    session: int
    scope: object  # within what its hash ids mean something
    counts_from_spawn: bool


class SessionReader:
    """Appends the requests of sessions, one document after the other, to `requests`."""

    def __init__(self, bad_rows: BadRows, block_tokens: int) -> None:
        self.requests: list[Request] = []
        self._bad_rows = bad_rows
        self.block_tokens = block_tokens
        self._new_ids = NewIds()

    def read(self, source: Source, session: int, scope: object, requests: Sequence[Any]) -> None:
        """Read the `requests` of a document whose hash ids mean something within `scope`."""
        document = _Document(source, session, scope, _counts_from_spawn(requests))
        self._agent(document, self._items(document, "requests", requests, 0), Chain())

    def _agent(self, document: _Document, items: Sequence[_Item], chain: Chain) -> None:
        """The requests of one agent, which `chain` links; it ends as the last of them, sub-agents included."""
        spawned: list[int] = []  # the last requests of sub-agents that the next request may wait for
        think_time_counts = False  # of the first request, from nothing that it waits for
        for item in items:
            if item.is_agent:
                branch = Chain(chain.last_row)
                self._agent(document, self._nested(document, item), branch)
                if branch.last_row != chain.last_row and item.values.get("status") != "async_launched":
                    spawned.append(branch.last_row)
                continue
            ended = [row for row in spawned if self.requests[row].arrival_ps <= item.time_ps]
            if ended:
                chain.keep(max(ended, key=lambda row: self.requests[row].end_ps))
            self._request(document, item, chain, think_time_counts and not ended)
            spawned, think_time_counts = [], True
        if spawned:  # nothing of this agent follows them
            own = [chain.last_row] if chain.last_row >= 0 else []
            chain.keep(max((*own, *spawned), key=lambda row: self.requests[row].end_ps))

    def _request(self, document: _Document, item: _Item, chain: Chain, think_time_counts: bool) -> None:
        waited_ps = 0
        try:
            api_ps = item.optional_ps("api_time") or 0
            told_ps = item.optional_ps("think_time") if think_time_counts else None
            think_ps = self._recorded_think_ps(item, chain) if told_ps is None else told_ps
            waited_ps = later_ps(think_ps, api_ps)
            self.requests.append(self._parsed(document, item, api_ps, chain.link(think_ps)))
        except BadRow as bad:
            self._bad_rows.handle(document.source, None, bad)
            chain.leave_out(waited_ps)
        else:
            chain.keep(len(self.requests) - 1)

    def _recorded_think_ps(self, item: _Item, chain: Chain) -> int:
        """By the recorded times, which may overlap: from the end of the request before, be it one that was left out."""
        if chain.last_row < 0:
            return 0
        return max(0, item.time_ps - self.requests[chain.last_row].end_ps - chain.left_out_ps)

    def _parsed(self, document: _Document, item: _Item, api_ps: int, link: Link) -> Request:
        num_prompt_tokens = num_tokens(f"{item.place}.in", item.value("in", "the prompt tokens"), "prompt")
        num_output_tokens = num_tokens(f"{item.place}.out", item.value("out", "the output tokens"), "output")
        key = f"{item.place}.hash_ids"
        named: list[int] = []
        if item.values.get("hash_ids"):  # without any, nothing is known of the prompt
            ids = whole_block_ids(key, item.values["hash_ids"], num_prompt_tokens, self.block_tokens)
            named = [self._new_ids.of_content((document.scope, block_id)) for block_id in ids]
        return Request(
            item.time_ps,
            later_ps(item.time_ps, api_ps),
            num_prompt_tokens,
            num_output_tokens,
            self._new_ids.fill(key, named, num_prompt_tokens, self.block_tokens),
            document.session,
            link,
        )

    def _nested(self, document: _Document, agent: _Item) -> list[_Item]:
        """The requests of a sub-agent; those of one that cannot be read are left out together."""
        place = f"{agent.place}.requests"
        requests = agent.values.get("requests")
        if isinstance(requests, list) and place.count("requests") <= MAX_NESTING:
            return self._items(document, place, requests, agent.time_ps if document.counts_from_spawn else 0)
        expected = f"a list of requests, nested at most {MAX_NESTING} deep"
        self._bad_rows.handle(document.source, None, BadRow("malformed_row", place, requests, expected))
        return []

    def _items(self, document: _Document, place: str, requests: Sequence[Any], origin_ps: int) -> list[_Item]:
        """Requests and sub-agents of one list by time; those at the same time keep their order."""
        items = []
        for index, request in enumerate(requests):
            try:
                items.append(_item(f"{place}[{index}]", request, origin_ps))
            except BadRow as bad:
                self._bad_rows.handle(document.source, None, bad)
        return sorted(items, key=lambda item: item.time_ps)


def _item(place: str, request: object, origin_ps: int) -> _Item:
    values = object_at(place, request)
    if "t" not in values:
        raise BadRow("missing_value", f"{place}.t", None, "seconds from the start of the session")
    return _Item(place, later_ps(origin_ps, time_ps(f"{place}.t", values["t"], PS_PER_S)), values)


def _counts_from_spawn(requests: Sequence[Any]) -> bool:
    """Whether any sub-agent's first request would come before its spawn, were its time counted from the start."""
    return any(nested < spawned for spawned, nested in _first_times(requests))


def _first_times(requests: Sequence[Any]) -> Iterator[tuple[int | Decimal, int | Decimal]]:
    """Times of sub-agents and of the first request in each."""
    for agent in requests:
        nested = agent.get("requests") if isinstance(agent, dict) else None
        if isinstance(nested, list) and nested and isinstance(nested[0], dict):
            spawned, first = agent.get("t"), nested[0].get("t")
            if isinstance(spawned, int | Decimal) and isinstance(first, int | Decimal):
                yield spawned, first
