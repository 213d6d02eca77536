"""How much memory a step needs beside weights and KV, by arithmetic."""

from __future__ import annotations

from engine.decoder_shape import DecoderShape

_FP32_BYTES = 4


def activation_bytes(shape: DecoderShape, num_tokens: int, num_logits: int, dtype_bytes: int) -> int:
    """Bytes at the worst moment of a step of `num_tokens` that wants `num_logits` rows of logits.

    That is a layer's attention or its MLP, whichever is wider, beside the residual stream and its norm; or the logits,
    once as they are computed and once in fp32. Kernels that keep scores on the chip are assumed.
    """
    rows = num_tokens * (2 * shape.hidden + max(_attention_width(shape), _mlp_width(shape))) * dtype_bytes
    logits = num_logits * shape.vocab_size * (dtype_bytes + _FP32_BYTES)
    return max(rows, logits)


def _attention_width(shape: DecoderShape) -> int:
    """Numbers a token: projections, the rotated queries in fp32 and again, and what attention gives back."""
    queries = shape.num_heads * shape.query_dim
    return 3 * queries + 2 * shape.kv_elements_per_layer_token + shape.hidden


def _mlp_width(shape: DecoderShape) -> int:
    """Numbers a token: gate and up, their product, and what comes down. Of experts, those that a token chose."""
    intermediate = shape.intermediate
    if shape.experts is not None:
        chosen = shape.experts.num_active + shape.experts.num_shared
        intermediate = max(intermediate, chosen * shape.experts.intermediate)
    return 3 * intermediate + shape.hidden
