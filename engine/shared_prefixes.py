"""Which decodes of a step read the same first blocks, and where it pays to read these once for all of them.

Samples and beams begin with the blocks of their prompt, requests that hit the prefix cache with those of whoever
computed them. Only neighbours in packed order, which is running order, are looked at: samples of a request are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.decoder_shape import DecoderShape


class SharingRule(NamedTuple):
    """When a shared prefix is read apart (cascade attention): for each layer, see `sharing_of`."""

    min_shared_tokens: int
    min_saved_tokens: int


Sharing = tuple[SharingRule | None, ...]
"""A rule for each KV group, None where nothing is to be shared; the empty tuple: nowhere."""

MIN_SHARED_TOKENS = 256
MIN_SAVED_BYTES = 32 * 2**20


def sharing_of(shape: DecoderShape, element_bytes: int) -> Sharing:
    """Where sharing pays, for the groups whose layers have cascade attention: those without a window, since a window
    seldom reaches back into a shared prefix, and none that caches latents.

    Decodes that share L tokens, n of them, read 2 H_kv D b n L bytes a layer, or 2 H_kv D b L once. The price is one
    more kernel a layer and a merger of fp32 partial results: 8 H (D + 1) bytes a decode, as much as 4 H / (H_kv b)
    tokens, 8 with groups of 4 in bf16. What is saved must be 32 MiB: the 3.35 TB/s of an H100's data sheet read them in
    10 µs, some launches' time, and the CPU's compiled kernels break even there (25 MB saved: 1.0 times as fast, 29 MB
    at heads of 128: 1.5, 130 MB: 2.4; torch's alone gain from 3 MB on). And L must be 256 tokens, the shortest split of
    attention (`kernels/splits.py`).
    """
    if shape.latent is not None:
        return ()
    token_bytes = shape.kv_elements_per_layer_token * element_bytes
    rule = SharingRule(MIN_SHARED_TOKENS, -(-MIN_SAVED_BYTES // token_bytes))
    return tuple(rule if group.window_tokens is None else None for group in shape.kv_groups())


class SharedRun(NamedTuple):
    """The decodes `start` … `end` - 1 begin with the same `num_blocks` blocks."""

    start: int
    end: int
    num_blocks: int


class SharedPrefixes:
    """The runs of one KV group from step to step. Tables are compared where company or tables changed, and only there;
    a step in which neither did costs O(num_decodes) numpy, whatever the length of the tables.
    """

    def __init__(self, rule: SharingRule, block_size: int) -> None:
        self._rule = rule
        self._block_size = block_size
        self._rows = np.empty(0, dtype=np.int64)
        self._place = np.empty(0, dtype=np.int64)  # by row of the tables, where it is in `_rows`; -1: nowhere
        self._common = np.empty(0, dtype=np.int64)
        self._most_common = 0
        self._heights = np.empty(0, dtype=np.int64)
        self._runs: list[SharedRun] = []

    def runs(
        self,
        rows: np.ndarray,
        tables: np.ndarray,
        num_whole_blocks: np.ndarray,
        changed_rows: np.ndarray,
        first_columns: np.ndarray,
    ) -> list[SharedRun]:
        """The runs of decodes whose block tables are those `rows` of `tables`, in packed order.

        num_whole_blocks: [num_decodes], blocks that its new token is not in; changed_rows: rows of the tables written
        to since the last call, each from its first column on
        """
        if rows is not self._rows and not np.array_equal(rows, self._rows):
            self._rows = rows
            self._place = np.full(len(tables), -1)
            self._place[rows] = np.arange(len(rows))
            whole_tables = tables[:, : int(num_whole_blocks.max(initial=0))]
            self._note(common_blocks(whole_tables, rows[:-1], rows[1:]))
        elif changed_rows.size and int(first_columns.min()) <= self._most_common:
            whole_tables = tables[:, : int(num_whole_blocks.max(initial=0))]
            self._compare_again(whole_tables, changed_rows, first_columns)
        if not self._most_common:
            return []
        heights = np.minimum(self._common, np.minimum(num_whole_blocks[:-1], num_whole_blocks[1:]))
        if not np.array_equal(heights, self._heights):
            self._heights = heights
            self._runs = worthwhile_runs(heights, self._block_size, self._rule)
        return self._runs

    def _compare_again(self, tables: np.ndarray, changed_rows: np.ndarray, first_columns: np.ndarray) -> None:
        """Pairs of which one has changed within what they had in common, or just behind it."""
        known = changed_rows < len(self._place)
        place = self._place[changed_rows[known]]
        for pair in (place - 1, place):
            is_pair = (pair >= 0) & (pair < len(self._common)) & (place >= 0)
            pair = pair[is_pair]
            pair = pair[first_columns[known][is_pair] <= self._common[pair]]
            self._common[pair] = common_blocks(tables, self._rows[pair], self._rows[pair + 1])
        self._note(self._common)

    def _note(self, common: np.ndarray) -> None:
        self._common, self._most_common = common, int(common.max(initial=0))


def common_blocks(tables: np.ndarray, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many first blocks each of `rows` of the tables has in common with its counterpart in `others`.

    Pairs that differ in their first block, as most do, cost nothing more.
    """
    common = np.zeros(len(rows), dtype=np.int64)
    if tables.shape[1]:
        alike = np.flatnonzero(tables[rows, 0] == tables[others, 0])
        if alike.size:
            differs = tables[rows[alike]] != tables[others[alike]]
            common[alike] = np.where(differs.any(axis=1), differs.argmax(axis=1), tables.shape[1])
    return common


def worthwhile_runs(common: np.ndarray, block_size: int, rule: SharingRule) -> list[SharedRun]:
    """Runs that the rule allows, in order and apart from each other: the one that saves most comes first, then the
    best of what is left on its sides.
    """
    heights = np.where(common * block_size >= rule.min_shared_tokens, common, 0)
    found, pending = [], [(0, len(heights))] if heights.any() else []
    while pending:
        first, end = pending.pop()
        run = _largest(heights[first:end].tolist(), first)
        if (run.end - run.start - 1) * run.num_blocks * block_size >= max(1, rule.min_saved_tokens):
            found.append(run)
            pending += [(first, max(first, run.start - 1)), (run.end, end)]
    return sorted(found)


def _largest(heights: list[int], first: int) -> SharedRun:
    """The run that saves most blocks: the largest rectangle under a histogram, found with a stack of rising heights."""
    best, most = SharedRun(first, first + 1, 0), 0
    rising: list[tuple[int, int]] = []  # (where a height begins, the height)
    for place, height in enumerate([*heights, 0]):
        begin = place
        while rising and rising[-1][1] > height:
            begin, lower = rising.pop()
            if (place - begin) * lower > most:
                most = (place - begin) * lower
                best = SharedRun(first + begin, first + place + 1, lower)
        if not rising or rising[-1][1] < height:
            rising.append((begin, height))
    return best
