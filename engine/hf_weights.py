"""The safetensors of a Hugging Face model folder, one file or many, put together into a decoder's weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from core.errors import InputError
from engine.decoder_shape import DecoderShape, ExpertShape, LatentShape
from engine.decoder_weights import (
    DecoderWeights,
    ExpertWeights,
    GatedWeights,
    HeadWeights,
    LatentWeights,
    LayerWeights,
)

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How a family calls what others call otherwise; `experts` is followed by the expert's number."""

    mlp_norm: str = "post_attention_layernorm"
    attn_post_norm: str = ""
    mlp_post_norm: str = ""
    norm_offset: float = 0.0  # what is stored is the norm's weight less this
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    expert_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


NAMES = {
    "MixtralForCausalLM": TensorNames(
        router="block_sparse_moe.gate", experts="block_sparse_moe.experts", expert_parts=("w1", "w3", "w2")
    ),
    "Gemma3ForCausalLM": TensorNames(
        mlp_norm="pre_feedforward_layernorm",
        attn_post_norm="post_attention_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
        norm_offset=1.0,
    ),
}


def load_hf_weights(
    folder: Path, architecture: str, shape: DecoderShape, dtype: torch.dtype, device: torch.device | str
) -> DecoderWeights:
    """Everything the decoder needs; what lies in the files besides is left alone.

    Raises InputError where files or tensors are missing, damaged, or of other dimensions than config.json says.
    """
    return _Assembly(shape, NAMES.get(architecture, TensorNames()), _Shards(folder), dtype, device).decoder()


class _Shards:
    """The stored tensors of all files of a folder, opened when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[str, Any] = {}
        self._file_of = self._read_index()

    def _read_index(self) -> dict[str, str] | None:
        path = self._folder / INDEX_FILE
        if path.exists():
            try:
                return dict(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}: no readable weight_map ({error!r})") from None
        if not (self._folder / SINGLE_FILE).exists():
            raise InputError(f"{self._folder}: no weights there; expected {SINGLE_FILE} or {INDEX_FILE}")
        return None

    def tensor(self, name: str, dims: tuple[int, ...]) -> Tensor:
        """As it is stored. Raises InputError for one of other dimensions."""
        file_name = SINGLE_FILE if self._file_of is None else self._file_of.get(name)
        if file_name is None:
            raise InputError(f"{self._folder / INDEX_FILE}: no tensor {name}")
        path = self._folder / file_name
        try:
            if file_name not in self._opened:
                self._opened[file_name] = safe_open(path, framework="pt")
            stored = self._opened[file_name].get_tensor(name)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file, but {INDEX_FILE} names it") from None
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: cannot read tensor {name} ({error})") from None
        if stored.shape != dims:
            raise InputError(f"{path}: {name} is {list(stored.shape)}; expected {list(dims)} by config.json")
        return stored


class _Assembly:
    """Puts stored tensors together: fused where they read one input, rows in the half-split RoPE order."""

    def __init__(
        self,
        shape: DecoderShape,
        names: TensorNames,
        files: _Shards,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self._shape = shape
        self._names = names
        self._files = files
        self._dtype = dtype
        self._device = device

    def decoder(self) -> DecoderWeights:
        shape = self._shape
        embedding = self._weight("model.embed_tokens", shape.vocab_size, shape.hidden)
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(f"model.layers.{index}", index) for index in range(shape.num_layers)),
            final_norm=self._norm("model.norm", shape.hidden),
            head=embedding if shape.tied else self._weight("lm_head", shape.vocab_size, shape.hidden),
        )

    def _weight(self, name: str, *dims: int) -> Tensor:
        return self._run_in(self._files.tensor(f"{name}.weight", dims))

    def _norm(self, name: str, width: int) -> Tensor:
        stored, offset = self._files.tensor(f"{name}.weight", (width,)), self._names.norm_offset
        return self._run_in(stored.float() + offset if offset else stored)

    def _run_in(self, stored: Tensor) -> Tensor:
        return stored.to(device=self._device, dtype=self._dtype)

    def _layer(self, prefix: str, index: int) -> LayerWeights:
        shape, names = self._shape, self._names
        experts, norm = shape.experts if shape.has_experts(index) else None, partial(self._norm, width=shape.hidden)
        attention = f"{prefix}.self_attn"
        return LayerWeights(
            attn_norm=norm(f"{prefix}.input_layernorm"),
            attention=self._heads(attention) if shape.latent is None else self._latent(attention, shape.latent),
            mlp_norm=norm(f"{prefix}.{names.mlp_norm}"),
            mlp=self._mlp(f"{prefix}.mlp", shape.intermediate) if experts is None else self._mixture(prefix, experts),
            attn_post_norm=norm(f"{prefix}.{names.attn_post_norm}") if shape.post_norms else None,
            mlp_post_norm=norm(f"{prefix}.{names.mlp_post_norm}") if shape.post_norms else None,
        )

    def _heads(self, prefix: str) -> HeadWeights:
        shape = self._shape
        rows = {"q_proj": shape.num_heads, "k_proj": shape.num_kv_heads, "v_proj": shape.num_kv_heads}
        rows = {f"{prefix}.{name}": num_heads * shape.head_dim for name, num_heads in rows.items()}
        biases = [self._run_in(self._files.tensor(f"{name}.bias", (n,))) for name, n in rows.items() if shape.qkv_bias]
        return HeadWeights(
            qkv=torch.cat([self._weight(name, num_rows, shape.hidden) for name, num_rows in rows.items()]),
            out=self._weight(f"{prefix}.o_proj", shape.hidden, shape.num_heads * shape.head_dim),
            qkv_bias=torch.cat(biases) if biases else None,
            q_norm=self._norm(f"{prefix}.q_norm", shape.head_dim) if shape.qk_norm else None,
            k_norm=self._norm(f"{prefix}.k_norm", shape.head_dim) if shape.qk_norm else None,
        )

    def _latent(self, prefix: str, latent: LatentShape) -> LatentWeights:
        shape, latent_dim, query_latent_dim = self._shape, latent.latent_dim, latent.query_latent_dim
        query_name = f"{prefix}.{'q_b_proj' if query_latent_dim else 'q_proj'}"
        query = self._weight(query_name, shape.num_heads * shape.query_dim, query_latent_dim or shape.hidden)
        kv_down = self._weight(f"{prefix}.kv_a_proj_with_mqa", latent_dim + latent.rope_dim, shape.hidden)
        up_rows = shape.num_heads * (shape.head_dim + latent.value_dim)
        up = self._weight(f"{prefix}.kv_b_proj", up_rows, latent_dim).unflatten(0, (shape.num_heads, -1))
        key_up, value_up = up.split((shape.head_dim, latent.value_dim), dim=1)
        return LatentWeights(
            query=_in_halves(query.unflatten(0, (shape.num_heads, -1)), latent.rope_dim).flatten(0, 1),
            kv_down=_in_halves(kv_down.unsqueeze(0), latent.rope_dim).squeeze(0),
            kv_norm=self._norm(f"{prefix}.kv_a_layernorm", latent_dim),
            key_up=key_up.contiguous(),
            value_up=value_up.contiguous(),
            out=self._weight(f"{prefix}.o_proj", shape.hidden, shape.num_heads * latent.value_dim),
            query_down=self._weight(f"{prefix}.q_a_proj", query_latent_dim, shape.hidden) if query_latent_dim else None,
            query_norm=self._norm(f"{prefix}.q_a_layernorm", query_latent_dim) if query_latent_dim else None,
        )

    def _mlp(
        self, prefix: str, intermediate: int, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> GatedWeights:
        hidden = self._shape.hidden
        gate, up = (self._weight(f"{prefix}.{part}", intermediate, hidden) for part in parts[:2])
        return GatedWeights(torch.cat([gate, up]), self._weight(f"{prefix}.{parts[2]}", hidden, intermediate))

    def _mixture(self, prefix: str, experts: ExpertShape) -> ExpertWeights:
        names, width = self._names, experts.intermediate
        return ExpertWeights.of(
            router=self._weight(f"{prefix}.{names.router}", experts.num_experts, self._shape.hidden),
            experts=[
                self._mlp(f"{prefix}.{names.experts}.{number}", width, names.expert_parts)
                for number in range(experts.num_experts)
            ],
            shared=self._mlp(f"{prefix}.mlp.shared_experts", experts.num_shared * width)
            if experts.num_shared
            else None,
        )


def _in_halves(heads: Tensor, rope_dim: int) -> Tensor:
    """The last `rope_dim` rows of each head [num_heads, rows, in], that turn in neighbouring pairs, as two halves."""
    plain, turned = heads[:, :-rope_dim], heads[:, -rope_dim:]
    return torch.cat([plain, turned[:, 0::2], turned[:, 1::2]], dim=1)
