"""A leaf of the radix tree, as a ranking sees it."""

from __future__ import annotations

from typing import Protocol


class Leaf(Protocol):
    """A node at the end of a radix tree, as a ranking sees it. Times are ticks: they order events, and no more."""

    @property
    def last_access(self) -> int:
        """When a look-up or an insertion last passed it."""
        ...

    @property
    def created(self) -> int: ...
    @property
    def num_hits(self) -> int:
        """Requests that published a text through it, the one that made it included."""
        ...

    @property
    def priority(self) -> int:
        """The greatest importance among those requests (`-Request.priority`: the more urgent, the greater)."""
        ...

    @property
    def num_pages(self) -> int:
        """Its length, in blocks."""
        ...

    @property
    def depth_pages(self) -> int:
        """Blocks of the text that precede it."""
        ...
