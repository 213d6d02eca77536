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


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Tensors [num_block_layers, num_blocks, block_size, ...]: keys and values [.., num_kv_heads, head_dim] each, or
    for MLA one tensor of latents [.., latent_dim + rope_dim].
    """

    tensors: tuple[Tensor, ...]
    kernels: BlockKernels = reference
    _layers: dict[KVPlace, tuple[Tensor, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        return self.tensors[0].shape[2]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks inside the pool (copy-on-write); all sources are read before a target is written."""
        for tensor in self.tensors:
            self.kernels.copy_blocks(tensor, _ids(sources, tensor), _ids(targets, tensor))

    def move_blocks(self, blocks: Sequence[int], other: "PagedKV", other_blocks: Sequence[int]) -> None:
        """Copy whole blocks into another pool of the same geometry: swap out to the host, or back in."""
        for source, target in zip(self.tensors, other.tensors, strict=True):
            contents = self.kernels.gather_blocks(source, _ids(blocks, source))
            other.kernels.scatter_blocks(target, _ids(other_blocks, target), _carried(contents, target.device))


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
    pool_shape = (shape.num_block_layers, num_blocks + first_block_id, block_size)
    return PagedKV(
        tuple(
            torch.zeros((*pool_shape, *token_shape), dtype=dtype, device=device)
            for token_shape in shape.kv_token_shapes
        ),
        kernels,
    )


def kv_block_bytes(shape: DecoderShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: what the layers of the largest KV group cache."""
    return shape.num_block_layers * block_size * shape.kv_elements_per_layer_token * dtype.itemsize


def _carried(contents: Tensor, device: torch.device) -> Tensor:
    """On that device; to and from a GPU through pinned memory, the only kind that its copy engine reaches by itself."""
    if contents.is_cuda and device.type == "cpu":
        return torch.empty(contents.shape, dtype=contents.dtype, pin_memory=True).copy_(contents)
    if device.type == "cuda" and not contents.is_cuda:
        return contents.pin_memory().to(device, non_blocking=True)
    return contents.to(device)


def _ids(blocks: Sequence[int], pool: Tensor) -> Tensor:
    """On the host, where kernels can look at them without waiting for the device; pinned on their way to a GPU."""
    return torch.tensor(blocks, dtype=torch.int64, pin_memory=pool.is_cuda)
