"""A hash index that also knows which content continues which: for eviction from the leaves, and to count orphans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.interfaces import Block, BlockKey
from core.prefix_index import HashIndex


class LinkedIndex(HashIndex):
    """Counts, for every content, the registered blocks that continue it. O(1) a registration or removal.

    An *orphan* is a registered block whose parent content is in no block: memory that no look-up reaches. Blocks that
    continue an orphan are not counted, though no look-up reaches them either: to find them would cost a walk.
    """

    is_linked = True

    def __init__(self) -> None:
        super().__init__()
        self.num_orphans = 0
        self._parent: dict[BlockKey, BlockKey | None] = {}  # of every registered key
        self._num_children: dict[BlockKey, int] = {}  # registered blocks by the key of their parent, registered or not

    def insert(
        self, blocks: Sequence[Block], keys: Sequence[BlockKey], parents: Sequence[BlockKey | None] = ()
    ) -> None:
        num_children = self._num_children
        for key, given in zip(keys, parents, strict=True):
            if key not in self._parent:
                self._parent[key] = given
                self.num_orphans -= num_children.get(key, 0)
            parent = self._parent[key]
            if parent is not None:
                num_children[parent] = num_children.get(parent, 0) + 1
                self.num_orphans += parent not in self._parent
        super().insert(blocks, keys)

    def remove(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            key = block.key
            super().remove((block,))
            assert key is not None
            parent = self._parent[key]
            if parent is not None:
                self._drop_child(parent)
            if key not in self._oldest:
                del self._parent[key]
                self.num_orphans += self._num_children.get(key, 0)

    def _drop_child(self, parent: BlockKey) -> None:
        self._num_children[parent] -= 1
        if self._num_children[parent] == 0:
            del self._num_children[parent]
        self.num_orphans -= parent not in self._parent

    def parent(self, block: Block) -> BlockKey | None:
        """The key of the content that the block's own continues; None at the beginning of a text. O(1)."""
        assert block.key is not None
        return self._parent[block.key]

    def num_children(self, key: BlockKey) -> int:
        """Registered blocks that continue this content. O(1)."""
        return self._num_children.get(key, 0)

    def would_orphan(self, block: Block) -> bool:
        """Is it the last one with its content, and do others continue that content? O(1)."""
        return block.key in self._num_children and block.key not in self._younger
