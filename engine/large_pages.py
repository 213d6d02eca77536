"""KV memory cut into large pages: groups of any number of layers on one row of blocks of a single layer.

The control plane's block is a small page: the blocks of all layers of a group, side by side, named by the first one. A
layer that stands at place i among them reads the row from block i on, so that the page's own number leads it to its
block: to the kernels that is an ordinary cache, and no byte is moved or padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from core.kv_group import KVGroup
from engine.decoder_shape import DecoderShape, KVPlace
from engine.kv_cache import BlockKernels, PagedKV, new_pool
from kernels import reference


class SmallPages(NamedTuple):
    """Where the layers of a decoder, whose groups have equal sizes, lie in pages that have all layers of one window.

    By the decoder's group: which of a sequence's `tables` leads to its pages, and the places of its `layers` in them.
    """

    tables: tuple[int, ...]
    layers: tuple[range, ...]

    @classmethod
    def of(cls, decoder_groups: Sequence[KVGroup], groups: Sequence[KVGroup]) -> SmallPages:
        windows = [group.window_tokens for group in groups]
        tables = tuple(windows.index(group.window_tokens) for group in decoder_groups)
        num_placed = [0] * len(groups)
        layers = []
        for group, table in zip(decoder_groups, tables, strict=True):
            layers.append(range(num_placed[table], num_placed[table] + group.num_layers))
            num_placed[table] += group.num_layers
        return cls(tables, tuple(layers))


@dataclass(frozen=True, slots=True)
class LargePageKV(PagedKV):
    """pool: [num_caches, 1, num_blocks, block_size, ...], of which a block has one layer."""

    pages: SmallPages = field(kw_only=True)

    def _view(self, place: KVPlace) -> tuple[Tensor, ...]:
        first = self.pages.layers[place.group][place.index]
        return tuple(tensor[0, first:] for tensor in self.tensors)


def allocate_large_pages(
    shape: DecoderShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    kernels: BlockKernels = reference,
    *,
    pages: SmallPages,
) -> LargePageKV:
    """A zeroed row of so many blocks of one layer."""
    return LargePageKV(new_pool(shape, 1, num_blocks, block_size, dtype, device), kernels, pages=pages)
