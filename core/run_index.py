"""The prefix index of blocks that are kept as runs: from a block key to ids of the blocks that hold that content."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from core.content import BlockKeys
from core.interfaces import BlockKey


class RunIndex:
    """As `HashIndex`, of ids. Content that only its own sequence could ask for enters when that may come back."""

    def __init__(self) -> None:
        self._oldest: dict[BlockKey, int] = {}
        self._younger: dict[BlockKey, list[int]] = {}
        self._num_private = 0  # ids under keys that no other sequence has

    @property
    def has_private(self) -> bool:
        """Is there content that only its own sequence can ask for?"""
        return self._num_private > 0

    def __len__(self) -> int:
        """Number of distinct keys."""
        return len(self._oldest)

    def get(self, key: BlockKey) -> int | None:
        """The oldest block that holds this content. O(1)."""
        return self._oldest.get(key)

    def leading(self, keys: Sequence[BlockKey]) -> array[int]:
        """Blocks of the longest run of `keys`, from the first, that is in the index."""
        found = array("q")
        get = self._oldest.get
        if not keys or get(keys[0]) is None:
            return found
        for first in range(0, len(keys), 64):
            ids = list(map(get, keys[first : first + 64]))
            if None in ids:
                found.fromlist(ids[: ids.index(None)])  # type: ignore[arg-type]
                break
            found.fromlist(ids)  # type: ignore[arg-type]
        return found

    def insert(self, keys: Sequence[BlockKey], ids: Iterable[int]) -> None:
        """Registers each block of a piece of a text under its key."""
        oldest = self._oldest
        if keys and keys[0] not in oldest:  # nor is what follows: no content outlives what is before it
            oldest.update(zip(keys, ids, strict=True))
            return
        for key, block_id in zip(keys, ids, strict=True):
            if oldest.setdefault(key, block_id) != block_id:
                self._younger.setdefault(key, []).append(block_id)

    def insert_private(self, keys: Sequence[BlockKey], ids: Sequence[int]) -> None:
        """As `insert`, of content whose sequence stops, and will ask for it when it comes back."""
        known = [self._holds(key, block_id) for key, block_id in zip(keys, ids, strict=True)]
        new = [(key, block_id) for key, block_id, is_known in zip(keys, ids, known, strict=True) if not is_known]
        self._num_private += len(new)
        self.insert([key for key, _ in new], [block_id for _, block_id in new])

    def _holds(self, key: BlockKey, block_id: int) -> bool:
        return self._oldest.get(key) == block_id or block_id in self._younger.get(key, ())

    def forget(self, keys: BlockKeys, first: int, last: int, ids: Sequence[int]) -> list[BlockKey | None]:
        """The blocks `first` up to, not including, `last` of a text lose their content. Returns their keys, as far as
        anybody could have asked for them: None in place of others, and none behind the last.
        """
        num_shared = keys.num_shared
        if last <= num_shared and not self._younger:
            shared = keys.keys(first, last)
            for key in shared:
                del self._oldest[key]
            return [*shared]
        shared = keys.keys(first, min(last, num_shared)) if first < num_shared else []
        self.remove(shared, ids)
        known: list[BlockKey | None] = [*shared]
        if self._num_private and last > num_shared:
            known += self._forget_private(keys.keys(max(first, num_shared), last), ids[len(known) :])
        return known

    def _forget_private(self, keys: Sequence[BlockKey], ids: Sequence[int]) -> list[BlockKey | None]:
        held = [(key, block_id) for key, block_id in zip(keys, ids, strict=True) if self._holds(key, block_id)]
        self._num_private -= len(held)
        self.remove([key for key, _ in held], [block_id for _, block_id in held])
        was_held = {key for key, _ in held}
        return [key if key in was_held else None for key in keys]

    def remove(self, keys: Sequence[BlockKey], ids: Iterable[int]) -> None:
        """Forgets these blocks; the next oldest with the same content serves from now on."""
        oldest, younger = self._oldest, self._younger
        if not younger:
            for key in keys:
                del oldest[key]
            return
        for key, block_id in zip(keys, ids, strict=False):
            if key not in younger:
                del oldest[key]
                continue
            if oldest[key] == block_id:
                oldest[key] = younger[key].pop(0)
            else:
                younger[key].remove(block_id)
            if not younger[key]:
                del younger[key]
