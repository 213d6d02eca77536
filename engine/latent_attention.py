"""Multi-head latent attention (MLA) in its absorbed form: attention of all heads over one latent vector a token.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1. A head's key is `key_up @ latent`, so its score with a query is
`(query @ key_up) . latent`: the up-projection moves to the query, and from the values to the output. What is cached,
and read, is a latent of latent_dim and one rotated key of rope_dim a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention import DecoderKernels, StepContext, paged_attention
from engine.decoder_shape import DecoderShape, KVPlace, LatentShape
from engine.decoder_weights import LatentWeights
from engine.projection import projection
from engine.rope import Angles
from kernels.reference import rotate


class LatentAttention:
    """One layer's attention: projects, rotates, caches the latent, attends."""

    def __init__(
        self,
        shape: DecoderShape,
        latent: LatentShape,
        weights: LatentWeights,
        place: KVPlace,
        kernels: DecoderKernels,
    ) -> None:
        self._shape = shape
        self._latent = latent
        self._weights = weights
        self._query_down = None if weights.query_down is None else projection(weights.query_down)
        self._query = projection(weights.query)
        self._kv_down = projection(weights.kv_down)
        self._out = projection(weights.out)
        self._place = place
        self._kernels = kernels

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]; writes the step's latents."""
        angles = step.angles_of(self._place)
        (cache,) = step.kv.layer(self._place)
        slots = step.batch.groups[self._place.group].slot_mapping
        self._kernels.write_latents(self._cached(x, angles), cache, slots)

        mixed = paged_attention(
            self._kernels.mla_decode_attention,
            self._kernels.mla_prefill_attention,
            self._absorbed_query(x, angles),
            (cache,),
            step,
            self._place,
            self._latent.latent_dim,
            self._shape.scale,
        )
        values = torch.einsum("thl,hvl->thv", mixed, self._weights.value_up)
        return self._out(values.flatten(1))

    def _cached(self, x: Tensor, angles: Angles) -> Tensor:
        """[num_tokens, latent_dim + rope_dim]"""
        latent_dim, rope_dim = self._latent.latent_dim, self._latent.rope_dim
        latent, key = self._kv_down(x).split((latent_dim, rope_dim), dim=-1)
        latent = self._kernels.rms_norm(latent, self._weights.kv_norm, self._shape.norm_eps)
        return torch.cat([latent, rotate(key.unsqueeze(1), *angles).squeeze(1)], dim=-1)

    def _absorbed_query(self, x: Tensor, angles: Angles) -> Tensor:
        """[num_tokens, num_heads, latent_dim + rope_dim]"""
        weights = self._weights
        if self._query_down is not None and weights.query_norm is not None:
            x = self._kernels.rms_norm(self._query_down(x), weights.query_norm, self._shape.norm_eps)
        query = self._query(x).unflatten(1, (self._shape.num_heads, -1))
        plain, turned = query.split((self._shape.head_dim, self._latent.rope_dim), dim=-1)
        return torch.cat([torch.einsum("thd,hdl->thl", plain, weights.key_up), rotate(turned, *angles)], dim=-1)
