"""Shadow tags: beside every slot of the KV memory, the name of what must lie there, checked wherever KV is used.

Simulator and engine share one control plane, so equal decisions say little about the engine's tensors. A tag goes
through the same slot mapping, the same block tables and the same copies as K and V; if one of those is wrong, a
sequence reads a tag that is not its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from core.plan import StepPlan
from engine.batch import BatchInput
from engine.step_row import StepRow
from engine.tokens import SequenceTokens

_EMPTY = -1


class ShadowError(RuntimeError):
    """A sequence would have read, or did read, KV of another text, another position, or of nothing."""


@dataclass(frozen=True, slots=True)
class ShadowMemory:
    """Tags int64 [num_blocks, block_size, 4]: hash of all tokens up to this one, position, token, KV group.

    Always on the CPU.
    """

    tags: Tensor

    @classmethod
    def empty(cls, num_blocks: int, block_size: int) -> ShadowMemory:
        return cls(torch.full((num_blocks, block_size, 4), _EMPTY, dtype=torch.int64))

    def copy_blocks(self, sources: SequenceOf[int], targets: SequenceOf[int]) -> None:
        self.tags[list(targets)] = self.tags[list(sources)]

    def move_blocks(self, blocks: SequenceOf[int], other: ShadowMemory, other_blocks: SequenceOf[int]) -> None:
        other.tags[list(other_blocks)] = self.tags[list(blocks)]


@dataclass(slots=True)
class Shadow:
    """Tags of the device's blocks and of the host's. `num_checked` counts tags by what brought them there.

    A tag read is counted as `hit` (adopted from the prefix index in this step), `copy` or `swap_in` (its block was the
    target of one in this step), else as `read`. `windows` are those of the KV groups: what has left a window is not
    read, and not checked. `layers`: of each group, which of the blocks from an id on are those of its layers, each with
    its own tags; the first, where one block holds them all.
    """

    device: ShadowMemory
    host: ShadowMemory | None = None
    windows: tuple[int | None, ...] = (None,)
    layers: tuple[range, ...] = (range(1),)
    num_checked: Counter[str] = field(default_factory=Counter)
    _hashes: dict[tuple[int, int], _PrefixHashes] = field(default_factory=dict)

    @classmethod
    def beside(
        cls,
        num_blocks: int,
        host_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...] = (None,),
        layers: tuple[range, ...] = (),
    ) -> Shadow:
        """An empty shadow of a KV memory of these dimensions."""
        device, host = ShadowMemory.empty(num_blocks, block_size), ShadowMemory.empty(host_blocks, block_size)
        return cls(device, host, windows, layers or (range(1),) * len(windows))

    def write(self, rows: SequenceOf[StepRow], batch: BatchInput) -> None:
        """Tags the step's new tokens through the slot mappings that K and V go through."""
        hashes = torch.from_numpy(np.concatenate([self._hashes_of(row)[row.start : row.end] for row in rows]))
        positions, token_ids = batch.positions.cpu(), batch.token_ids.cpu()
        for group, tables in enumerate(batch.groups):
            tags = torch.stack([hashes, positions, token_ids, torch.full_like(hashes, group)], dim=1)
            slots, block_size = tables.slot_mapping.cpu(), self.device.tags.shape[1]
            for layer in self.layers[group]:
                self.device.tags.flatten(0, 1).index_copy_(0, slots + layer * block_size, tags)

    def check(self, plan: StepPlan, rows: SequenceOf[StepRow], batch: BatchInput) -> None:
        """Compares every tag that the step's kernels read with the sequence's own; `rows` in packed order.

        Raises ShadowError at the first difference.
        """
        origins = _Origins(plan)
        decodes, prefills = rows[: batch.num_decodes], rows[batch.num_decodes :]
        for group, tables in enumerate(batch.groups):
            for layer in self.layers[group]:
                if decodes:
                    blocks = tables.decode_block_tables + layer
                    self._check(origins, group, decodes, blocks, batch.decode_num_kv_tokens)
                if prefills:
                    blocks = tables.prefill_block_tables + layer
                    self._check(origins, group, prefills, blocks, batch.prefill_num_kv_tokens)

    def _check(
        self, origins: _Origins, group: int, rows: SequenceOf[StepRow], block_tables: Tensor, num_kv_tokens: Tensor
    ) -> None:
        tags = self.device.tags.numpy()
        first, end = [self._first_read(row, group) for row in rows], num_kv_tokens.tolist()
        num_read = np.array(end) - first
        owner = np.repeat(np.arange(len(rows)), num_read)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(num_read) - num_read - first, num_read)
        block = block_tables.cpu().numpy()[owner, position // tags.shape[1]]
        found = tags[block, position % tags.shape[1]]
        read = list(zip(rows, first, end, strict=True))
        expected = np.stack(
            [
                np.concatenate([self._hashes_of(row)[start:stop] for row, start, stop in read]),
                position,
                np.concatenate([row.tokens.known[start:stop] for row, start, stop in read]),
                np.full(len(owner), group),
            ],
            axis=1,
        )
        wrong = (found != expected).any(axis=1)
        if wrong.any():
            at = int(np.argmax(wrong))
            place = origins.describe(rows[owner[at]], int(position[at]), int(block[at]))
            raise ShadowError(f"{place}: expected {_told(expected[at])}, found {_told(found[at])}")
        self.num_checked += origins.count(rows, first, num_read, block)

    def _first_read(self, row: StepRow, group: int) -> int:
        """The first position that the row's first new token attends to."""
        window_tokens = self.windows[group]
        return 0 if window_tokens is None else max(0, row.start + 1 - window_tokens)

    def _hashes_of(self, row: StepRow) -> np.ndarray:
        key = (row.sequence.request.request_id, row.sequence.index)
        if key not in self._hashes or self._hashes[key].tokens is not row.tokens:  # else a beam with another's text
            self._hashes[key] = _PrefixHashes(row.tokens)
        return self._hashes[key].of_known()


class _Origins:
    """How the blocks read in this step got their content."""

    def __init__(self, plan: StepPlan) -> None:
        self._step = plan.step
        self._hit_tokens = plan.hit_tokens
        self._copied = [*(copy.target_id for copy in plan.copies), *plan.moves]
        self._swapped_in = [copy.target_id for copy in plan.swap_ins]

    def describe(self, row: StepRow, position: int, block: int) -> str:
        request_id, sample = row.sequence.request.request_id, row.sequence.index
        origin = self._name(row, position, block)
        return (
            f"step {self._step}, request {request_id}, sample {sample}, position {position}, block {block} ({origin})"
        )

    def _name(self, row: StepRow, position: int, block: int) -> str:
        if block in self._copied:
            return "copy"
        if block in self._swapped_in:
            return "swap_in"
        return "hit" if position < self._hits_of(row) else "read"

    def count(
        self, rows: SequenceOf[StepRow], first: SequenceOf[int], num_read: np.ndarray, block: np.ndarray
    ) -> Counter[str]:
        moved = {"copy": self._copied, "swap_in": self._swapped_in}
        counts = Counter({name: int(np.isin(block, blocks).sum()) for name, blocks in moved.items() if blocks})
        hits = [max(0, self._hits_of(row) - start) for row, start in zip(rows, first, strict=True)]
        counts["hit"] = sum(hits) if self._hit_tokens else 0
        counts["read"] = int(num_read.sum()) - counts.total()
        return counts

    def _hits_of(self, row: StepRow) -> int:
        return self._hit_tokens.get(row.sequence.request.request_id, 0)


class _PrefixHashes:
    """64-bit hashes of a sequence's prefixes: sums, modulo 2^64, of one scrambled word for each (position, token)."""

    def __init__(self, tokens: SequenceTokens) -> None:
        self.tokens = tokens
        self._hashes = np.empty(0, dtype=np.int64)

    def of_known(self) -> np.ndarray:
        """int64 [num_known]; computed for new tokens only."""
        tokens, num_hashed = self.tokens, len(self._hashes)
        if num_hashed < tokens.num_known:
            new = tokens.known[num_hashed:].astype(np.uint64)
            words = _scramble(new + _scramble(np.arange(num_hashed, tokens.num_known, dtype=np.uint64)))
            last = self._hashes[-1:].astype(np.uint64)
            sums = np.cumsum(np.concatenate([last, words]), dtype=np.uint64)[len(last) :]
            self._hashes = np.concatenate([self._hashes, sums.astype(np.int64)])
        return self._hashes


def _scramble(words: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection of uint64."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _told(tag: np.ndarray) -> str:
    prefix, position, token, group = tag.tolist()
    if position == _EMPTY:
        return "nothing"
    place = f" of KV group {group}" if group else ""
    return f"token {token} at position {position} of text {prefix & (2**64 - 1):016x}{place}"
