"""The prefix index: from a block key to the blocks that hold that content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from core.interfaces import Block, BlockKey


class HashIndex:
    """Key to blocks, oldest registration first (vLLM 0.33). The same content may be registered several times."""

    is_linked: ClassVar[bool] = False  # whether `insert` has to know the parents
    num_orphans = 0  # registered blocks whose parent content is in no block, where the index is linked

    def __init__(self) -> None:
        self._oldest: dict[BlockKey, Block] = {}
        self._younger: dict[BlockKey, list[Block]] = {}

    def __len__(self) -> int:
        """Number of distinct keys."""
        return len(self._oldest)

    def get(self, key: BlockKey) -> Block | None:
        """The oldest block that holds this content. O(1)."""
        return self._oldest.get(key)

    def leading(self, keys: Iterable[BlockKey]) -> list[Block]:
        """Blocks of the longest run of `keys`, from the first, that is in the index."""
        blocks: list[Block] = []
        for block in map(self._oldest.get, keys):
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(
        self, blocks: Sequence[Block], keys: Sequence[BlockKey], parents: Sequence[BlockKey | None] = ()
    ) -> None:
        """Registers each block under its key. `parents`: the key of the content before each; None: it begins a text."""
        oldest = self._oldest
        for block, key in zip(blocks, keys, strict=True):
            block.key = key
            if oldest.setdefault(key, block) is not block:
                self._younger.setdefault(key, []).append(block)

    def remove(self, blocks: Iterable[Block]) -> None:
        """Forgets these registered blocks; the next oldest with the same content serves from now on."""
        for block in blocks:
            self._remove(block)

    def _remove(self, block: Block) -> BlockKey:
        key = block.key
        if key is None:
            raise KeyError(f"block {block.block_id} is not registered")
        if key in self._younger:
            self._remove_duplicate(key, block)
        else:
            del self._oldest[key]
        block.key = None
        return key

    def _remove_duplicate(self, key: BlockKey, block: Block) -> None:
        younger = self._younger[key]
        if self._oldest[key] is block:
            self._oldest[key] = younger.pop(0)
        else:
            younger.remove(block)
        if not younger:
            del self._younger[key]
