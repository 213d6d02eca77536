"""The paged KV memory: preallocated pools of keys and values, or of latents, on the device or in host memory.

All KV groups draw on one. A block holds `block_size` tokens of the layers of one group, whichever has it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from engine.decoder_shape import DecoderShape, KVPlace
from kernels import reference


class BlockKernels(Protocol):
    """The functions of `kernels.reference` that copy whole blocks; any faster set has the same signatures."""

    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    gather_blocks: Callable[[Tensor, Tensor], Tensor]
    scatter_blocks: Callable[[Tensor, Tensor, Tensor], None]


class BlockTaker(Protocol):
    """Takes whole blocks of all layers."""

    def write_blocks(self, blocks: Sequence[int], contents: Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class PagedKV:
    """pool: [num_caches, num_block_layers, num_blocks, block_size, ...], the caches being keys and values [..,
    num_kv_heads, head_dim], or for MLA one of latents [.., latent_dim + rope_dim]. One tensor, so that a plan's copies
    are one launch.
    """

    pool: Tensor
    kernels: BlockKernels = reference
    _layers: dict[KVPlace, tuple[Tensor, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Each cache: [num_block_layers, num_blocks, block_size, ...]."""
        return self.pool.unbind(0)

    @property
    def key(self) -> Tensor:
        return self.tensors[0]

    @property
    def value(self) -> Tensor:
        return self.tensors[1]

    def layer(self, place: KVPlace) -> tuple[Tensor, ...]:
        """What a layer caches: of each tensor [num_blocks, block_size, ...], by the block ids of its group."""
        layer = self._layers.get(place)
        if layer is None:
            layer = self._layers[place] = self._view(place)
        return layer

    def _view(self, place: KVPlace) -> tuple[Tensor, ...]:
        return tuple(tensor[place.index] for tensor in self.tensors)

    @property
    def block_size(self) -> int:
        return self.pool.shape[3]

    @property
    def num_bytes(self) -> int:
        return self.pool.nbytes

    @property
    def device(self) -> torch.device:
        return self.pool.device

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks inside the pool (copy-on-write); all sources are read before a target is written."""
        self.kernels.copy_blocks(self._all_layers, self._ids(sources), self._ids(targets))

    def read_blocks(self, blocks: Sequence[int], is_pinned: bool = False) -> Tensor:
        """A copy [num_caches * num_block_layers, num_read, block_size, ...] of whole blocks, of a host's pool into
        pinned memory if that is asked for.
        """
        if not is_pinned:
            return self.kernels.gather_blocks(self._all_layers, self._ids(blocks))
        layers = self._all_layers
        contents = torch.empty(len(layers), len(blocks), *layers.shape[2:], dtype=layers.dtype, pin_memory=True)
        return torch.index_select(layers, 1, self._ids(blocks), out=contents)

    def write_blocks(self, blocks: Sequence[int], contents: Tensor) -> None:
        """Puts what `read_blocks` gave, of a pool of the same geometry, into these blocks."""
        self.kernels.scatter_blocks(self._all_layers, self._ids(blocks), contents)

    def move_blocks(self, blocks: Sequence[int], other: BlockTaker, other_blocks: Sequence[int]) -> None:
        """Copy whole blocks into another pool of the same geometry, which takes contents that lie on this device."""
        other.write_blocks(other_blocks, self.read_blocks(blocks))

    @property
    def _all_layers(self) -> Tensor:
        return self.pool.flatten(0, 1)

    def _ids(self, blocks: Sequence[int]) -> Tensor:
        """On the host, where kernels can look at them without waiting for the device; pinned on their way to a GPU."""
        return torch.tensor(blocks, dtype=torch.int64, pin_memory=self.pool.is_cuda)


def allocate_kv(
    shape: DecoderShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    first_block_id: int = 0,
    kernels: BlockKernels = reference,
) -> PagedKV:
    """A zeroed pool for the block ids first_block_id … first_block_id + num_blocks − 1; lower ids are never used."""
    num_ids = num_blocks + first_block_id
    return PagedKV(new_pool(shape, shape.num_block_layers, num_ids, block_size, dtype, device), kernels)


def new_pool(
    shape: DecoderShape,
    num_block_layers: int,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """Zeros, as `PagedKV.pool`."""
    token_shape, *others = shape.kv_token_shapes  # keys and values are alike
    num_caches = 1 + len(others)
    return torch.zeros(num_caches, num_block_layers, num_blocks, block_size, *token_shape, dtype=dtype, device=device)


def kv_block_bytes(shape: DecoderShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: what the layers of the largest KV group cache."""
    return shape.num_block_layers * block_size * shape.kv_elements_per_layer_token * dtype.itemsize
