"""The batch form of an eviction policy: many blocks at a time, by their ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import ClassVar, Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from core.interfaces import Policy

Ints = NDArray[np.int64]
FEW: Final = 8
"""So many blocks are treated one by one before an array operation has begun."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchEviction(ABC):
    """Decides what the policy decides that it is of (`EvictionPolicy.in_batches`), block for block, as a property test
    shows. All blocks have content, ids in a call are distinct, and come in the order in which the policy would hear of
    them. What one call tells is over before the next begins: nobody asks in between.
    """

    asks_incoming: ClassVar[bool] = False  # whether `choose` looks at what is to come

    @abstractmethod
    def enter(self, ids: array[int]) -> None:
        """These were registered, and are referenced."""

    @abstractmethod
    def hit(self, ids: Ints) -> None:
        """A request was admitted on these, root to leaf, referenced or not."""

    @abstractmethod
    def wake(self, ids: Ints) -> None:
        """Their reference counts rise from 0: evictable no more. Told after `hit`."""

    @abstractmethod
    def rest(self, ids: Ints) -> None:
        """Their reference counts fell to 0: evictable from now on. Leaf to root."""

    @abstractmethod
    def choose(self, num_blocks: int, incoming: Ints | None) -> array[int]:
        """So many victims, of resting blocks, of which there are enough; they lose their content.

        `incoming`: by number, the content that each makes room for, 0 where that is not known; None: of none it is.
        """

    @abstractmethod
    def foresee(self, num_blocks: int) -> array[int]:
        """As `choose` without anything incoming, but no more than so many: as far as they make no difference to what
        blocks `enter` meanwhile, nor those to them. Nothing else is told meanwhile, and what enters is new to all.
        """

    @abstractmethod
    def dropped(self, ids: array[int]) -> None:
        """The registration of these, which are referenced, was taken back."""


def has_batches(policy: Policy) -> bool:
    """Whether the policy's own class has a batch form. A subclass, which may decide otherwise, has to say so anew."""
    return "in_batches" in vars(type(policy))


def largest(values: NDArray[np.int64] | NDArray[np.int8]) -> int:
    """Of some. A search is over before a reduction by `np.maximum` has begun."""
    return int(values[values.argmax()])


def array_of(ids: Ints) -> array[int]:
    copy = array("q")
    copy.frombytes(ids.tobytes())
    return copy


def view_of(ids: array[int]) -> Ints:
    """The same memory: the array cannot grow while it is in use."""
    return np.frombuffer(ids, np.int64)
