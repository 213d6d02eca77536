"""The paged KV memory: one preallocated pool of keys and one of values, on the device or in host memory.

All KV groups draw on it. A block holds `block_size` tokens of the layers of one group, whichever has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.decoder_shape import DecoderShape
from kernels.reference import copy_blocks, gather_blocks, scatter_blocks


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of a group's layers: [num_block_layers, num_blocks, block_size, num_kv_heads, head_dim] each."""

    key: Tensor
    value: Tensor

    @property
    def block_size(self) -> int:
        return self.key.shape[2]

    @property
    def num_bytes(self) -> int:
        return self.key.nbytes + self.value.nbytes

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks inside the pool (copy-on-write); all sources are read before a target is written."""
        source_ids, target_ids = _ids(sources, self.key), _ids(targets, self.key)
        copy_blocks(self.key, source_ids, target_ids)
        copy_blocks(self.value, source_ids, target_ids)

    def move_blocks(self, blocks: Sequence[int], other: "PagedKV", other_blocks: Sequence[int]) -> None:
        """Copy whole blocks into another pool of the same geometry: swap out to the host, or back in."""
        for source, target in ((self.key, other.key), (self.value, other.value)):
            contents = gather_blocks(source, _ids(blocks, source)).to(target.device)
            scatter_blocks(target, _ids(other_blocks, target), contents)


def allocate_kv(
    shape: DecoderShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    first_block_id: int = 0,
) -> PagedKV:
    """A zeroed pool for the block ids first_block_id … first_block_id + num_blocks − 1; lower ids are never used."""
    pool_shape = (
        shape.num_block_layers,
        num_blocks + first_block_id,
        block_size,
        shape.num_kv_heads,
        shape.head_dim,
    )
    return PagedKV(*(torch.zeros(pool_shape, dtype=dtype, device=device) for _ in range(2)))


def kv_block_bytes(shape: DecoderShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: keys and values of the layers of the largest KV group."""
    return 2 * shape.num_block_layers * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize


def _ids(blocks: Sequence[int], cache: Tensor) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int64, device=cache.device)
