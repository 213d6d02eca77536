"""Attention with a key and a value per KV head (MHA, GQA, MQA), full or windowed, over the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.batch import BatchInput
from engine.decoder_shape import DecoderShape, KVPlace
from engine.decoder_weights import HeadWeights
from engine.kv_cache import BlockKernels, PagedKV
from engine.projection import projection
from engine.rope import Angles
from kernels.reference import rotate
from kernels.shared_runs import DecodeRuns


class DecoderKernels(BlockKernels, Protocol):
    """The functions of `kernels.reference` that an engine calls; any faster set has the same signatures."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    swiglu: Callable[[Tensor], Tensor]
    expert_product: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    rope_kv_write: Callable[..., Tensor]
    write_kv: Callable[..., None]
    write_latents: Callable[[Tensor, Tensor, Tensor], None]
    decode_attention: Callable[..., Tensor]
    cascade_decode_attention: Callable[..., Tensor]
    prefill_attention: Callable[..., Tensor]
    mla_decode_attention: Callable[..., Tensor]
    mla_prefill_attention: Callable[..., Tensor]


class LayerAngles(NamedTuple):
    """The angles of all positions, and of those of a batch."""

    everywhere: Angles
    here: Angles


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers of a step share: its batch, the KV memory, and the angles of the batch's positions.

    `window_angles` are those of layers with a window: in most models the same.
    """

    batch: BatchInput
    kv: PagedKV
    angles: LayerAngles
    window_angles: LayerAngles

    def angles_of(self, place: KVPlace) -> Angles:
        """Of the batch's positions."""
        return self._of(place).here

    def all_angles_of(self, place: KVPlace) -> Angles:
        """Of positions from 0 on."""
        return self._of(place).everywhere

    def _of(self, place: KVPlace) -> LayerAngles:
        return self.angles if place.window_tokens is None else self.window_angles


class HeadAttention:
    """One layer's attention: projects, rotates, caches, attends."""

    def __init__(self, shape: DecoderShape, weights: HeadWeights, place: KVPlace, kernels: DecoderKernels) -> None:
        self._shape = shape
        self._weights = weights
        self._qkv = projection(weights.qkv, weights.qkv_bias)
        self._out = projection(weights.out)
        self._place = place
        self._kernels = kernels

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]; writes the step's keys and values, if they are its own."""
        caches = step.kv.layer(self._place)
        query = self._write(self._qkv(x), step, caches)
        return self._out(self._attend(query, caches, step).flatten(1))

    def _write(self, qkv: Tensor, step: StepContext, caches: Sequence[Tensor]) -> Tensor:
        """Caches the step's keys and values; returns its queries [num_tokens, num_heads, head_dim], rotated."""
        angles = step.angles_of(self._place)
        if self._weights.q_norm is not None:
            qkv = torch.cat(self._split(qkv), dim=1).flatten(1)
        if not self._place.writes:
            return rotate(qkv.unflatten(1, (-1, self._shape.head_dim)), *angles)
        return self._kernels.rope_kv_write(qkv, *angles, *caches, step.batch.groups[self._place.group].slot_mapping)

    def _attend(self, query: Tensor, caches: Sequence[Tensor], step: StepContext) -> Tensor:
        kernels, scale = self._kernels, self._shape.scale
        runs = step.batch.groups[self._place.group].decode_runs
        decode = partial(_decode_in_runs, kernels, runs) if runs is not None else kernels.decode_attention
        return paged_attention(decode, kernels.prefill_attention, query, caches, step, self._place, scale)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by heads, before rotation; no keys and values in a layer that has none."""
        heads, num_heads = qkv.unflatten(1, (-1, self._shape.head_dim)), self._shape.num_heads
        num_kv_heads = (heads.shape[1] - num_heads) // 2
        query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        return self._normed(query, self._weights.q_norm), self._normed(key, self._weights.k_norm), value

    def _normed(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        """Each head's own RMSNorm, in models that have one (Qwen3, Gemma 3)."""
        return heads if weight is None else self._kernels.rms_norm(heads, weight, self._shape.norm_eps)


def _decode_in_runs(
    kernels: DecoderKernels,
    runs: DecodeRuns,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    scale: float,
    window: None,
) -> Tensor:
    """`decode_attention` of the same arguments, prefixes that are shared being read once."""
    return kernels.cascade_decode_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, runs, scale)


def paged_attention(
    decode: Callable[..., Tensor],
    prefill: Callable[..., Tensor],
    query: Tensor,
    caches: Sequence[Tensor],
    step: StepContext,
    place: KVPlace,
    *parameters: float,
) -> Tensor:
    """Decode rows by the one kernel, prefill rows by the other, each given `parameters`: one row a token, in order."""
    batch, window = step.batch, place.window_tokens
    tables, num_decodes = batch.groups[place.group], batch.num_decodes
    num_kv = batch.decode_num_kv_tokens
    if num_decodes == len(query):
        return decode(query, *caches, tables.decode_block_tables, num_kv, *parameters, window)
    lengths = batch.prefill_query_start, batch.prefill_num_kv_tokens
    prefilled = prefill(query[num_decodes:], *caches, tables.prefill_block_tables, *lengths, *parameters, window)
    if not num_decodes:
        return prefilled
    decoded = decode(query[:num_decodes], *caches, tables.decode_block_tables, num_kv, *parameters, window)
    return torch.cat([decoded, prefilled])
