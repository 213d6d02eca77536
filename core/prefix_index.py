"""The prefix index: from a block key to the blocks that hold that content."""

from __future__ import annotations

from collections.abc import Iterable

from core.interfaces import Block, BlockKey


class HashIndex:
    """Key to blocks, oldest registration first (vLLM 0.33). The same content may be registered several times."""

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
        blocks = []
        for key in keys:
            block = self._oldest.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, key: BlockKey, block: Block) -> None:
        block.key = key
        if key in self._oldest:
            self._younger.setdefault(key, []).append(block)
        else:
            self._oldest[key] = block

    def remove(self, block: Block) -> None:
        """Forgets this block; the next oldest with its content serves from now on."""
        key = block.key
        if key is None:
            raise KeyError(f"block {block.block_id} is not registered")
        younger = self._younger.get(key)
        if self._oldest[key] is not block:
            assert younger is not None
            younger.remove(block)
        elif younger:
            self._oldest[key] = younger.pop(0)
        else:
            del self._oldest[key]
        if younger is not None and not younger:
            del self._younger[key]
        block.key = None
