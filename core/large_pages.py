"""Large pages and the small pages carved from them: which are free, and which serves whom next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from core.interfaces import AllocationPolicy
from core.kv_group import KVGroup


class LargePageAllocation(AllocationPolicy):
    """Gives every KV group blocks of its own size, carved from large pages that serve one group at a time."""

    shares_blocks = False


class Carving(NamedTuple):
    """How large pages are cut. Sizes count blocks of one layer: the tokens of one block, in one layer of the model.

    A small page has all layers of its group (`layers`), a large page as many as the least common multiple of those
    (`large`), so that either kind of small page fills it without a rest (`per_large`).
    """

    layers: tuple[int, ...]
    large: int
    per_large: tuple[int, ...]

    @classmethod
    def of(cls, groups: Sequence[KVGroup]) -> Carving:
        layers = tuple(group.num_layers for group in groups)
        large = lcm(*layers)
        return cls(layers, large, tuple(large // each for each in layers))

    def num_large(self, num_blocks: Iterable[int]) -> int:
        """Large pages that so many small pages of each group fill, the last of each group perhaps in part."""
        return sum(-(-number // each) for number, each in zip(num_blocks, self.per_large, strict=True))


@dataclass(slots=True)
class LargePage:
    """A large page in use. `holes` are the places of its free small pages, the next one last."""

    number: int
    group: int
    owner: int
    holes: list[int]


class LargePages:
    """Books of `num_pages` large pages (None: without end). A page is free, or belongs to one group until all its small
    pages are free again.

    Who needs a small page gets one from a page that was opened for it, else from any partly used page of the group,
    else from a free large page, which is then its own. O(1) a small page.
    """

    def __init__(self, num_pages: int | None, carving: Carving) -> None:
        self.num_pages = num_pages
        self.carving = carving
        self.num_used = 0
        self._num_opened = 0  # pages that were ever in use: those below it are in `_pages` or in `_free`
        self._free: list[int] = []  # stack: used before, and free
        self._pages: dict[int, LargePage] = {}
        self._own: dict[tuple[int, int], dict[int, None]] = {}  # by owner and group: their pages that have holes
        self._open: list[dict[int, None]] = [{} for _ in carving.layers]  # all pages that have holes, by group
        self.num_holes = [0] * len(carving.layers)  # free small pages in partly used pages, by group

    # ---- questions ------------------------------------------------------------------------------------------------

    def num_missing(self, num_blocks: Iterable[int]) -> int:
        """Large pages that must be taken so that somebody has so many further small pages of each group."""
        missing = (max(number - holes, 0) for number, holes in zip(num_blocks, self.num_holes, strict=True))
        return self.carving.num_large(missing)

    # ---- changes --------------------------------------------------------------------------------------------------

    def take(self, group: int, owner: int) -> int:
        """Takes a small page and returns the place that it begins at. The caller has made sure that there is one."""
        page = self._next_page(group, owner)
        slot = page.holes.pop()
        self.num_holes[group] -= 1
        if not page.holes:
            self._hide(page)
        return page.number * self.carving.large + slot * self.carving.layers[group]

    def free(self, place: int) -> int:
        """Frees the small page that begins at this place. Returns its group."""
        number, offset = divmod(place, self.carving.large)
        page = self._pages[number]
        group = page.group
        if not page.holes:
            self._show(page)
        page.holes.append(offset // self.carving.layers[group])
        self.num_holes[group] += 1
        if len(page.holes) == self.carving.per_large[group]:
            self._close(page)
        return group

    def _next_page(self, group: int, owner: int) -> LargePage:
        own = self._own.get((owner, group))
        if own:
            return self._pages[next(iter(own))]
        if self._open[group]:
            return self._pages[next(iter(self._open[group]))]
        return self._carve(group, owner)

    def _carve(self, group: int, owner: int) -> LargePage:
        """Takes a large page into use, all its small pages free."""
        if self._free:
            number = self._free.pop()
        else:
            number = self._num_opened
            self._num_opened += 1
        assert self.num_pages is None or number < self.num_pages, "a page was promised that there is not"
        num_small = self.carving.per_large[group]
        page = self._pages[number] = LargePage(number, group, owner, [*reversed(range(num_small))])
        self.num_used += 1
        self.num_holes[group] += num_small
        self._show(page)
        return page

    def _close(self, page: LargePage) -> None:
        """All its small pages are free: it serves any group again."""
        self._hide(page)
        self.num_holes[page.group] -= len(page.holes)
        del self._pages[page.number]
        self._free.append(page.number)
        self.num_used -= 1

    def _show(self, page: LargePage) -> None:
        """It has holes from now on."""
        self._own.setdefault((page.owner, page.group), {})[page.number] = None
        self._open[page.group][page.number] = None

    def _hide(self, page: LargePage) -> None:
        """It has none any more."""
        own = self._own[page.owner, page.group]
        del own[page.number]
        if not own:
            del self._own[page.owner, page.group]
        del self._open[page.group][page.number]

    def check_integrity(self, places: Sequence[Iterable[int]]) -> None:
        """Proves that these places, by group, and the holes make up the pages in use. O(pool): for tests."""
        slots: dict[int, list[int]] = {}
        for group, its_places in enumerate(places):
            for place in its_places:
                number, offset = divmod(place, self.carving.large)
                assert self._pages[number].group == group, f"page {number} serves two groups"
                slots.setdefault(number, []).append(offset // self.carving.layers[group])
        assert slots.keys() == self._pages.keys(), "a large page is in use that nobody uses"
        for number, page in self._pages.items():
            every = sorted([*slots[number], *page.holes])
            assert every == list(range(self.carving.per_large[page.group])), (
                f"page {number}: a small page twice or lost"
            )
            for known in (self._own.get((page.owner, page.group), {}), self._open[page.group]):
                assert (number in known) == bool(page.holes), f"page {number}: its holes are not known"
        for group, num_holes in enumerate(self.num_holes):
            held = sum(len(page.holes) for page in self._pages.values() if page.group == group)
            assert held == num_holes, "counts are off"
        assert sorted([*self._pages, *self._free]) == list(range(self._num_opened)), "a large page is lost"
        assert self.num_used == len(self._pages), "counts are off"
