"""What a request finds of its prompt in the cache."""

from __future__ import annotations

from core.id_pool import IdlePart
from core.interfaces import Block
from core.radix_tree import RadixNode
from core.request import BlockTable


class PrefixHit:
    """Cached blocks a request may adopt: one table per KV group; None where a block left the group's window.

    `num_idle` of the blocks are referenced by nobody: adopting them uses up capacity. `idle_parts`: which those are,
    where the pool tells blocks by ids. `node`: where the hit ends, in a radix tree.
    """

    __slots__ = ("idle_parts", "node", "num_idle", "num_tokens", "tables")

    def __init__(
        self,
        num_tokens: int,
        tables: list[BlockTable],
        num_idle: int,
        node: RadixNode[Block] | None = None,
        idle_parts: list[IdlePart] | None = None,
    ) -> None:
        self.num_tokens = num_tokens
        self.tables = tables
        self.num_idle = num_idle
        self.node = node
        self.idle_parts = idle_parts


NO_HIT = PrefixHit(0, [], 0)
