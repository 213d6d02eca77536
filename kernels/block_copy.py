"""Copies inside a KV pool: whole blocks (copy-on-write, moves) and single tokens (compaction).

A copy moves words, whatever they stand for: one kernel serves every dtype. `kernels.swap` launches it between a pool
and a staging buffer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_contiguous, require_index

TILE_WORDS = 1024
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def copy_blocks(cache: Tensor, source_blocks: Tensor, target_blocks: Tensor) -> None:
    """Copies whole blocks inside a pool [num_layers, num_blocks, ...], in place; all sources are read first.

    source_blocks, target_blocks: int64 [num_copies], targets all different; best on the host, where the plan is: ids
    that are on the device must be waited for, to see whether a target is also a source. If none is, one launch moves
    2 num_layers x num_copies x block bytes; else two launches through a staging buffer move twice as much. No FLOPs.

    Raises ValueError for other shapes and layouts, and for ids on the host that lie outside the pool.
    """
    require_index("target_blocks", target_blocks, len(source_blocks))
    if torch.isin(target_blocks, source_blocks).any():
        staging = torch.empty(len(cache), len(source_blocks), *cache.shape[2:], dtype=cache.dtype, device=cache.device)
        everything = torch.arange(len(source_blocks))
        copy_units(cache, staging, source_blocks, everything)
        copy_units(staging, cache, everything, target_blocks)
    else:
        copy_units(cache, cache, source_blocks, target_blocks)


def move_tokens(cache: Tensor, source_slots: Tensor, target_slots: Tensor) -> None:
    """Copies single tokens of every layer to other slots of the pool, in place; all sources are read first.

    cache: [num_layers, num_blocks, block_size, ...]; slots: int64 [num_moves], block_id * block_size + offset, targets
    all different. This is how a sequence that dropped tokens is made dense again. A token is a block of one slot:
    launches, bytes and refusals are those of copy_blocks.
    """
    require_contiguous("cache", cache)
    copy_blocks(cache.flatten(1, 2), source_slots, target_slots)


def copy_units(source: Tensor, target: Tensor, source_ids: Tensor, target_ids: Tensor) -> None:
    """target[:, target_ids] = source[:, source_ids], in one launch. No target may be a source.

    source, target: [num_layers, num_units, ...], alike but for num_units; ids: int64 [num_copies], on the host (then
    they are checked) or on the device. One program: up to 1,024 words of one unit of one layer.
    """
    require_index("source_ids", source_ids, len(target_ids))
    require_index("target_ids", target_ids, len(source_ids))
    require(
        source.dim() > 2 and len(source) == len(target) and source.shape[2:] == target.shape[2:],
        f"pools of {list(source.shape)} and {list(target.shape)}: only the number of blocks may differ",
    )
    require(source.dtype == target.dtype, f"pools of {source.dtype} and {target.dtype}: they must be the same")
    for name, pool in (("source", source), ("target", target)):
        require_contiguous(name, pool)
    if not len(source_ids) or not source[0].numel():
        return
    word = _widest_word(source, target)
    source_words, target_words = (pool.flatten(2).view(word) for pool in (source, target))
    num_words = source_words.shape[2]
    copy_units_kernel[(len(source_ids), len(source), triton.cdiv(num_words, TILE_WORDS))](
        source_words,
        target_words,
        _beside(source, source_ids),
        _beside(target, target_ids),
        source_words.stride(0),
        target_words.stride(0),
        num_words,
        TILE_WORDS=TILE_WORDS,
    )


@triton.jit
def copy_units_kernel(
    source,
    target,
    source_ids,
    target_ids,
    source_layer_stride,
    target_layer_stride,
    num_words,
    TILE_WORDS: tl.constexpr,
):
    copy = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * TILE_WORDS + tl.arange(0, TILE_WORDS)
    is_inside = word < num_words
    from_unit = source + layer * source_layer_stride + tl.load(source_ids + copy) * num_words
    to_unit = target + layer * target_layer_stride + tl.load(target_ids + copy) * num_words
    tl.store(to_unit + word, tl.load(from_unit + word, mask=is_inside), mask=is_inside)


def _widest_word(*pools: Tensor) -> torch.dtype:
    """The widest integer into which the units of all these pools divide."""
    for word in _WORDS:
        size = word.itemsize
        if all(pool[0, :1].nbytes % size == 0 and pool.storage_offset() * pool.itemsize % size == 0 for pool in pools):
            return word
    raise AssertionError("one byte divides everything")


def _beside(pool: Tensor, ids: Tensor) -> Tensor:
    """The ids on the pool's device; those that are still on the host are checked."""
    if ids.device.type == "cpu":
        require(
            int(ids.min()) >= 0 and int(ids.max()) < pool.shape[1],
            f"ids {int(ids.min())} to {int(ids.max())}, in a pool of {pool.shape[1]}",
        )
    return ids.to(pool.device, non_blocking=True)
