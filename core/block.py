"""A block of KV memory, as the pool and the policies see it."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from mypy_extensions import mypyc_attr

BlockKey = Hashable
"""Names the content of a full block *and of everything before it*: equal keys mean equal KV."""


@mypyc_attr(acyclic=True)
class Block:
    """One block of KV memory. Policies read it, and may keep scratch data in `link`; the rest is the pool's.

    What is in `link` must not lead back to the block: the garbage collector does not look at blocks that are machine
    code. It took as long as all else, with a million of them.
    """

    __slots__ = ("block_id", "category", "content", "id_bytes", "key", "link", "position", "ref_count")

    def __init__(
        self,
        block_id: int,
        ref_count: int = 0,
        key: BlockKey | None = None,
        position: int = 0,
        category: int = 0,
    ) -> None:
        self.block_id = block_id
        self.id_bytes = block_id.to_bytes(8, sys.byteorder, signed=True)  # as the log has it, of which there is a lot
        self.ref_count = ref_count
        self.key = key  # set while the block is registered in the prefix index
        # Of the last registration: the place of its content in its chain, the root being 0; and the kind of its request
        # where the trace tells one, else its tenant.
        self.position = position
        self.category = category
        self.link: Any = None
        self.content = -1  # its number in the prefix index, where that gives any

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        """A block is a place in memory: the copy of a policy's books still means the same one."""
        return self

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_count={self.ref_count}, key={self.key!r})"
