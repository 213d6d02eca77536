"""Arithmetic intensity, FLOP per byte moved, of prefill and decode, beside the ridge of a device."""

from __future__ import annotations

from argparse import Namespace

from core.hardware import Hardware
from core.model_shape import ModelShape
from kvtwin.arguments import Arguments
from kvtwin.demonstrations.demonstration import Curve, Demonstration
from kvtwin.demonstrations.shapes import hardware_of, model_shape
from kvtwin.formatting import count_text

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_CONTEXTS = (0, 1024, 8192, 32768)


def add_options(parser: Arguments) -> None:
    parser.add_argument("--model", default="llama3_8b", metavar="NAME", help="a shape; default llama3_8b")
    parser.add_argument("--hardware", default="h100_80gb", metavar="NAME", help="a device; default h100_80gb")


def prefill_intensity(model: ModelShape, num_tokens: int) -> float:
    """FLOP per byte of computing a prompt: the weights are read once, the KV is written."""
    flops = model.linear_flops(num_tokens) + model.causal_attention_flops(num_tokens)
    return flops / (model.weight_bytes_read(num_tokens) + model.kv_bytes(num_tokens))


def decode_intensity(model: ModelShape, num_seqs: int, context_tokens: int) -> float:
    """FLOP per byte of one token for each sequence: the weights are read once, the KV of each sequence for itself."""
    flops = model.linear_flops(num_seqs) + num_seqs * decode_attention_flops(model, context_tokens)
    return flops / (model.weight_bytes_read(num_seqs) + num_seqs * model.kv_bytes(context_tokens))


def decode_attention_flops(model: ModelShape, context_tokens: int) -> int:
    """FLOP of one query over its context: 2 for each query head, key or value element and token, windows respected."""
    width = (model.head_dim + model.rope_dim) + (model.value_dim or model.head_dim)
    full, windowed = model.num_layers - model.num_window_layers, model.num_window_layers
    num_pairs = full * context_tokens + windowed * min(context_tokens, model.window_tokens)
    return 2 * model.num_heads * width * num_pairs


def kv_intensity(model: ModelShape) -> float:
    """What decode tends to however large the batch: the FLOP per byte of reading KV."""
    return decode_attention_flops(model, 1) / model.kv_bytes(1)


def measure(options: Namespace) -> Demonstration:
    model, hardware = model_shape(options.model), hardware_of(options.hardware)
    prefill = [prefill_intensity(model, size) for size in _SIZES]
    decode = {context: [decode_intensity(model, size, context) for size in _SIZES] for context in _CONTEXTS}
    ridge = hardware.ridge_flop_per_byte
    rows = [
        [count_text(size), f"{prefill[i]:.1f}", *(f"{decode[context][i]:.1f}" for context in _CONTEXTS)]
        for i, size in enumerate(_SIZES)
    ]
    curves = [Curve("prefill", _SIZES, prefill, is_measured=False)]
    curves += [Curve(f"decode, {_context_text(context)}", _SIZES, decode[context], False) for context in _CONTEXTS]
    curves.append(Curve(f"ridge of {hardware.name}", _SIZES[:: len(_SIZES) - 1], [ridge, ridge], is_measured=False))
    return Demonstration(
        f"{model.name} on {hardware.name}: FLOP per byte",
        _findings(model, hardware, prefill, decode),
        ("tokens or batch", "prefill", *(f"decode, {_context_text(context)}" for context in _CONTEXTS)),
        rows,
        curves,
        "tokens of a prompt, or sequences of a decode step",
        "FLOP per byte",
        {
            "model": model.name,
            "hardware": hardware.name,
            "ridge_flop_per_byte": ridge,
            "kv_flop_per_byte": kv_intensity(model),
            "sizes": list(_SIZES),
            "prefill_flop_per_byte": prefill,
            "decode_flop_per_byte": {str(context): values for context, values in decode.items()},
        },
        is_logarithmic=True,
    )


def _context_text(context: int) -> str:
    return f"context {count_text(context)}" if context else "weights alone"


def _findings(model: ModelShape, hardware: Hardware, prefill: list[float], decode: dict[int, list[float]]) -> list[str]:
    ridge = hardware.ridge_flop_per_byte
    bound = next((size for size, value in zip(_SIZES, prefill, strict=True) if value >= ridge), None)
    longest = _CONTEXTS[-1]
    return [
        f"{hardware.name} can do {ridge:.0f} FLOP for each byte. "
        + (f"A prompt of {count_text(bound)} tokens is above that: bound by arithmetic." if bound else ""),
        f"Decode gains a FLOP per byte and sequence while it reads weights ({decode[0][0]:.1f} for one, "
        f"{decode[0][8]:.0f} for 256). KV has no such gain: its reads bring {kv_intensity(model):.1f} FLOP per byte "
        f"in every batch, so at a context of {count_text(longest)} 256 sequences stay at {decode[longest][8]:.1f}.",
    ]
