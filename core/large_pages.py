"""Large pages and the small pages carved from them: which are free, and which serves whom next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from core.interfaces import AllocationPolicy
from core.kv_group import KVGroup

UNBOUNDED_PAGES = 1 << 50  # more than any run uses


class LargePageAllocation(AllocationPolicy):
    """Gives every KV group blocks of its own size, carved from large pages that serve one group at a time."""


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
    """A large page in use: how many of its small pages are held by somebody, how many are only kept for their content,
    and the places of those that are neither (`holes`, the next one last).
    """

    number: int
    group: int
    owner: int
    holes: list[int]
    num_held: int = 0
    num_kept: int = 0


class LargePages:
    """Books of `num_pages` large pages (None: without end). A page is free, or belongs to one group until all its small
    pages are holes again.

    Who needs a small page gets one from a page that was opened for it, else from any of the group that has holes, else
    from a free large page, which is then its own. Pages of which nothing is held are *idle*: they serve anybody once
    their content is evicted, and nothing is put beside it. O(1) a small page.
    """

    def __init__(self, num_pages: int | None, carving: Carving) -> None:
        self.num_pages = num_pages
        self.carving = carving
        self.num_used = 0
        self.num_idle = 0
        self._num_opened = 0  # pages that were ever in use: those below it are in `_pages` or in `_free`
        self._free: list[int] = []  # stack: used before, and free
        self._pages: dict[int, LargePage] = {}
        self._own: dict[tuple[int, int], dict[int, None]] = {}  # by owner and group: their pages that have holes
        self._open: list[dict[int, None]] = [{} for _ in carving.layers]  # all pages that have holes, by group
        # Of pages that are not idle, by group:
        self.num_holes = [0] * len(carving.layers)
        self.num_kept = [0] * len(carving.layers)

    # ---- questions ------------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return UNBOUNDED_PAGES if self.num_pages is None else self.num_pages - self.num_used

    def num_missing(self, num_blocks: Sequence[int], adopted: Sequence[Iterable[int]] = ()) -> int:
        """Free or idle large pages that it takes to hold so many further small pages of each group, and the kept ones
        at the places `adopted`, by group, before. O(adopted).
        """
        room = [holes + kept for holes, kept in zip(self.num_holes, self.num_kept, strict=True)]
        woken: set[int] = set()
        for group, places in enumerate(adopted):
            for place in places:
                number = place // self.carving.large
                if self._pages[number].num_held == 0 and number not in woken:
                    woken.add(number)
                    room[group] += self.carving.per_large[group]
                room[group] -= 1
        missing = (max(number - ready, 0) for number, ready in zip(num_blocks, room, strict=True))
        return len(woken) + self.carving.num_large(missing)

    def num_carved(self, num_blocks: Sequence[int]) -> list[int]:
        """By group, how many large pages to carve for so many further small pages: all that lack holes, while enough
        are free or idle for every group; else kept small pages must make way beside held ones.
        """
        per_large = self.carving.per_large
        least, most = [
            [-(-max(number - room, 0) // each) for number, room, each in zip(num_blocks, rooms, per_large, strict=True)]
            for rooms in (map(int.__add__, self.num_holes, self.num_kept), self.num_holes)
        ]
        num_spare = self.num_free + self.num_idle - sum(least)
        for group, number in enumerate(most):
            most[group] = min(number, least[group] + num_spare)
            num_spare -= most[group] - least[group]
        return most

    def has_room(self, num_blocks: Sequence[int], num_carved: Sequence[int]) -> bool:
        """Are there holes for so many small pages of each group, so many large ones carved for them?"""
        each = zip(num_blocks, num_carved, self.carving.per_large, self.num_holes, strict=True)
        return sum(num_carved) <= self.num_free and all(
            number - carved * per_large <= holes for number, carved, per_large, holes in each
        )

    def group_of(self, place: int) -> int:
        return self._page_of(place).group

    # ---- changes --------------------------------------------------------------------------------------------------

    def take(self, group: int, owner: int) -> int:
        """Takes a small page and returns the place that it begins at. The caller has made sure that there is one."""
        page = self._next_page(group, owner)
        slot = page.holes.pop()
        self._count(page, held=1, holes=-1)
        return page.number * self.carving.large + slot * self.carving.layers[group]

    def keep(self, place: int) -> int:
        """Nobody holds the small page at this place any more; its content stays. Returns its group."""
        page = self._page_of(place)
        self._count(page, held=-1, kept=1)
        return page.group

    def adopt(self, place: int) -> int:
        """Somebody holds the small page that was kept at this place. Returns its group."""
        page = self._page_of(place)
        self._count(page, held=1, kept=-1)
        return page.group

    def free(self, place: int) -> int:
        """The small page that was held at this place is a hole. Returns its group."""
        return self._free_slot(place, held=-1)

    def evict(self, place: int) -> int:
        """The same of one that was kept."""
        return self._free_slot(place, kept=-1)

    def _free_slot(self, place: int, held: int = 0, kept: int = 0) -> int:
        page = self._page_of(place)
        page.holes.append(place % self.carving.large // self.carving.layers[page.group])
        self._count(page, held, kept, holes=1)
        if not page.num_held and not page.num_kept:
            self._close(page)
        return page.group

    def _page_of(self, place: int) -> LargePage:
        return self._pages[place // self.carving.large]

    def _next_page(self, group: int, owner: int) -> LargePage:
        own = self._own.get((owner, group))
        if own:
            return self._pages[next(iter(own))]
        if self._open[group]:
            return self._pages[next(iter(self._open[group]))]
        return self._carve(group, owner)

    def _carve(self, group: int, owner: int) -> LargePage:
        """Takes a large page into use, all its small pages holes. It is idle until the first of them is held."""
        if self._free:
            number = self._free.pop()
        else:
            number = self._num_opened
            self._num_opened += 1
        assert self.num_pages is None or number < self.num_pages, "a page was promised that there is not"
        num_small = self.carving.per_large[group]
        page = self._pages[number] = LargePage(number, group, owner, [*reversed(range(num_small))])
        self.num_used += 1
        self.num_idle += 1
        return page

    def _close(self, page: LargePage) -> None:
        """All its small pages are holes: it serves any group again."""
        del self._pages[page.number]
        self._free.append(page.number)
        self.num_used -= 1
        self.num_idle -= 1

    def _count(self, page: LargePage, held: int = 0, kept: int = 0, holes: int = 0) -> None:
        """So many more of its small pages are held, and kept; its holes, so many more, are listed already."""
        group, was_idle = page.group, page.num_held == 0
        page.num_held += held
        page.num_kept += kept
        is_idle = page.num_held == 0
        if was_idle != is_idle:
            self.num_idle += 1 if is_idle else -1
            sign = -1 if is_idle else 1
            self.num_holes[group] += sign * (len(page.holes) - (holes if is_idle else 0))
            self.num_kept[group] += sign * (page.num_kept - (kept if is_idle else 0))
        elif not is_idle:
            self.num_holes[group] += holes
            self.num_kept[group] += kept
        self._show(page, bool(page.holes) and not is_idle)

    def _show(self, page: LargePage, has_room: bool) -> None:
        """Whether somebody may have one of its holes."""
        if (page.number in self._open[page.group]) == has_room:
            return
        if has_room:
            self._own.setdefault((page.owner, page.group), {})[page.number] = None
            self._open[page.group][page.number] = None
            return
        own = self._own[page.owner, page.group]
        del own[page.number]
        if not own:
            del self._own[page.owner, page.group]
        del self._open[page.group][page.number]

    def check_integrity(self, held: Sequence[Iterable[int]], kept: Iterable[int] = ()) -> None:
        """Proves that these places, those held by group, and the holes make up the pages in use. O(pool): for tests."""
        slots: dict[int, tuple[list[int], list[int]]] = {}
        found = [(place, group, 0) for group, places in enumerate(held) for place in places]
        found += [(place, self._page_of(place).group, 1) for place in kept]
        for place, group, which in found:
            number, offset = divmod(place, self.carving.large)
            assert self._pages[number].group == group, f"page {number} serves two groups"
            slots.setdefault(number, ([], []))[which].append(offset // self.carving.layers[group])
        assert slots.keys() == self._pages.keys(), "a large page is in use that nobody uses"
        counts = [(self.num_holes[group], self.num_kept[group]) for group in range(len(held))]
        counted = [(0, 0)] * len(held)
        for number, page in self._pages.items():
            own, others = slots[number]
            every, num_small = sorted([*own, *others, *page.holes]), self.carving.per_large[page.group]
            assert every == list(range(num_small)), f"page {number}: a small page twice or lost"
            assert (page.num_held, page.num_kept) == (len(own), len(others)), f"page {number}: counts are off"
            for known in (self._own.get((page.owner, page.group), {}), self._open[page.group]):
                assert (number in known) == bool(page.holes and own), f"page {number}: its holes are not known"
            if own:
                holes, num_kept = counted[page.group]
                counted[page.group] = holes + len(page.holes), num_kept + len(others)
        assert counts == counted, "counts are off"
        assert sorted([*self._pages, *self._free]) == list(range(self._num_opened)), "a large page is lost"
        assert self.num_used == len(self._pages), "counts are off"
        assert self.num_idle == sum(page.num_held == 0 for page in self._pages.values()), "counts are off"
