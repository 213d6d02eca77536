"""What a decoder is made of: its dimensions, and which of its layers keep KV where."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from core.kv_group import KVGroup, split_layers
from engine.rope_scaling import RopeScaling


class KVPlace(NamedTuple):
    """Where a layer's keys and values lie: the group whose block table leads there, and the layer's place in a block.

    `writes` is False for a layer that reads the cache of an earlier one. The window is that of both.
    """

    group: int
    index: int
    window_tokens: int | None
    writes: bool


@dataclass(frozen=True, slots=True)
class LatentShape:
    """MLA (arXiv 2405.04434): a token caches one latent vector and one rotated key of `rope_dim`, for all heads.

    A query head has `head_dim` numbers without position and `rope_dim` with it; a value head has `value_dim`.
    query_latent_dim: width of the queries' own latent, 0 where they are projected directly.
    """

    latent_dim: int
    rope_dim: int
    value_dim: int
    query_latent_dim: int = 0


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts in place of the MLP, in all but the first `num_dense_layers` layers.

    A token takes its `num_active` best experts, weighted by the router's probabilities (`renormalised` over those that
    were taken) times `scale`, and all `num_shared` ones.
    """

    num_experts: int
    num_active: int
    intermediate: int
    num_shared: int = 0
    num_dense_layers: int = 0
    renormalised: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The dimensions of a decoder with RoPE, RMSNorm and gated MLPs.

    layer_windows: each layer's sliding window, None for full attention; empty where all layers attend to everything.
    num_shared_layers: so many layers at the end project no keys and values; each reads the cache of the last layer
    before them that has its window.
    window_rope_base: of layers with a window, which are then not scaled either; None where all are alike (Gemma 3).
    post_norms: attention and MLP are followed by a norm, too. attention_scale: None for the usual 1 / sqrt(width).
    """

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    max_positions: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = True
    layer_windows: tuple[int | None, ...] = ()
    num_shared_layers: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    rope_scaling: RopeScaling | None = None
    window_rope_base: float | None = None
    latent: LatentShape | None = None
    experts: ExpertShape | None = None

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep a cache of their own: the first ones."""
        return self.num_layers - self.num_shared_layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Of every layer."""
        return self.layer_windows or (None,) * self.num_layers

    @property
    def rotated_dim(self) -> int:
        """Numbers of a head that RoPE turns."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def query_dim(self) -> int:
        """Numbers of a head that a query is compared in."""
        return self.head_dim if self.latent is None else self.head_dim + self.latent.rope_dim

    @property
    def scale(self) -> float:
        """What attention scores are multiplied with."""
        return self.query_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer >= self.experts.num_dense_layers

    @property
    def kv_token_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of each tensor that a layer caches, the dimensions of one token: keys and values, or the latent of MLA."""
        if self.latent is not None:
            return ((self.latent.latent_dim + self.latent.rope_dim,),)
        return ((self.num_kv_heads, self.head_dim),) * 2

    @property
    def kv_elements_per_layer_token(self) -> int:
        """Numbers that one layer caches for one token."""
        return sum(map(prod, self.kv_token_shapes))

    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The groups of layers that share a block table, as the control plane knows them."""
        windows = self.windows[: self.num_kv_layers]
        return tuple(KVGroup(len(layers), windows[layers[0]]) for layers in split_layers(windows))

    @property
    def num_block_layers(self) -> int:
        """Layers whose KV one block holds: those of the largest group."""
        return max(group.num_layers for group in self.kv_groups())

    def kv_places(self) -> tuple[KVPlace, ...]:
        """Of every layer."""
        own: dict[int, KVPlace] = {}
        for group, layers in enumerate(split_layers(self.windows[: self.num_kv_layers])):
            own |= {layer: KVPlace(group, index, self.windows[layer], True) for index, layer in enumerate(layers)}
        last = {own[layer].window_tokens: own[layer]._replace(writes=False) for layer in sorted(own)}
        return tuple(own.get(layer) or last[self.windows[layer]] for layer in range(self.num_layers))
