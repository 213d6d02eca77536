"""Replays recorded operations on SGLang's radix tree on ours and compares every result.

Format: JSON lines, a header (`policy`, `page_size`, `class`), lines that name a sequence of tokens, and one line per
operation with its arguments and results, the tree's shape after it as a checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from core.errors import InputError
from core.interfaces import LeafRanking, PolicyEnv
from core.radix_tree import RadixNode, RadixTree, SplitCreated
from kvtwin.parity.result import Fields, ParityResult, first_difference
from policies.eviction.radix import RadixFIFO, RadixFILO, RadixLFU, RadixLRU, RadixMRU, RadixPriority, RadixSLRU

T = TypeVar("T")

RANKINGS: Mapping[str, type[LeafRanking]] = {
    "lru": RadixLRU,
    "mru": RadixMRU,
    "fifo": RadixFIFO,
    "filo": RadixFILO,
    "lfu": RadixLFU,
    "priority": RadixPriority,
    "slru": RadixSLRU,
}
SPLITS = {"UnifiedTreeCore": SplitCreated.INHERITED, "RadixCache": SplitCreated.FRESH}
_ARGUMENTS = {"i", "op", "seq", "n", "slots", "prio", "inserted"}


def compare(path: Path, header: Fields, records: list[Fields]) -> ParityResult:
    """Replays one log. Raises InputError for what cannot be replayed, and for an operation that cannot be."""
    replay = _Replay(path, header)
    num_compared = 0
    for record in records:
        if "op" not in record:
            replay.sequences[record["seq"]] = record["tokens"]
            continue
        difference = first_difference(_results(record), replay.results(record))
        if difference is not None:
            return ParityResult(path, num_compared, f"operation {record['i']} ({record['op']}): {difference}")
        num_compared += 1
    if not num_compared:
        raise InputError(f"{path}: no operation in it; expected lines with `op`")
    return ParityResult(path, num_compared, None)


def _results(record: Fields) -> Fields:
    """What the record says came of its operation. A lock's `node` is what it was called with."""
    is_argument = _ARGUMENTS | ({"node"} if record["op"] in ("lock", "unlock") else set())
    return {name: value for name, value in record.items() if name not in is_argument}


class _Replay:
    """A tree whose pages are tuples of tokens and whose slots are tuples of token slots, driven by the log's lines."""

    def __init__(self, path: Path, header: Fields) -> None:
        self.sequences: dict[str, list[int]] = {}
        self._path = path
        self._page_size: int = header["page_size"]
        if self._page_size < 1:
            raise InputError(f"{path}: page_size {self._page_size}; expected at least 1")
        self._tells_deltas = header["class"] == "RadixCache"
        ranking = self._known(RANKINGS, header["policy"], "policy")(PolicyEnv(lambda: 0, None, self._page_size))
        self._tree: RadixTree[tuple[int, ...]] = RadixTree(
            ranking.rank, self._known(SPLITS, header["class"], "class of tree")
        )
        self._nodes = {0: self._tree.root}
        self._operations: Mapping[str, Callable[[Fields], Fields]] = {
            "match": self._match,
            "insert": self._insert,
            "evict": self._evict,
            "lock": self._lock,
            "unlock": self._unlock,
        }

    def _known(self, known: Mapping[str, T], name: str, what: str) -> T:
        if name not in known:
            raise InputError(f"{self._path}: {what} {name!r} cannot be replayed; expected one of {', '.join(known)}")
        return known[name]

    def results(self, record: Fields) -> Fields:
        """Carries one operation out and says what came of it, in the log's own fields."""
        results = self._known(self._operations, record["op"], f"operation {record['i']}:")(record)
        return results | {
            "evictable": self._tree.num_evictable_pages * self._page_size,
            "protected": self._tree.num_protected_pages * self._page_size,
            "tree": zlib.crc32("".join(map(self._describe, _in_order_of_pages(self._tree.root))).encode()),
        }

    def _describe(self, node: RadixNode[tuple[int, ...]]) -> str:
        priority = 0 if node is self._tree.root else node.priority
        depth, length = node.depth_pages * self._page_size, node.num_pages * self._page_size
        return f"{node.node_id},{depth},{length},{node.num_locks},{node.num_hits},{priority};"

    # ---- operations -----------------------------------------------------------------------------------------------

    def _match(self, record: Fields) -> Fields:
        num_before = self._tree.num_nodes_created
        found = self._tree.match(self._pages(self._key(record)))
        self._learn(found.node)
        num_created = self._tree.num_nodes_created - num_before
        return {"len": found.num_pages * self._page_size, "node": found.node.node_id, "split": num_created}

    def _insert(self, record: Fields) -> Fields:
        pages = self._pages(self._key(record))
        slots = self._pages([slot for first, end in record["slots"] for slot in range(first, end)])
        if len(slots) < len(pages):
            raise InputError(f"{self._path}: operation {record['i']}: fewer slots than tokens")
        num_before = self._tree.num_nodes_created
        found = self._tree.insert(pages, slots, record["prio"], record["inserted"] // self._page_size)
        self._learn(found.node)
        created = list(range(num_before, self._tree.num_nodes_created))
        return {"len": found.num_pages * self._page_size, "node": found.node.node_id, "new": created}

    def _evict(self, record: Fields) -> Fields:
        evicted = self._tree.evict(-(-record["n"] // self._page_size))
        rows = [
            [node.node_id, node.depth_pages * self._page_size, node.num_pages * self._page_size, _ranges(node)]
            for node in evicted
        ]
        return {"got": sum(length for _, _, length, _ in rows), "nodes": rows}

    def _lock(self, record: Fields) -> Fields:
        return self._with_delta(record, self._tree.lock)

    def _unlock(self, record: Fields) -> Fields:
        return self._with_delta(record, self._tree.unlock)

    def _with_delta(self, record: Fields, act: Callable[[RadixNode[tuple[int, ...]]], None]) -> Fields:
        num_before = self._tree.num_evictable_pages
        try:
            act(self._nodes[record["node"]])
        except KeyError:
            raise InputError(f"{self._path}: operation {record['i']}: no node {record['node']} in the tree") from None
        except ValueError as error:
            raise InputError(f"{self._path}: operation {record['i']}: {error}") from None
        delta = (self._tree.num_evictable_pages - num_before) * self._page_size
        return {"delta": delta} if self._tells_deltas else {}

    # ---- names ----------------------------------------------------------------------------------------------------

    def _key(self, record: Fields) -> list[int]:
        return self.sequences[record["seq"]][: record["n"]]

    def _pages(self, tokens: list[int]) -> list[tuple[int, ...]]:
        """Whole pages only: what is left over at the end is not cached."""
        size = self._page_size
        return [tuple(tokens[first : first + size]) for first in range(0, len(tokens) // size * size, size)]

    def _learn(self, node: RadixNode[tuple[int, ...]]) -> None:
        """Remembers by its id where a walk ended, and the node that a split may have made on the way."""
        while node.node_id not in self._nodes and node.parent is not None:
            self._nodes[node.node_id] = node
            node = node.parent


def _in_order_of_pages(root: RadixNode[tuple[int, ...]]) -> Iterator[RadixNode[tuple[int, ...]]]:
    """All nodes, parents before children, children by their first pages."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(child for _, child in sorted(node.children.items(), reverse=True))


def _ranges(node: RadixNode[tuple[int, ...]]) -> list[list[int]]:
    """The node's slots as half-open ranges."""
    ranges: list[list[int]] = []
    for slot in (slot for page in node.slots for slot in page):
        if ranges and ranges[-1][1] == slot:
            ranges[-1][1] += 1
        else:
            ranges.append([slot, slot + 1])
    return ranges
