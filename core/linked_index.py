"""A hash index that also knows which content continues which: for eviction from the leaves, and to count orphans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.interfaces import Block, BlockKey
from core.prefix_index import HashIndex

_NONE = -1


class LinkedIndex(HashIndex):
    """Counts, for every content, the registered blocks that continue it. O(1) a registration or removal.

    An *orphan* is a registered block whose parent content is in no block: memory that no look-up reaches. Blocks that
    continue an orphan are not counted, though no look-up reaches them either: to find them would cost a walk.

    Contents have numbers, as long as blocks hold them or what continues them, and what is known of them lies in columns
    by number: an object for each would be made and dropped with every block that comes and goes.
    """

    is_linked = True

    def __init__(self) -> None:
        super().__init__()
        self.num_orphans = 0
        self._key: list[BlockKey] = []
        self._parent: list[int] = []  # what it continues, while blocks hold it; _NONE at the beginning of a text
        self._num_blocks: list[int] = []  # registered blocks that hold it
        self._num_children: list[int] = []  # registered blocks that continue it
        self._unused: list[int] = []
        self._missing: dict[BlockKey, int] = {}  # what no block holds, but blocks continue

    def insert(
        self, blocks: Sequence[Block], keys: Sequence[BlockKey], parents: Sequence[BlockKey | None] = ()
    ) -> None:
        before_key: BlockKey | None = None
        before = _NONE
        for block, key, parent_key in zip(blocks, keys, parents, strict=True):
            oldest = self._oldest.get(key)
            if oldest is None:
                content = self._entering(key)
                if parent_key is None:
                    self._parent[content] = _NONE
                else:  # as a rule, a text comes in block by block
                    self._parent[content] = before if parent_key is before_key else self._known(parent_key)
                self._oldest[key] = block
            else:
                content = oldest.content
                self._younger.setdefault(key, []).append(block)
            block.key = key
            block.content = content
            self._num_blocks[content] += 1
            parent = self._parent[content]
            if parent != _NONE:
                self._num_children[parent] += 1
                if not self._num_blocks[parent]:
                    self.num_orphans += 1
            before_key, before = key, content

    def _entering(self, key: BlockKey) -> int:
        """The number of this content, which gets a block; its children are no orphans any more."""
        if key in self._missing:
            content = self._missing.pop(key)
            self.num_orphans -= self._num_children[content]
            return content
        return self._new(key)

    def _new(self, key: BlockKey) -> int:
        if self._unused:
            content = self._unused.pop()
            self._key[content] = key
            return content
        self._key.append(key)
        self._parent.append(_NONE)
        self._num_blocks.append(0)
        self._num_children.append(0)
        return len(self._key) - 1

    def _known(self, key: BlockKey) -> int:
        oldest = self._oldest.get(key)
        if oldest is not None:
            return oldest.content
        if key not in self._missing:
            self._missing[key] = self._new(key)
        return self._missing[key]

    def remove(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            key, content = self._remove(block), block.content
            num_blocks = self._num_blocks[content] - 1
            self._num_blocks[content] = num_blocks
            parent = self._parent[content]
            if parent != _NONE:
                self._drop_child(parent)
            if num_blocks:
                continue
            num_children = self._num_children[content]
            if num_children:
                self.num_orphans += num_children
                self._missing[key] = content
            else:
                self._unused.append(content)

    def _drop_child(self, content: int) -> None:
        num_children = self._num_children[content] - 1
        self._num_children[content] = num_children
        if self._num_blocks[content]:
            return
        self.num_orphans -= 1
        if not num_children:
            del self._missing[self._key[content]]
            self._unused.append(content)

    def parent(self, block: Block) -> BlockKey | None:
        """The key of the content that the block's own continues; None at the beginning of a text. O(1)."""
        parent = self._parent[block.content]
        return None if parent == _NONE else self._key[parent]

    def num_children(self, key: BlockKey) -> int:
        """Registered blocks that continue this content. O(1)."""
        oldest = self._oldest.get(key)
        content = self._missing.get(key) if oldest is None else oldest.content
        return 0 if content is None else self._num_children[content]

    def would_orphan(self, block: Block) -> bool:
        """Is it the last one with its content, and do others continue that content? O(1)."""
        return self._num_children[block.content] > 0 and self._num_blocks[block.content] == 1
