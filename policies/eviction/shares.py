"""Parts of a policy's capacity, and the memory of what is gone."""

from __future__ import annotations

from collections import OrderedDict

from core.errors import InputError
from core.interfaces import BlockKey, PolicyEnv

UNBOUNDED = 1 << 62


def share_blocks(env: PolicyEnv, name: str, ratio: float, least: int = 1) -> int:
    """`ratio` of the pool, rounded down, in blocks; as good as infinite where the pool is unbounded.

    Raises InputError, by the parameter's `name`, unless the ratio is above 0 and at most 1.
    """
    if not 0 < ratio <= 1:
        raise InputError(f"eviction.{name}={ratio}: expected a ratio in (0, 1]")
    return UNBOUNDED if env.num_blocks is None else max(least, int(env.num_blocks * ratio))


class Ghosts:
    """Keys of evicted content, the newest so many. O(1) each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[BlockKey, None] = OrderedDict()  # oldest first

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._keys

    def add(self, key: BlockKey, incoming: BlockKey | None) -> None:
        """Newest from now. `incoming`, for which the block had to go, is about to leave: it neither counts nor falls
        out.
        """
        keys = self._keys
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) - (incoming in keys) > self._most:
            oldest = iter(keys)
            first = next(oldest)
            del keys[next(oldest) if first == incoming else first]

    def discard(self, key: BlockKey) -> None:
        self._keys.pop(key, None)
