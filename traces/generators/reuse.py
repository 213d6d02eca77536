"""Requests that repeat the beginning of an earlier one, by statistics that were learnt from a trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError
from traces.generators.arrivals import AllAtOnce
from traces.generators.blocks import Block, Place, key, list_of, number
from traces.generators.distributions import Distribution, FloatArray, correlated, counts, distribution
from traces.generators.growing import Growth
from traces.generators.requests import NEVER, Requests
from traces.generators.streams import Streams
from traces.ragged import IntArray

# What a candidate costs: the logarithm of how far off its age is, and this for a length that is off by all of it. So
# strict, because whoever continues a longer one cuts its line short; public traces' hit curves come out best with it.
DEPTH_WEIGHT = 30
GOOD_ENOUGH = 0.1  # cost at which the search ends: the age is 10 % off


@dataclass(frozen=True, kw_only=True)
class Reuse(Block):
    """What is known of the requests that repeat an earlier one further than all prompts do.

    Each such request has a length, and repeats `shared_blocks` of it, or all of it but `new_blocks`; whichever is told,
    it is for classes of length with equally many requests each, shortest first. It takes the blocks from the request
    that last held them: `age_s` before, itself longer by `left_blocks` that are not repeated. Of the earlier requests
    the one whose length and age come nearest is taken (`Candidates`); where none is long enough, less is repeated.
    """

    ratio: tuple[float, ...] = key(list_of(number(least=0, most=1)))  # of requests, over equal parts of the trace
    prompt_tokens: Distribution = key(distribution)  # the whole prompt
    output_tokens: Distribution = key(distribution)
    length_rank_correlation: float = key(number(least=-1, most=1), 0.0)
    shared_blocks: tuple[Distribution, ...] | None = key(list_of(distribution), None)
    new_blocks: tuple[Distribution, ...] | None = key(list_of(distribution), None)
    left_blocks: Distribution = key(distribution)
    age_s: Distribution = key(distribution)

    def check(self, place: Place) -> None:
        if (self.shared_blocks is None) == (self.new_blocks is None):
            raise InputError(f"{place.file}, key {place.key}: expected either shared_blocks or new_blocks")

    def requests(self, fresh: Growth, block_tokens: int, num_requests: int, streams: Streams) -> Requests:
        """So many requests by arrival; those that repeat nothing are grown from `fresh`. Raises InputError for a closed
        loop, in which a request waits for one that it does not repeat."""
        starts = fresh.arrivals.starts(np.zeros(num_requests), streams)
        if starts.after is not None:
            raise InputError("arrivals: closed_loop; expected another kind beside `reuse`")
        is_repeat = self._which(num_requests, streams)
        new, repeats = np.flatnonzero(~is_repeat), np.flatnonzero(is_repeat)
        grown = replace(fresh, arrivals=AllAtOnce()).requests(len(new), streams)
        prompts = counts(self.prompt_tokens, len(repeats), streams.of("reuse.prompt_tokens"))
        outputs = counts(self.output_tokens, len(repeats), streams.of("reuse.output_tokens"))
        outputs = correlated(prompts, outputs, self.length_rank_correlation, streams.of("reuse.correlation"))
        requests = Requests(
            arrival_s=np.sort(starts.start_s),
            num_prompt_tokens=_merged(new, grown.num_prompt_tokens, repeats, prompts),
            num_output_tokens=_merged(new, grown.num_output_tokens, repeats, outputs),
            origin=_merged(new, np.where(grown.origin == NEVER, NEVER, new[grown.origin]), repeats, NEVER),
            num_shared_tokens=_merged(new, grown.num_shared_tokens, repeats, 0),
            group=np.arange(num_requests),
        )
        wanted = Wanted(
            shared_blocks=self._shared_blocks(prompts, -(-prompts // block_tokens), streams),
            left_blocks=_whole(self.left_blocks.draws(len(repeats), streams.of("reuse.left_blocks"))),
            age_s=self.age_s.draws(len(repeats), streams.of("reuse.age_s")),
        )
        return attached(requests, repeats, wanted, block_tokens)

    def _which(self, num_requests: int, streams: Streams) -> NDArray[np.bool_]:
        """Which requests repeat an earlier one: in each part as many as its ratio says, never the first."""
        rng = streams.of("reuse.which")
        is_repeat = np.zeros(num_requests, dtype=bool)
        for part, ratio in zip(np.array_split(np.arange(num_requests), len(self.ratio)), self.ratio, strict=True):
            is_repeat[rng.permutation(part)[: round(ratio * len(part))]] = True
        is_repeat[0] = False
        return is_repeat

    def _shared_blocks(self, prompt_tokens: IntArray, num_blocks: IntArray, streams: Streams) -> IntArray:
        """Blocks that each repeating prompt takes from an earlier one, at least 1."""
        if self.shared_blocks is not None:
            shared = _by_class(self.shared_blocks, prompt_tokens, streams.of("reuse.shared_blocks"))
        else:
            shared = num_blocks - _by_class(self.new_blocks or (), prompt_tokens, streams.of("reuse.new_blocks"))
        return np.clip(shared, 1, num_blocks)


class Wanted(NamedTuple):
    """What each repeating request is to share, and with what kind of request."""

    shared_blocks: IntArray
    left_blocks: IntArray
    age_s: FloatArray


def attached(requests: Requests, repeats: IntArray, wanted: Wanted, block_tokens: int) -> Requests:
    """The same, each of the requests `repeats` with an origin and what it shares with it.

    A prompt that brings nothing new ends with the shared block, or where its origin ends. O(requests), times the depths
    that a search looks at.
    """
    prompts, origin, shared = (
        requests.num_prompt_tokens.copy(),
        requests.origin.copy(),
        requests.num_shared_tokens.copy(),
    )
    arrivals_s = requests.arrival_s.tolist()
    searches = dict(zip(repeats.tolist(), zip(*(column.tolist() for column in wanted), strict=True), strict=True))
    candidates = Candidates()
    for row, (arrival_s, num_tokens) in enumerate(zip(arrivals_s, prompts.tolist(), strict=True)):
        num_blocks = -(-num_tokens // block_tokens)
        if row in searches:
            shared_blocks, left_blocks, age_s = searches[row]
            found, depth = candidates.take(shared_blocks, left_blocks, arrival_s, age_s)
            shared_blocks = min(shared_blocks, depth)
            shared[row] = shared_blocks * block_tokens
            if shared_blocks == num_blocks:
                shared[row] = prompts[row] = prompts[found] if depth == num_blocks else shared[row]
            origin[row] = found
        candidates.add(row, num_blocks, arrival_s)
    return replace(requests, num_prompt_tokens=prompts, origin=origin, num_shared_tokens=shared)


class Candidates:
    """Requests that may be continued, by their number of blocks and in order of arrival.

    Who continues one takes its place: it is then the latest to hold what both have. Where more was left of the earlier
    one than was wanted, that stays as a candidate for requests that repeat more of it than this one did.
    """

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._arrivals_s: dict[int, list[float]] = {}
        self._held_by_others: dict[int, int] = {}  # leading blocks of a candidate that a later request holds as well

    def add(self, row: int, num_blocks: int, arrival_s: float) -> None:
        """A request that may be continued from now on; later than all before."""
        self._rows.setdefault(num_blocks, []).append(row)
        self._arrivals_s.setdefault(num_blocks, []).append(arrival_s)

    def take(self, shared_blocks: int, left_blocks: int, now_s: float, age_s: float) -> tuple[int, int]:
        """The (row, blocks) that suits best for sharing `shared_blocks`, if any has as many, else the longest.

        As close as can be to `left_blocks` more and to the age. There must be one candidate.
        """
        best_cost, best = inf, (-1, -1)
        for distance, depth in self._depths(shared_blocks, left_blocks):
            cost_of_depth = DEPTH_WEIGHT * distance / (shared_blocks + left_blocks)
            if cost_of_depth >= best_cost:
                break
            place = self._nearest(depth, now_s - age_s, shared_blocks)
            if place < 0:
                continue
            age_cost = abs(log((now_s - self._arrivals_s[depth][place] + 1) / (age_s + 1)))
            if age_cost + cost_of_depth < best_cost:
                best_cost, best = age_cost + cost_of_depth, (depth, place)
                if best_cost < GOOD_ENOUGH:
                    break
        if best[0] < 0:
            best = (max(self._rows), -1)
        depth, place = best
        row = self._rows[depth][place]
        if depth - shared_blocks > left_blocks:
            self._held_by_others[row] = shared_blocks
        else:
            self._remove(depth, place)
        return row, depth

    def _remove(self, depth: int, place: int) -> None:
        self._held_by_others.pop(self._rows[depth].pop(place), None)
        self._arrivals_s[depth].pop(place)
        if not self._rows[depth]:
            del self._rows[depth], self._arrivals_s[depth]

    def _depths(self, shared_blocks: int, left_blocks: int) -> list[tuple[int, int]]:
        """(distance from the wanted number of blocks, number of blocks) of those with enough, nearest first."""
        aim = shared_blocks + left_blocks
        return sorted((abs(depth - aim), depth) for depth in self._rows if depth >= shared_blocks)

    def _nearest(self, depth: int, arrival_s: float, shared_blocks: int) -> int:
        """The place of the candidate of one depth that arrived closest to a time; -1: none holds the blocks alone."""
        rows, arrivals_s, held = self._rows[depth], self._arrivals_s[depth], self._held_by_others
        after = bisect_left(arrivals_s, arrival_s)
        before = after - 1
        while before >= 0 and held.get(rows[before], 0) >= shared_blocks:
            before -= 1
        while after < len(rows) and held.get(rows[after], 0) >= shared_blocks:
            after += 1
        if after == len(rows):
            return before
        is_before_closer = before >= 0 and arrival_s - arrivals_s[before] < arrivals_s[after] - arrival_s
        return before if is_before_closer else after


def _by_class(tables: Sequence[Distribution], prompt_tokens: IntArray, rng: np.random.Generator) -> IntArray:
    """A draw for each prompt, from the table of its class of length."""
    drawn = np.empty(len(prompt_tokens), dtype=np.int64)
    by_length = np.argsort(prompt_tokens, kind="stable")
    for table, rows in zip(tables, np.array_split(by_length, len(tables)), strict=True):
        drawn[rows] = _whole(table.draws(len(rows), rng))
    return drawn


def _merged(rows: IntArray, values: IntArray, other_rows: IntArray, other_values: IntArray | int) -> IntArray:
    """One column from two groups of rows."""
    merged = np.empty(len(rows) + len(other_rows), dtype=np.int64)
    merged[rows], merged[other_rows] = values, other_values
    return merged


def _whole(values: FloatArray) -> IntArray:
    return np.rint(values).astype(np.int64)
