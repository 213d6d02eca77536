"""The dimensions of a decoder in a GGUF file, from its metadata. No torch.

Source of the format and of its names: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFReader

from core.errors import InputError
from engine.decoder_shape import DecoderShape
from engine.rope_scaling import RopeScaling

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files say llama


def open_gguf(path: Path) -> GGUFReader:
    """The parsed file; raises InputError when it is no GGUF, is cut short, or holds a model that is not supported."""
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path}: not a readable GGUF file ({error})") from error
    architecture = field_of(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"{path}: GGUF architecture {architecture!r} is not built; expected one of {', '.join(ARCHITECTURES)}"
        )
    return reader


def read_shape(reader: GGUFReader) -> DecoderShape:
    """The dimensions. Raises InputError for what the engine does not compute."""
    architecture = field_of(reader, "general.architecture")

    def number(key: str, *default: Any) -> Any:
        return field_of(reader, f"{architecture}.{key}", *default)

    num_experts = number("expert_count", 0)
    if num_experts:
        raise InputError(
            f"GGUF model with {num_experts} experts is not built; expected a dense model, or its HF folder"
        )
    hidden, num_heads = number("embedding_length"), number("attention.head_count")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return DecoderShape(
        num_layers=number("block_count"),
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=number("attention.head_count_kv", num_heads),
        head_dim=number("attention.key_length", hidden // num_heads),
        intermediate=number("feed_forward_length"),
        vocab_size=int(tensors["token_embd.weight"].shape[-1]),
        max_positions=number("context_length"),
        rope_base=number("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(reader, architecture, tensors),
        norm_eps=number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in tensors,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )


def _rope_scaling(reader: GGUFReader, architecture: str, tensors: dict[str, Any]) -> RopeScaling | None:
    """Llama 3.1's is stored as one divisor a pair of dimensions."""
    if "rope_freqs.weight" in tensors:
        return RopeScaling("divisors", 1.0, divisors=tuple(map(float, tensors["rope_freqs.weight"].data.flatten())))
    kind = field_of(reader, f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise InputError(f"GGUF metadata {architecture}.rope.scaling.type={kind!r} is not built; expected none, linear")
    return RopeScaling(kind, field_of(reader, f"{architecture}.rope.scaling.factor"))


def field_of(reader: GGUFReader, name: str, *default: Any) -> Any:
    """A value of the metadata. Raises InputError where it is absent and has no default."""
    field = reader.get_field(name)
    if field is None and not default:
        raise InputError(f"GGUF metadata lack {name!r}; expected a whole model with its tokenizer")
    return default[0] if field is None else field.contents()
