"""KV groups: layers that share one geometry, and so one block table per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.interfaces import BlockKey


def group_key(group: int, key: BlockKey) -> BlockKey:
    """The key of one group's block in the prefix index; the first group's is that of the content itself."""
    return (group, key) if group else key


@dataclass(frozen=True, slots=True)
class KVGroup:
    """A set of layers with one window. `window_tokens` None: full attention.

    All groups draw from one pool. Its block holds `block_size` tokens of one group's layers: of the largest group's, so
    that any block serves any group, or (`core.large_pages`) of as many as the group has.
    """

    num_layers: int
    window_tokens: int | None = None

    def num_expired_blocks(self, num_computed: int, block_size: int) -> int:
        """Leading blocks that no later token attends to, once `num_computed` tokens have KV.

        The next query, at position `num_computed`, sees positions above `num_computed - window_tokens`.
        """
        if self.window_tokens is None:
            return 0
        return max(0, num_computed - self.window_tokens + 1) // block_size

    def num_hit_blocks(self, present: list[bool], block_size: int) -> int:
        """Longest usable prefix, in blocks, of a chain whose blocks are `present` in the index.

        Full attention needs every block from the root; a window needs only those that the next query sees.
        """
        if self.window_tokens is None:
            return present.index(False) if False in present else len(present)
        for num_blocks in range(len(present), 0, -1):
            first = self.num_expired_blocks(num_blocks * block_size, block_size)
            if all(present[first:num_blocks]):
                return num_blocks
        return 0


def merged(groups: Sequence[KVGroup]) -> tuple[KVGroup, ...]:
    """One group for each window, of all layers that have it: what groups of different sizes make possible."""
    num_layers: dict[int | None, int] = {}
    for group in groups:
        num_layers[group.window_tokens] = num_layers.get(group.window_tokens, 0) + group.num_layers
    return tuple(KVGroup(number, window_tokens) for window_tokens, number in num_layers.items())


def num_usable_blocks(
    groups: Sequence[KVGroup], tables: Sequence[Sequence[object | None]], num_blocks: int, block_size: int
) -> int:
    """The most of the first `num_blocks` blocks of these tables after which a sequence can go on.

    No block that its next token attends to may be missing (None): another may have left more of a window behind.
    """
    while num_blocks and any(
        block is None
        for group, table in zip(groups, tables, strict=True)
        for block in table[group.num_expired_blocks(num_blocks * block_size, block_size) : num_blocks]
    ):
        num_blocks -= 1
    return num_blocks


def split_layers(windows: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Which layers share a group, of layers with these windows: full attention first, then window by window.

    A group has as many layers as the rarest kind, the last of a kind perhaps fewer; but as many as the most frequent
    kind if that has less than half as many again, which then pads less (vLLM's rule).
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window_tokens in enumerate(windows):
        kinds.setdefault(window_tokens, []).append(layer)
    fewest, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    group_layers = most if 2 * most < 3 * fewest else fewest
    return [
        tuple(layers[first : first + group_layers])
        for _, layers in sorted(kinds.items(), key=lambda kind: kind[0] or 0)
        for first in range(0, len(layers), group_layers)
    ]
