"""Requests grown from their sessions' first ones: prompts lengthen and time passes along each branch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from core.errors import InputError
from traces.generators.arrivals import Arrivals, Starts
from traces.generators.blocks import Block, key, number
from traces.generators.distributions import Distribution, FloatArray, correlated, counts
from traces.generators.prefixes import Beginnings, Prefix, first_alike
from traces.generators.requests import NEVER, Requests
from traces.generators.sessions import Sessions
from traces.generators.streams import Streams
from traces.ragged import IntArray

MAX_TRIES = 8
Column = TypeVar("Column", IntArray, FloatArray)


@dataclass(frozen=True, kw_only=True)
class NominalService(Block):
    """How long a request is taken to last when later ones are dated. A replay waits for the real end instead."""

    ttft_s: float = key(number(least=0), 0.5)
    tpot_s: float = key(number(least=0), 0.02)

    def service_s(self, num_output_tokens: IntArray) -> FloatArray:
        """Seconds from each arrival to its last token."""
        return self.ttft_s + self.tpot_s * num_output_tokens.astype(np.float64)


@dataclass(frozen=True)
class Growth:
    """The parts that sessions grow from."""

    arrivals: Arrivals
    prompt_tokens: Distribution  # of a session's first request, what it begins with aside
    output_tokens: Distribution
    length_rank_correlation: float
    prefix: Prefix
    sessions: Sessions
    nominal_service: NominalService

    def requests(self, num_requests: int, streams: Streams) -> Requests:
        """So many requests, by arrival: whole sessions, but the last is cut short.

        Raises InputError where hardly any prompt keeps within the sessions' longest.
        """
        for attempt in range(MAX_TRIES):
            prompts = self._prompts(num_requests << attempt, streams)
            if len(prompts.parent) >= num_requests:
                return self._dated(prompts.take(np.arange(num_requests)), streams)
            if len(prompts.parent) == 0:
                break
        raise InputError(
            "hardly any prompt keeps within sessions.max_prompt_tokens; expected more room or shorter ones"
        )

    def _prompts(self, num_requests: int, streams: Streams) -> _Prompts:
        shapes = self.sessions.shapes(num_requests, streams)
        num, is_first = len(shapes.parent), shapes.parent == NEVER
        beginnings = self.prefix.beginnings(int(shapes.session[-1]) + 1, streams)
        new_tokens = self.sessions.added_tokens(num, streams)
        new_tokens[is_first] = counts(self.prompt_tokens, int(is_first.sum()), streams.of("prompt_tokens"))
        outputs = counts(self.output_tokens, num, streams.of("output_tokens"))
        outputs = correlated(new_tokens, outputs, self.length_rank_correlation, streams.of("length_rank_correlation"))
        grows = new_tokens
        grows[is_first] += beginnings.total_tokens
        if self.sessions.repeats_output:
            grows[~is_first] += outputs[shapes.parent[~is_first]]
        num_tokens = along_branches(shapes.parent, shapes.level, grows)
        prompts = _Prompts(*shapes, num_tokens, outputs, beginnings)
        most = self.sessions.max_prompt_tokens
        return prompts if most is None else prompts.take(np.flatnonzero(num_tokens <= most))

    def _dated(self, prompts: _Prompts, streams: Streams) -> Requests:
        """The requests in order of their arrival."""
        num, is_first = len(prompts.parent), prompts.parent == NEVER
        service_s = self.nominal_service.service_s(prompts.num_output_tokens)
        think_s = self.sessions.think_s(num, streams)
        since_parent_s = np.where(is_first, 0, service_s[prompts.parent] + think_s)
        since_first_s = along_branches(prompts.parent, prompts.level, since_parent_s)
        first_rows = np.flatnonzero(is_first)
        last_s = np.maximum.reduceat(since_first_s + service_s, first_rows)
        starts = self.arrivals.starts(last_s, streams)
        arrival_s = starts.start_s[prompts.session] + since_first_s
        origin, num_shared = self._origins(prompts, first_rows, starts.start_s)
        requests = Requests(
            arrival_s, prompts.num_tokens, prompts.num_output_tokens, origin, num_shared, group=prompts.session
        )
        if starts.after is not None:
            requests = _after_others(requests, prompts, first_rows, since_first_s + service_s, starts)
        elif not is_first.all():
            requests = replace(requests, session_id=prompts.session, parent=prompts.parent)
        if requests.parent is not None:
            first_think_s = starts.think_s if starts.think_s is not None else np.full(len(first_rows), -1.0)
            think_s[is_first] = first_think_s
            requests = replace(requests, think_time_s=np.where(requests.parent == NEVER, -1.0, think_s))
        return requests.by_arrival()

    def _origins(self, prompts: _Prompts, first_rows: IntArray, start_s: FloatArray) -> tuple[IntArray, IntArray]:
        """For every request an earlier one that begins alike, and with how many tokens: its parent, if it has one."""
        origin = prompts.parent.copy()
        num_shared = np.where(origin == NEVER, 0, prompts.num_tokens[origin])
        in_time = np.argsort(start_s, kind="stable")
        shared = first_alike(prompts.beginnings.take(in_time))
        origin[first_rows[in_time]] = np.where(shared.row == NEVER, NEVER, first_rows[in_time][shared.row])
        num_shared[first_rows[in_time]] = shared.num_tokens
        return origin, num_shared


@dataclass(frozen=True, eq=False)
class _Prompts:
    """Requests session by session, a parent before its children; sessions are numbered from 0 on, without gaps."""

    session: IntArray
    parent: IntArray
    level: IntArray
    num_tokens: IntArray
    num_output_tokens: IntArray
    beginnings: Beginnings  # one a session

    def take(self, rows: IntArray) -> _Prompts:
        """The given rows, which leave no request without its parent."""
        new_row = np.full(len(self.parent) + 1, NEVER)  # the last entry answers for -1
        new_row[rows] = np.arange(len(rows))
        kept, session = np.unique(self.session[rows], return_inverse=True)
        return _Prompts(
            session,
            new_row[self.parent[rows]],
            self.level[rows],
            self.num_tokens[rows],
            self.num_output_tokens[rows],
            self.beginnings.take(kept),
        )


def along_branches(parent: IntArray, level: IntArray, steps: Column) -> Column:
    """Sums of `steps` from the first request of a session to each one. O(requests + levels)."""
    totals = steps.copy()
    by_level = np.argsort(level, kind="stable")
    ends = np.cumsum(np.bincount(level))
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        rows = by_level[start:end]
        totals[rows] += totals[parent[rows]]
    return totals


def _after_others(
    requests: Requests, prompts: _Prompts, first_rows: IntArray, end_s: FloatArray, starts: Starts
) -> Requests:
    """The same, where a session's first request waits for the last to end of its client's session before."""
    assert starts.after is not None
    assert starts.client is not None
    # The request of each session that ends last: the last of those sorted by session, then by end.
    by_end = np.lexsort((end_s, prompts.session))
    last_row = by_end[np.append(first_rows[1:], len(end_s)) - 1]
    parent = prompts.parent.copy()
    parent[first_rows] = np.where(starts.after == NEVER, NEVER, last_row[starts.after])
    client = starts.client[prompts.session]
    return replace(requests, parent=parent, session_id=client, group=client)
