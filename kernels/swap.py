"""Whole blocks of all layers out of a pool into one dense buffer, and back: one launch for a whole plan.

A swap out is a gather and one copy of the dense buffer over the link to the host; a swap in is the reverse.
"""

import torch
from torch import Tensor

from kernels.block_copy import copy_units
from kernels.checks import require


def gather_blocks(cache: Tensor, blocks: Tensor) -> Tensor:
    """A dense copy of blocks of a pool: [num_layers, num_gathered, ...] from int64 [num_gathered] and
    [num_layers, num_blocks, ...].

    Moves 2 num_layers x num_gathered x block bytes (each read once and written once); no FLOPs. Ids may be on the host
    (then they are checked) or on the device (then nothing waits). Raises ValueError for other shapes and layouts.
    """
    contents = torch.empty(len(cache), len(blocks), *cache.shape[2:], dtype=cache.dtype, device=cache.device)
    copy_units(cache, contents, blocks, torch.arange(len(blocks), device=blocks.device))
    return contents


def scatter_blocks(cache: Tensor, blocks: Tensor, contents: Tensor) -> None:
    """Puts contents [num_layers, num_scattered, ...] into the blocks int64 [num_scattered] of a pool, in place.

    Blocks all different. Bytes, ids and refusals as in gather_blocks.
    """
    require(
        contents.dim() > 1 and contents.shape[1] == len(blocks),
        f"{len(blocks)} blocks, but contents of {list(contents.shape)}: its second dimension must be the blocks",
    )
    copy_units(contents, cache, torch.arange(len(blocks), device=blocks.device), blocks)
