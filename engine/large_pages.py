"""KV memory cut into large pages: groups of any number of layers on one row of blocks of a single layer.

The control plane's block is a small page: the blocks of all layers of a group, side by side, named by the first one. A
layer that stands at place i among them reads the row from block i on, so that the page's own number leads it to its
block: to the kernels that is an ordinary cache, and no byte is moved or padded.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.kv_group import KVGroup
from core.request import Sequence
from engine.block_ids import BlockIds
from engine.decoder_shape import DecoderShape
from engine.kv_cache import BlockKernels, PagedKV
from kernels import reference


class _Layers:
    """What a layer reads and writes, by its place in its group: [num_blocks - place, block_size, ...]."""

    def __init__(self, row: Tensor) -> None:
        self._row = row

    def __getitem__(self, place: int) -> Tensor:
        return self._row[place:]


@dataclass(frozen=True, slots=True)
class LargePageKV(PagedKV):
    """Tensors [1, num_blocks, block_size, ...], of which a block has one layer."""

    @property
    def key(self) -> _Layers:
        return _Layers(self.tensors[0][0])

    @property
    def value(self) -> _Layers:
        return _Layers(self.tensors[1][0])

    @property
    def latent(self) -> _Layers:
        return _Layers(self.tensors[0][0])


def allocate_large_pages(
    shape: DecoderShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    kernels: BlockKernels = reference,
) -> LargePageKV:
    """A zeroed row of so many blocks of one layer, the numbers that no page begins at included."""
    return LargePageKV(
        tuple(
            torch.zeros((1, num_blocks, block_size, *token_shape), dtype=dtype, device=device)
            for token_shape in shape.kv_token_shapes
        ),
        kernels,
    )


class _Part(NamedTuple):
    """Where a group of the decoder's layers lies: in the small pages of which table, from which block of them on."""

    table: int
    first: int


class SmallPageIds(BlockIds):
    """Block ids for a decoder whose groups have equal sizes, of tables whose groups have all layers of a window."""

    def __init__(self, decoder_groups: SequenceOf[KVGroup], groups: SequenceOf[KVGroup]) -> None:
        super().__init__()
        windows = [group.window_tokens for group in groups]
        num_placed = [0] * len(groups)
        self._parts = []
        for group in decoder_groups:
            table = windows.index(group.window_tokens)
            self._parts.append(_Part(table, num_placed[table]))
            num_placed[table] += group.num_layers

    def of(self, sequence: Sequence) -> list[np.ndarray]:
        tables = super().of(sequence)
        return [tables[table] + first for table, first in self._parts]
