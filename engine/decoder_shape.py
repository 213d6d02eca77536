"""What a decoder is made of: its dimensions, and which of its layers keep KV where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from core.kv_group import KVGroup, split_layers


class KVPlace(NamedTuple):
    """Where a layer's keys and values lie: the group whose block table leads there, and the layer's place in a block.

    `writes` is False for a layer that reads the cache of an earlier one. The window is that of both.
    """

    group: int
    index: int
    window_tokens: int | None
    writes: bool


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The dimensions of a decoder with RoPE, RMSNorm and gated MLPs.

    layer_windows: each layer's sliding window, None for full attention; empty where all layers attend to everything.
    num_shared_layers: so many layers at the end project no keys and values; each reads the cache of the last layer
    before them that has its window.
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

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep a cache of their own: the first ones."""
        return self.num_layers - self.num_shared_layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Of every layer."""
        return self.layer_windows or (None,) * self.num_layers

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
        last = {own[layer].window_tokens: own[layer] for layer in sorted(own)}
        return tuple(
            own[layer] if layer in own else last[self.windows[layer]]._replace(writes=False)
            for layer in range(self.num_layers)
        )
