"""The weights of a decoder in a GGUF file, dequantized."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from core.errors import InputError
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights, GatedWeights, HeadWeights, LayerWeights
from engine.gguf_metadata import field_of


def read_weights(
    reader: GGUFReader,
    shape: DecoderShape,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> DecoderWeights:
    """All weights, q and k in the half-split RoPE order. Raises InputError where a tensor is missing or other than the
    metadata say.
    """
    return _Stored(reader, shape, dtype, device).decoder()


class _Stored:
    def __init__(self, reader: GGUFReader, shape: DecoderShape, dtype: torch.dtype, device: torch.device | str) -> None:
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._turns_neighbours = field_of(reader, "general.architecture") == "llama"
        self._shape = shape
        self._dtype = dtype
        self._device = device

    def decoder(self) -> DecoderWeights:
        shape = self._shape
        embedding = self._tensor("token_embd.weight", shape.vocab_size, shape.hidden)
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(f"blk.{index}") for index in range(shape.num_layers)),
            final_norm=self._tensor("output_norm.weight", shape.hidden),
            head=embedding if shape.tied else self._tensor("output.weight", shape.vocab_size, shape.hidden),
        )

    def _tensor(self, name: str, *dims: int) -> Tensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise InputError(f"GGUF file: no tensor {name}; expected a whole model")
        values = torch.from_numpy(np.array(dequantize(stored.data, stored.tensor_type), dtype=np.float32))
        if values.shape != dims:
            raise InputError(f"GGUF file: {name} is {list(values.shape)}; expected {list(dims)} by its metadata")
        return values.to(device=self._device, dtype=self._dtype)

    def _layer(self, block: str) -> LayerWeights:
        shape = self._shape
        hidden, intermediate = shape.hidden, shape.intermediate
        gate, up = (self._tensor(f"{block}.ffn_{part}.weight", intermediate, hidden) for part in ("gate", "up"))
        return LayerWeights(
            attn_norm=self._tensor(f"{block}.attn_norm.weight", hidden),
            attention=self._heads(block),
            mlp_norm=self._tensor(f"{block}.ffn_norm.weight", hidden),
            mlp=GatedWeights(torch.cat([gate, up]), self._tensor(f"{block}.ffn_down.weight", hidden, intermediate)),
        )

    def _heads(self, block: str) -> HeadWeights:
        shape, kv_rows = self._shape, self._shape.num_kv_heads * self._shape.head_dim
        q_rows = shape.num_heads * shape.head_dim
        q = self._tensor(f"{block}.attn_q.weight", q_rows, shape.hidden)
        k, v = (self._tensor(f"{block}.attn_{part}.weight", kv_rows, shape.hidden) for part in "kv")
        if self._turns_neighbours:
            q, k = to_half_split(q, shape.num_heads), to_half_split(k, shape.num_kv_heads)
        rows = {"q": q_rows, "k": kv_rows, "v": kv_rows}
        biases = [self._tensor(f"{block}.attn_{part}.bias", n) for part, n in rows.items() if shape.qkv_bias]
        return HeadWeights(
            qkv=torch.cat([q, k, v]),
            out=self._tensor(f"{block}.attn_output.weight", shape.hidden, q_rows),
            qkv_bias=torch.cat(biases) if biases else None,
            q_norm=self._tensor(f"{block}.attn_q_norm.weight", shape.head_dim) if shape.qk_norm else None,
            k_norm=self._tensor(f"{block}.attn_k_norm.weight", shape.head_dim) if shape.qk_norm else None,
        )


def to_half_split(weight: Tensor, num_heads: int) -> Tensor:
    """Undo the row order in which Llama GGUF files store q and k [num_heads head_dim, hidden].

    Stored, dimension pairs (2i, 2i + 1) rotate together; the engine pairs (i, i + head_dim / 2).
    """
    rows, hidden = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, hidden)
    return paired.transpose(1, 2).reshape(rows, hidden)
