"""A Llama decoder written a second time, for proofs: dense attention, no cache, no batching, nothing of `engine`.

Plain tensors in a dictionary, one projection each; RoPE as multiplication of complex numbers; GGUF read and
dequantized here from the format's description (github.com/ggml-org/ggml, docs/gguf.md and ggml-quants).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader
from torch import Tensor


@dataclass(frozen=True)
class ReferenceModel:
    """tensors by GGUF name without ".weight", linear ones [out, in]; q and k rows in half-split RoPE order."""

    tensors: dict[str, Tensor]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    rope_base: float
    norm_eps: float


def reference_logits(model: ReferenceModel, token_ids: list[int]) -> Tensor:
    """Logits [num_tokens, vocab_size] of one sequence, in the dtype of the tensors."""
    weight = model.tensors
    x = weight["token_embd"][torch.tensor(token_ids)]
    for index in range(model.num_layers):
        block = f"blk.{index}"
        x = x + _attention(model, block, _normalised(x, weight[f"{block}.attn_norm"], model.norm_eps))
        y = _normalised(x, weight[f"{block}.ffn_norm"], model.norm_eps)
        gate = y @ weight[f"{block}.ffn_gate"].T
        x = x + (gate / (1 + torch.exp(-gate)) * (y @ weight[f"{block}.ffn_up"].T)) @ weight[f"{block}.ffn_down"].T
    return _normalised(x, weight["output_norm"], model.norm_eps) @ weight.get("output", weight["token_embd"]).T


def mean_nll(logits: Tensor, token_ids: list[int]) -> float:
    """Mean negative log likelihood, in nats, of every token after the first."""
    log_probability = torch.log_softmax(logits[:-1].double(), dim=-1)
    return -log_probability[range(len(token_ids) - 1), token_ids[1:]].mean().item()


def read_gguf(path: Path) -> ReferenceModel:
    """The model as stored: q and k still in the file's row order, for which `in_half_split_order` is the remedy."""
    with patch("numpy.memmap", lambda file, mode: np.fromfile(file, dtype=np.uint8)):  # its views are slow to make
        reader = GGUFReader(path)

    def number(name: str) -> float:
        return reader.get_field(f"llama.{name}").contents()

    return ReferenceModel(
        tensors={t.name.removesuffix(".weight"): _dequantized(t.data, t.tensor_type) for t in reader.tensors},
        num_layers=number("block_count"),
        num_heads=number("attention.head_count"),
        num_kv_heads=number("attention.head_count_kv"),
        rope_base=number("rope.freq_base"),
        norm_eps=number("attention.layer_norm_rms_epsilon"),
    )


def in_half_split_order(model: ReferenceModel) -> ReferenceModel:
    """The file keeps rows that rotate together side by side: take the even rows of each head, then the odd ones."""
    tensors = dict(model.tensors)
    for index in range(model.num_layers):
        for name, num_heads in (("attn_q", model.num_heads), ("attn_k", model.num_kv_heads)):
            heads = tensors[f"blk.{index}.{name}"].chunk(num_heads)
            tensors[f"blk.{index}.{name}"] = torch.cat([torch.cat([head[0::2], head[1::2]]) for head in heads])
    return ReferenceModel(
        tensors, model.num_layers, model.num_heads, model.num_kv_heads, model.rope_base, model.norm_eps
    )


def dense_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """[num_queries, num_heads, head_dim] over [num_keys, num_kv_heads, head_dim], head by head, as the paper has it."""
    num_heads, group = query.shape[1], query.shape[1] // key.shape[1]
    mixed = torch.empty_like(query)
    for head in range(num_heads):
        scores = query[:, head] @ key[:, head // group].T / math.sqrt(query.shape[2])
        mixed[:, head] = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1) @ value[:, head // group]
    return mixed


def _attention(model: ReferenceModel, block: str, x: Tensor) -> Tensor:
    num_tokens = x.shape[0]

    def projected(name: str, num_heads: int) -> Tensor:
        return (x @ model.tensors[f"{block}.{name}"].T).reshape(num_tokens, num_heads, -1)

    query = _turned(projected("attn_q", model.num_heads), model.rope_base)
    key = _turned(projected("attn_k", model.num_kv_heads), model.rope_base)
    value = projected("attn_v", model.num_kv_heads)
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    return dense_attention(query, key, value, causal).reshape(num_tokens, -1) @ model.tensors[f"{block}.attn_output"].T


def _turned(heads: Tensor, rope_base: float) -> Tensor:
    """RoPE: component i and i + half as one complex number, turned by position * rope_base^(-i / half)."""
    num_tokens, _, head_dim = heads.shape
    half = head_dim // 2
    speed = rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(num_tokens, dtype=torch.float64)[:, None, None] * speed
    turned = torch.complex(heads[..., :half].double(), heads[..., half:].double()) * torch.exp(1j * angle)
    return torch.cat([turned.real, turned.imag], dim=-1).to(heads.dtype)


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight


def _dequantized(stored: np.ndarray, kind: GGMLQuantizationType) -> Tensor:
    """Rows of 32-value groups: Q4_1 is scale, minimum (fp16), 16 bytes of nibbles; Q8_0 is scale, 32 signed bytes."""
    if kind == GGMLQuantizationType.F32:
        return torch.from_numpy(np.array(stored))
    num_rows = stored.shape[0]
    if kind == GGMLQuantizationType.Q4_1:
        group = stored.reshape(num_rows, -1, 20)
        scale, minimum = np.moveaxis(group[..., :4].copy().view(np.float16).astype(np.float32), -1, 0)[..., None]
        nibbles = np.concatenate([group[..., 4:] & 15, group[..., 4:] >> 4], axis=-1)
        values = nibbles.astype(np.float32) * scale + minimum
    elif kind == GGMLQuantizationType.Q8_0:
        group = stored.reshape(num_rows, -1, 34)
        scale = group[..., :2].copy().view(np.float16).astype(np.float32)
        values = group[..., 2:].copy().view(np.int8).astype(np.float32) * scale
    else:
        raise ValueError(f"no dequantization for {kind.name}")
    return torch.from_numpy(values.reshape(num_rows, -1))
