"""What LCM pages make of a pool: blocks of each KV group's own size, beside groups padded to one size."""

from __future__ import annotations

from typing import Any

from core.kv_group import merged
from core.large_pages import Carving
from core.model_shape import ModelShape
from kvtwin.memory_plan import SizingOptions, block_bytes_per_gpu


def lcm_figures(model: ModelShape, options: SizingOptions, pool_bytes: int) -> dict[str, Any]:
    """`padding_ratio`: of the layers that a block in each group of equal size has room for, those that there are not.

    `lcm_concurrency_seqs` is what the pool is worth in sequences of `context_tokens` that fill their last large pages
    together, `lcm_max_num_seqs` what fits at once, each group's last large page perhaps in part. Windows are freed.
    """
    groups = merged(model.kv_groups())
    carving = Carving.of(groups)
    layer_bytes = block_bytes_per_gpu(model, options) // model.num_kv_layers
    page_bytes = carving.large * layer_bytes
    num_tokens, block_size = options.context_tokens, options.block_size_tokens
    num_blocks = -(-num_tokens // block_size)
    small = [num_blocks - group.num_expired_blocks(num_tokens, block_size) for group in groups]
    sequence_layers = sum(number * layers for number, layers in zip(small, carving.layers, strict=True))
    num_pages = pool_bytes // page_bytes
    padded = model.kv_groups()
    padded_layers = len(padded) * max(group.num_layers for group in padded)
    return {
        "padding_ratio": (padded_layers - model.num_kv_layers) / padded_layers,
        "lcm_page_bytes": page_bytes,
        "lcm_small_page_bytes": [layers * layer_bytes for layers in carving.layers],
        "lcm_concurrency_seqs": num_pages * carving.large / sequence_layers,
        "lcm_max_num_seqs": _most_sequences(carving, small, num_pages),
    }


def _most_sequences(carving: Carving, small: list[int], num_pages: int) -> int:
    """The most sequences, of so many small pages of each group, whose large pages are no more than `num_pages`."""
    fits, too_many = 0, num_pages * max(carving.per_large) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if carving.num_large(number * middle for number in small) <= num_pages:
            fits = middle
        else:
            too_many = middle
    return fits
