"""Depth first over the cached prefixes, the busiest branch first (SGLang's `dfs-weight`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.interfaces import BlockKey, QueuePolicy, SchedulerView
from core.request import Request


@dataclass(slots=True, eq=False)
class _Node:
    """A cached block, as the end of a prefix: how many waiting requests go through it, and who ends here."""

    weight: int = 0
    ending: list[Request] = field(default_factory=list)
    children: dict[BlockKey, _Node] = field(default_factory=dict)


class DFSWeight(QueuePolicy):
    """Requests in the order of a depth-first walk over the cached prefixes that they match, heaviest child first.

    A prefix weighs what waits below it; those that end at a node follow those that go deeper. So whoever shares a
    prefix runs together. Ties go to the branch whose first request came first. Re-sorted in every step in which
    somebody could be admitted: O(cached blocks of all that wait). SGLang 0.5.9, `schedule_policy.py`, read; a cache
    that is as big as the longest request makes the order optimal for a fixed set of requests (SGLang, NeurIPS'24).
    """

    def key(self, request: Request) -> Any:
        return request.queue_position

    def rerank(self, heads: Sequence[Request], view: SchedulerView) -> Iterable[Request]:
        if not view.prefix_caching:
            return heads
        root = _Node()
        for request in heads:
            node = root
            for index in range(view.num_cached_tokens(request) // self.env.block_size_tokens):
                node = node.children.setdefault(request.keys.key(index), _Node())
                node.weight += 1
            node.ending.append(request)
        return _depth_first(root)


def _depth_first(root: _Node) -> Iterator[Request]:
    """Children before the node's own requests. Prefixes may be thousands of blocks deep: no recursion."""
    stack = [(root, False)]
    while stack:
        node, is_open = stack.pop()
        if is_open:
            yield from node.ending
            continue
        stack.append((node, True))
        by_weight = sorted(node.children.values(), key=lambda child: -child.weight)
        stack += [(child, False) for child in reversed(by_weight)]
