"""Parts of a policy's capacity, and the memory of what is gone."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from core.errors import InputError
from core.interfaces import BlockKey, PolicyEnv
from core.line import Line

UNBOUNDED = 1 << 62


def share_blocks(env: PolicyEnv, name: str, ratio: float, least: int = 1) -> int:
    """`ratio` of the pool, rounded down, in blocks; as good as infinite where the pool is unbounded.

    Raises InputError, by the parameter's `name`, unless the ratio is above 0 and at most 1.
    """
    if not 0 < ratio <= 1:
        raise InputError(f"eviction.{name}={ratio:g}: expected a ratio in (0, 1]")
    return UNBOUNDED if env.num_blocks is None else max(least, int(env.num_blocks * ratio))


@mypyc_attr(allow_interpreted_subclasses=True)
class Ghosts:
    """Keys of evicted content, the newest so many. O(1) each, amortised."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: set[BlockKey] = set()
        self._line: Line[BlockKey] = Line()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._keys

    def add(self, key: BlockKey, incoming: BlockKey | None) -> None:
        """Newest from now. `incoming`, for which the block had to go, is about to leave: it neither counts nor falls
        out.
        """
        if key in self._keys:
            self._line.discard(key)
        self._keys.add(key)
        self._line.append(key)
        if self._line.length > self._most and self._line.length - (incoming in self._keys) > self._most:
            oldest = self._line.pop()
            if oldest == incoming:
                self._keys.remove(self._line.pop())
                self._line.put_back(oldest)
            else:
                self._keys.remove(oldest)

    def discard(self, key: BlockKey) -> None:
        if key in self._keys:
            self._keys.remove(key)
            self._line.discard(key)
