"""A radix tree of cached sequences: shared prefixes once, split where texts part, evicted by whole leaves.

The rules are those of SGLang 0.5.23's tree (full attention); `tests/test_parity_sglang.py` replays its recorded
operations. A text is a sequence of *pages*, anything hashable; what is stored for each page (its *slot*) is the
caller's affair.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from core.candidate_heap import CandidateHeap

SlotT = TypeVar("SlotT")
_AFTER_ALL = 1 << 62  # a heap entry's number, above that of any entry so far


class SplitCreated(Enum):
    """When the upper half of a split node counts as created."""

    INHERITED = "inherited"  # as the node was: SGLang's unified tree, its default since 0.5.23
    FRESH = "fresh"  # at the split: SGLang's older RadixCache


@dataclass(slots=True, eq=False)
class RadixNode(Generic[SlotT]):
    """A run of pages below its parent's, with a slot for each. Times are ticks of the tree's own counter.

    `num_hits` counts the insertions that passed the node, once a request; the greatest `priority` among them stays.
    """

    node_id: int
    parent: RadixNode[SlotT] | None
    pages: list[Hashable]
    slots: list[SlotT]
    depth_pages: int  # pages above it
    priority: int
    last_access: int
    created: int
    num_hits: int = 0
    num_locks: int = 0
    children: dict[Hashable, RadixNode[SlotT]] = field(default_factory=dict)  # by the first page of each

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def end_pages(self) -> int:
        """Pages from the root to the end of its run."""
        return self.depth_pages + len(self.pages)


class Found(NamedTuple, Generic[SlotT]):
    """How many leading pages of a text are in the tree, and the node where they end (the root for none)."""

    num_pages: int
    node: RadixNode[SlotT]


class RadixTree(Generic[SlotT]):
    """`rank` orders the leaves that may go: least first, asked when a leaf becomes one or is touched.

    Looking a text up touches what it passes and splits the node in which it ends, so that a lock never holds more than
    was matched. Every walk is O(pages of the text); an eviction O(log leaves) beside the pages it frees.
    """

    def __init__(
        self, rank: Callable[[RadixNode[SlotT]], Any], split_created: SplitCreated = SplitCreated.INHERITED
    ) -> None:
        self.num_nodes_created = 0
        self.num_evictable_pages = 0  # of nodes that are not locked, leaves or not
        self.num_protected_pages = 0
        self._rank = rank
        self._split_created = split_created
        self._clock = 0
        self._leaves: CandidateHeap[RadixNode[SlotT]] = CandidateHeap()
        self.root: RadixNode[SlotT] = self._new_node(None, [], [], 0, 0)
        self.root.num_locks = 1

    # ---- look-up and insertion ------------------------------------------------------------------------------------

    def match(self, pages: Sequence[Hashable]) -> Found[SlotT]:
        """The longest prefix of `pages` in the tree. Touches every node on the way, also one that matches in part."""
        if not pages:
            return Found(0, self.root)
        path = self._walk(pages)
        self._reconsider(path[-1])
        return Found(path[-1].end_pages, path[-1])

    def insert(
        self, pages: Sequence[Hashable], slots: Sequence[SlotT], priority: int = 0, num_counted_pages: int = 0
    ) -> Found[SlotT]:
        """Adds what is not there yet as one leaf. Returns how much was there already, and the node where `pages` end.

        `slots` go with `pages`; those of pages that were there are not stored and stay the caller's. Nodes that end
        within the first `num_counted_pages` have counted this request before.
        """
        path = self._walk(pages)
        for node in path[1:]:
            node.priority = max(node.priority, priority)
            node.num_hits += node.end_pages > num_counted_pages
        node = path[-1]
        num_found = node.end_pages
        if num_found < len(pages):
            node = self._add_leaf(node, pages[num_found:], slots[num_found : len(pages)], priority)
            node.num_hits = int(node.end_pages > num_counted_pages)
        self._reconsider(node)
        return Found(num_found, node)

    def _walk(self, pages: Sequence[Hashable]) -> list[RadixNode[SlotT]]:
        """The nodes from the root to where `pages` leave the tree, touched; one that matched in part was split."""
        now = self._tick()
        node = self.root
        node.last_access = now
        path = [node]
        num_found = 0
        while num_found < len(pages) and pages[num_found] in node.children:
            node = node.children[pages[num_found]]
            node.last_access = now
            num_common = _num_common(node.pages, pages, num_found)
            num_found += num_common
            if num_common < len(node.pages):
                path.append(self._split(node, num_common))
                break
            path.append(node)
        return path

    def _split(self, lower: RadixNode[SlotT], num_pages: int) -> RadixNode[SlotT]:
        """A new node takes the first `num_pages` of `lower`, which keeps its identity and all else."""
        pages, slots = lower.pages[:num_pages], lower.slots[:num_pages]
        upper = self._new_node(lower.parent, pages, slots, lower.depth_pages, lower.priority)
        if self._split_created is SplitCreated.INHERITED:
            upper.created = lower.created
        upper.num_hits, upper.num_locks = lower.num_hits, lower.num_locks
        lower.parent, lower.pages, lower.slots = upper, lower.pages[num_pages:], lower.slots[num_pages:]
        lower.depth_pages += num_pages
        upper.children[lower.pages[0]] = lower
        self._reconsider(lower)
        return upper

    def _add_leaf(
        self, parent: RadixNode[SlotT], pages: Sequence[Hashable], slots: Sequence[SlotT], priority: int
    ) -> RadixNode[SlotT]:
        self._leaves.discard(parent)
        self.num_evictable_pages += len(pages)
        return self._new_node(parent, list(pages), list(slots), parent.end_pages, priority)

    def _new_node(
        self,
        parent: RadixNode[SlotT] | None,
        pages: list[Hashable],
        slots: list[SlotT],
        depth_pages: int,
        priority: int,
    ) -> RadixNode[SlotT]:
        assert len(pages) == len(slots), "a slot for every page"
        last_access, created = self._tick(), self._tick()
        node = RadixNode(self.num_nodes_created, parent, pages, slots, depth_pages, priority, last_access, created)
        self.num_nodes_created += 1
        if parent is not None:
            parent.children[pages[0]] = node
        return node

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    # ---- locks and eviction ---------------------------------------------------------------------------------------

    def lock(self, node: RadixNode[SlotT]) -> None:
        """Keeps `node` and all above it from eviction, until `unlock`. Locks count."""
        for held in _upwards(node):
            if held.num_locks == 0:
                self._leaves.discard(held)
                self.num_evictable_pages -= len(held.pages)
                self.num_protected_pages += len(held.pages)
            held.num_locks += 1

    def unlock(self, node: RadixNode[SlotT]) -> None:
        """Takes one lock back. Raises ValueError where there is none."""
        for held in _upwards(node):
            if held.num_locks == 0:
                raise ValueError(f"node {held.node_id} is not locked")
            held.num_locks -= 1
            if held.num_locks == 0:
                self.num_evictable_pages += len(held.pages)
                self.num_protected_pages -= len(held.pages)
                self._reconsider(held)

    def evict(self, num_pages: int) -> list[RadixNode[SlotT]]:
        """Removes whole leaves until `num_pages` are gone, or nothing more may go. Returns them in order.

        The last may be longer than was wanted. A parent that is left without children is a candidate at once.
        """
        evicted = []
        while num_pages > 0 and self._leaves:
            node = self._leaves.pop()
            parent = node.parent
            assert parent is not None
            del parent.children[node.pages[0]]
            self.num_evictable_pages -= len(node.pages)
            num_pages -= len(node.pages)
            evicted.append(node)
            self._reconsider(parent)
        return evicted

    def _reconsider(self, node: RadixNode[SlotT]) -> None:
        """Asks for the rank of `node` if it may be evicted."""
        if not node.children and not node.num_locks:
            self._leaves.put(node, self._rank(node))

    # ---- for tests and parity -------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[RadixNode[SlotT]]:
        """All nodes, parents before children."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def eviction_order(self) -> list[RadixNode[SlotT]]:
        """The nodes in the order in which `evict` would remove them now. O(n log n)."""
        heap: list[Any] = self._leaves.ranked()
        num_children: dict[RadixNode[SlotT], int] = {}
        order: list[RadixNode[SlotT]] = []
        while heap:
            node = heapq.heappop(heap)[2]
            order.append(node)
            parent = node.parent
            left = num_children[parent] = num_children.get(parent, len(parent.children)) - 1
            if left == 0 and not parent.num_locks:
                heapq.heappush(heap, (self._rank(parent), _AFTER_ALL + len(order), parent))
        return order

    def check_integrity(self) -> None:
        """Proves the shape, the locks and the sums. O(pages)."""
        num_evictable = num_protected = 0
        for node in self.nodes():
            for page, child in node.children.items():
                assert child.parent is node
                assert child.pages, f"node {child.node_id} is empty"
                assert child.pages[0] == page, f"node {child.node_id} is under another page than its first"
                assert len(child.slots) == len(child.pages)
                assert child.depth_pages == node.end_pages
            is_candidate = not node.children and not node.num_locks
            assert (node in self._leaves) == is_candidate, f"node {node.node_id}: candidate {not is_candidate}"
            if node is not self.root:
                num_below = sum(child.num_locks for child in node.children.values())
                assert node.num_locks >= num_below, f"node {node.node_id}: {num_below} locks below it"
                num_protected += len(node.pages) if node.num_locks else 0
                num_evictable += 0 if node.num_locks else len(node.pages)
        sums = (self.num_evictable_pages, self.num_protected_pages)
        assert sums == (num_evictable, num_protected), f"sums are off: {sums}, not {(num_evictable, num_protected)}"


def _upwards(node: RadixNode[SlotT]) -> Iterator[RadixNode[SlotT]]:
    """From `node` up to, not including, the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def _num_common(run: list[Hashable], pages: Sequence[Hashable], start: int) -> int:
    """How many leading items of `run` equal those of `pages` from `start` on."""
    end = start + len(run)
    if pages[start:end] == run:
        return len(run)
    num_common = 0
    for ours, theirs in zip(run, pages[start:end], strict=False):
        if ours != theirs:
            break
        num_common += 1
    return num_common
