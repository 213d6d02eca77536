"""Attention over keys that are cached without their position, and rotated when they are read.

Cached rotated, a key is of use at the position it was computed at alone. Cached like this it can be read at any: what
Prompt Cache (arXiv 2311.04934) and its kin want of a text that stands at another place in every prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention import DecoderKernels, HeadAttention, StepContext, paged_attention
from engine.rope import Angles
from kernels.reference import rotate


class UnrotatedAttention(HeadAttention):
    """One layer's attention: projects, caches, and rotates each key that it reads to its place in the reader's text."""

    def _write(self, qkv: Tensor, step: StepContext, caches: Sequence[Tensor]) -> Tensor:
        query, key, value = self._split(qkv)
        if self._place.writes:
            self._kernels.write_kv(key, value, *caches, step.batch.groups[self._place.group].slot_mapping)
        return rotate(query, *step.angles_of(self._place))

    def _attend(self, query: Tensor, caches: Sequence[Tensor], step: StepContext) -> Tensor:
        turned = _TurnedAtRead(self._kernels, step.all_angles_of(self._place))
        return paged_attention(turned.decode, turned.prefill, query, caches, step, self._place, self._shape.scale)


class _TurnedAtRead:
    """The attention kernels over a copy of the blocks that the tables name, its keys rotated.

    The copy has a block for every entry of the tables: O(context) bytes moved and taken a layer, more than the
    attention itself reads. A kernel that rotates in its registers would not need it.
    """

    def __init__(self, kernels: DecoderKernels, angles: Angles) -> None:
        self._kernels = kernels
        self._angles = angles

    def decode(self, query: Tensor, key: Tensor, value: Tensor, block_tables: Tensor, *rest: object) -> Tensor:
        return self._kernels.decode_attention(query, *self._copied(key, value, block_tables), *rest)

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, block_tables: Tensor, *rest: object) -> Tensor:
        return self._kernels.prefill_attention(query, *self._copied(key, value, block_tables), *rest)

    def _copied(self, key: Tensor, value: Tensor, block_tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Caches of these tables' blocks alone, one after the other, and the tables that lead there."""
        blocks, block_size = block_tables.flatten(), key.shape[1]
        num_columns = block_tables.shape[1] * block_size
        positions = torch.arange(num_columns, device=key.device).clamp(max=len(self._angles.cos) - 1)
        angles = self._angles.at(positions.repeat(len(block_tables)))
        copied = key[blocks]
        turned = rotate(copied.flatten(0, 1), *angles).view_as(copied)
        own_tables = torch.arange(len(blocks), device=key.device).view_as(block_tables)
        return turned, value[blocks], own_tables
