"""What a hit is worth: the FLOP of prefill that it saves, which grow with the block's depth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.model_shape import ModelShape
from traces.block_references import BlockReferences


def with_flops(references: BlockReferences, model: ModelShape) -> BlockReferences:
    """The same references, each with the FLOP of computing its tokens after all before them (`ModelShape`'s count)."""
    starts = np.repeat(references.offsets[:-1], references.num_blocks)
    before = (np.arange(references.num_references) - starts) * references.block_tokens
    lengths, inverse = np.unique(np.column_stack((before, references.num_tokens)), axis=0, return_inverse=True)
    flops = [
        model.linear_flops(num)
        + model.causal_attention_flops(num_before + num)
        - model.causal_attention_flops(num_before)
        for num_before, num in lengths.tolist()
    ]
    return replace(references, flops=np.array(flops, dtype=np.float64)[inverse.reshape(-1)])
