"""Replays a trace: makes each row's Request when it arrives, and lets sessions and closed loops wait for answers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from core.content import BlockKeys, ChainKeys, HashKeys, PrivateKeys
from core.errors import InputError
from core.request import Request
from core.source import Input, InputKind, RequestSource
from core.units import NEVER_PS, PS_PER_S
from traces.key_book import KeyBook
from traces.replay_config import Arrivals as Arrivals
from traces.replay_config import Names as Names
from traces.replay_config import ReplayConfig as ReplayConfig
from traces.schema import IntArray, Trace
from traces.statistics import conversations

NO_ROW = -1


class TraceSource(RequestSource):
    """Inputs of one run. `num_output_tokens` overrides the trace's, by row: for replays of runs that stopped early.

    `names`: where the trace is a part of another, so that its requests are those of the whole.
    """

    def __init__(
        self,
        trace: Trace,
        config: ReplayConfig,
        num_output_tokens: dict[int, int] | None = None,
        names: Names | None = None,
    ) -> None:
        self._trace = trace
        self._names = names
        self._config = config
        self._num_output_tokens = num_output_tokens or {}
        self._due: list[tuple[int, int, int]] = []  # (time, 0 for arrivals and 1 for cancellations, row)
        self._alive: dict[int, Request] = {}
        self._children: dict[int, list[int]] = {}
        self._backlog: Iterator[int] = iter(())  # rows that wait for a client of a closed loop
        self._recorded: Iterator[int] = iter(())  # rows that arrive when the trace says, in order,
        self._next_recorded = NO_ROW  # after this one
        # Views, not lists: a list of whole numbers takes 36 bytes each.
        self._arrival_ps = trace.arrival_ps.data
        self._num_prompt_tokens = trace.num_prompt_tokens.data
        self._trace_output_tokens = trace.num_output_tokens.data
        self._request_ids: Sequence[int] = names.request_ids if names else range(trace.num_requests)
        self._key_book = trace.key_book or KeyBook(most_bytes=0)
        self._session_ids: Sequence[int] = names.session_ids if names else session_ids(trace)
        self._has_cancellations = trace.cancel_after_ps is not None
        self._has_features = (
            config.num_samples is not None
            or config.beam_width is not None
            or any(
                column is not None
                for column in (trace.priority, trace.num_samples, trace.tenant, trace.kind, trace.cancel_after_ps)
            )
        )
        self._is_private = trace.hash_ids is None and trace.prompt_segments is None
        hash_ids = trace.hash_ids
        self._hash_ids = None if hash_ids is None else hash_ids.values
        self._hash_offsets = None if hash_ids is None else hash_ids.offsets.data
        self._hash_block_tokens = trace.hash_block_tokens
        self._block_size = config.block_size_tokens
        self._start()
        follows_ends = config.arrivals in (Arrivals.SEQUENTIAL, Arrivals.CLOSED_LOOP)
        self.hears_of_ends = self._has_cancellations or follows_ends or bool(self._children)
        self.follows_at_once = follows_ends or any(self._think_ps(row) == 0 for row in chain(*self._children.values()))

    def _start(self) -> None:
        awaited = awaited_rows(self._trace, self._config.arrivals)
        children = np.flatnonzero(awaited >= 0)
        for row, parent in zip(children.tolist(), awaited[children].tolist(), strict=True):
            self._children.setdefault(parent, []).append(row)
        roots = np.flatnonzero(awaited < 0)
        rows = iter(roots.data)
        if self._config.arrivals is Arrivals.RECORDED:
            if len(roots):
                self._reachable(self._arrival_ps[roots[-1]], int(roots[-1]))
            self._recorded, self._next_recorded = rows, next(rows, NO_ROW)
        elif self._config.arrivals is Arrivals.ALL_AT_ONCE:
            self._due = [(0, 0, row) for row in rows]  # sorted: a heap
        else:
            self._backlog = rows
            for _ in range(min(self._num_clients, len(awaited))):
                self._release_backlog(0)

    def _reachable(self, time_ps: int, row: int) -> int:
        """The time at which the row arrives. Raises InputError where no clock gets there: a run would not end."""
        if time_ps >= NEVER_PS:
            raise InputError(
                f"trace {self._trace.name!r}: request {self._request_ids[row]} arrives on day "
                f"{time_ps / PS_PER_S / 86_400:.1f}, and a run lasts 53 days at most; expected times from the trace's "
                "start, in its format's unit, or less of it: trace.limit, trace.rate_scale, or what "
                "`kvtwin trace convert --window A:B` writes"
            )
        return time_ps

    @property
    def _num_clients(self) -> int:
        if self._config.arrivals is Arrivals.SEQUENTIAL:
            return 1
        if self._config.concurrency < 1:
            raise InputError(f"trace.concurrency={self._config.concurrency}: a closed loop needs at least 1 client")
        return self._config.concurrency

    def _release_backlog(self, now_ps: int) -> None:
        row = next(self._backlog, NO_ROW)
        if row != NO_ROW:
            heapq.heappush(self._due, (now_ps, 0, row))

    def next_ps(self) -> int | None:
        if self._next_recorded == NO_ROW:
            return self._due[0][0] if self._due else None
        arrival_ps = self._arrival_ps[self._next_recorded]
        return min(arrival_ps, self._due[0][0]) if self._due else arrival_ps

    def pop_due(self, now_ps: int) -> Iterator[Input]:
        while (row := self._next_recorded) != NO_ROW and self._arrival_ps[row] <= now_ps:
            self._next_recorded = next(self._recorded, NO_ROW)
            if self._due:
                heapq.heappush(self._due, (self._arrival_ps[row], 0, row))
            else:
                yield Input(self._arrival_ps[row], InputKind.ARRIVE, self._arrive(row, self._arrival_ps[row]))
        while self._due and self._due[0][0] <= now_ps:
            time_ps, is_cancellation, row = heapq.heappop(self._due)
            if is_cancellation:
                if row in self._alive:
                    yield Input(time_ps, InputKind.CANCEL, self._alive[row])
            else:
                yield Input(time_ps, InputKind.ARRIVE, self._arrive(row, time_ps))

    def pop_arrival(self, until_ps: int) -> Request | None:
        row, due = self._next_recorded, self._due
        if row != NO_ROW:
            arrival_ps = self._arrival_ps[row]
            if not due or (arrival_ps, 0, row) < due[0]:
                if arrival_ps > until_ps:
                    return None
                self._next_recorded = next(self._recorded, NO_ROW)
                return self._arrive(row, arrival_ps)
        if not due or due[0][0] > until_ps or due[0][1]:
            return None
        time_ps, _, row = heapq.heappop(due)
        return self._arrive(row, time_ps)

    def _arrive(self, row: int, time_ps: int) -> Request:
        request = self.request(row, time_ps)
        if self._has_cancellations:
            self._alive[row] = request
            if 0 <= request.cancel_ps < NEVER_PS:
                heapq.heappush(self._due, (request.cancel_ps, 1, row))
        return request

    def request(self, row: int, time_ps: int) -> Request:
        """The row as a request that arrives at `time_ps`. Changes nothing."""
        config, num_prompt, trace_output = self._config, self._num_prompt_tokens[row], self._trace_output_tokens[row]
        num_output = self._num_output_tokens.get(row, trace_output) if self._num_output_tokens else trace_output
        number = self._request_ids[row]
        keys = PrivateKeys(number) if self._is_private else self.block_keys(row)
        # An early stop, which a replay knows of, allows no less.
        allowed = max(config.max_new_tokens or 0, trace_output)
        request = Request(number, time_ps, num_prompt, num_output, keys, max_new_tokens=allowed)
        request.session_id = self._session_ids[row]
        num_tokens, limit = num_prompt + num_output, config.max_model_len
        if limit is not None and num_tokens > limit:  # it can never produce what the trace wants
            request.reject_reason = f"has {num_tokens} tokens, more than max_model_len={limit}"
        if self._has_features:
            self._add_features(request, row)
        return request

    def _add_features(self, request: Request, row: int) -> None:
        """What few traces tell."""
        trace = self._trace
        if trace.priority is not None:
            request.priority = int(trace.priority[row])
        if trace.num_samples is not None:
            request.num_samples = int(trace.num_samples[row])
        request.num_samples = self._config.num_samples or request.num_samples
        if self._config.beam_width is not None:
            request.num_samples, request.is_beam_search = self._config.beam_width, True
        if trace.tenant is not None:
            request.tenant = int(trace.tenant[row])
        if trace.kind is not None:
            request.category = int(trace.kind[row])
        if trace.cancel_after_ps is not None and trace.cancel_after_ps[row] >= 0:
            request.cancel_ps = request.arrival_ps + int(trace.cancel_after_ps[row])

    def block_keys(self, row: int) -> BlockKeys:
        """The keys of the row's blocks: of its prompt, and of its output as far as that is known."""
        trace, size, owner, offsets = self._trace, self._block_size, self._request_ids[row], self._hash_offsets
        salt = 0 if trace.hash_salt is None else int(trace.hash_salt[row])
        num_prompt = self._num_prompt_tokens[row]
        if self._hash_ids is not None and offsets is not None and self._hash_block_tokens is not None:
            hash_ids = self._hash_ids[offsets[row] : offsets[row + 1]].tolist()
            return HashKeys(owner, hash_ids, self._hash_block_tokens, size, num_prompt, salt)
        if trace.prompt_segments is not None:
            segments = trace.prompt_segments.row(row)
            if trace.output_segments is not None and self._config.outputs_as_recorded:
                segments = np.concatenate([segments, trace.output_segments.row(row)])
            chain = partial(self._key_book.chain, segments, size, salt)
            return ChainKeys(owner, chain, int(segments[:, 1].sum()) // size, num_prompt // size)
        return PrivateKeys(owner)

    def on_done(self, request: Request, now_ps: int) -> None:
        if not self.hears_of_ends:
            return
        row = request.request_id if self._names is None else self._names.row(request.request_id)
        self._alive.pop(row, None)
        for child in self._children.pop(row, []):
            heapq.heappush(self._due, (self._reachable(now_ps + self._think_ps(child), child), 0, child))
        if self._config.arrivals in (Arrivals.SEQUENTIAL, Arrivals.CLOSED_LOOP):
            self._release_backlog(now_ps)

    def _think_ps(self, row: int) -> int:
        think_time_ps = self._trace.think_time_ps
        return 0 if think_time_ps is None else max(0, int(think_time_ps[row]))


def awaited_rows(trace: Trace, arrivals: Arrivals) -> IntArray:
    """The parent whose end each row waits for, [num_requests]; NO_ROW: it waits for none.

    A sequential replay keeps the trace's order, in which a parent precedes its turns anyway. A recorded one keeps the
    time of a turn whose think time is not known.
    """
    if trace.parent is None or arrivals is Arrivals.SEQUENTIAL:
        return np.full(trace.num_requests, NO_ROW)
    if arrivals is Arrivals.RECORDED and trace.think_time_ps is not None:
        return np.where(trace.think_time_ps < 0, NO_ROW, trace.parent)
    return trace.parent


def session_ids(trace: Trace) -> Sequence[int]:
    """A number for each row, equal for the turns of one conversation; without sessions, every row is one."""
    has_sessions = trace.session_id is not None or trace.parent is not None
    return conversations(trace).tolist() if has_sessions else range(trace.num_requests)
