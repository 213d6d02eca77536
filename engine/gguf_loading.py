"""A Llama model in a GGUF file, read into fp32 weights and a tokenizer.

Source of the format and of its names: github.com/ggml-org/ggml, docs/gguf.md.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer
from torch import Tensor

from core.errors import InputError
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights, GatedWeights, HeadWeights, LayerWeights
from engine.tokenizer import build_bpe

# Token types of the GGUF vocabulary: control tokens are never the result of merging text.
_CONTROL_TOKEN = 3


def open_gguf(path: Path) -> GGUFReader:
    """The parsed file; raises InputError when it is no GGUF, is cut short, or holds no Llama model."""
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path}: not a readable GGUF file ({error})") from error
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise InputError(f"{path}: architecture {architecture!r}, only 'llama' is supported")
    return reader


def read_shape(reader: GGUFReader) -> DecoderShape:
    """The dimensions, from the metadata."""
    hidden = _field(reader, "llama.embedding_length")
    num_heads = _field(reader, "llama.attention.head_count")
    return DecoderShape(
        num_layers=_field(reader, "llama.block_count"),
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=_field(reader, "llama.attention.head_count_kv"),
        head_dim=hidden // num_heads,
        intermediate=_field(reader, "llama.feed_forward_length"),
        vocab_size=_field(reader, "llama.vocab_size"),
        max_positions=_field(reader, "llama.context_length"),
        rope_base=_field(reader, "llama.rope.freq_base"),
        norm_eps=_field(reader, "llama.attention.layer_norm_rms_epsilon"),
        tied=all(tensor.name != "output.weight" for tensor in reader.tensors),
    )


def read_weights(reader: GGUFReader, shape: DecoderShape) -> DecoderWeights:
    """All weights, dequantized to fp32, q and k back in the half-split RoPE order."""
    stored = {tensor.name: tensor for tensor in reader.tensors}

    def weight(name: str) -> Tensor:
        tensor = stored[f"{name}.weight"]
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    def layer(index: int) -> LayerWeights:
        block = f"blk.{index}"
        q = to_half_split(weight(f"{block}.attn_q"), shape.num_heads)
        k = to_half_split(weight(f"{block}.attn_k"), shape.num_kv_heads)
        return LayerWeights(
            attn_norm=weight(f"{block}.attn_norm"),
            attention=HeadWeights(torch.cat([q, k, weight(f"{block}.attn_v")]), weight(f"{block}.attn_output")),
            mlp_norm=weight(f"{block}.ffn_norm"),
            mlp=GatedWeights(
                torch.cat([weight(f"{block}.ffn_gate"), weight(f"{block}.ffn_up")]), weight(f"{block}.ffn_down")
            ),
        )

    embedding = weight("token_embd")
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(shape.num_layers)),
        final_norm=weight("output_norm"),
        head=embedding if shape.tied else weight("output"),
    )


def read_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The byte-level BPE tokenizer that the metadata describes."""
    tokens = _field(reader, "tokenizer.ggml.tokens")
    types = _field(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    return build_bpe(tokens, _field(reader, "tokenizer.ggml.merges"), control)


def to_half_split(weight: Tensor, num_heads: int) -> Tensor:
    """Undo the row order in which Llama GGUF files store q and k [num_heads head_dim, hidden].

    Stored, dimension pairs (2i, 2i + 1) rotate together; the engine pairs (i, i + head_dim / 2).
    """
    rows, hidden = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, hidden)
    return paired.transpose(1, 2).reshape(rows, hidden)


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise InputError(f"GGUF metadata lack {name!r}; expected a Llama model with its tokenizer")
    return field.contents()
