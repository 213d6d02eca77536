"""S3-FIFO for many blocks at a time."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from core.batch_eviction import FEW, BatchEviction, Ints, array_of, largest, view_of
from core.id_line import IdLine
from policies.eviction.ghost_batches import GhostBatches

MOST_USES: Final = 3  # two bits
# Marks beside the uses.
_IN_MAIN: Final = 4
_IS_QUEUED: Final = 8
_IS_AWAKE: Final = 16
_NUM_MARKS: Final = 32
_MORE_THAN_ENOUGH: Final = 64


class S3FIFOBatches(BatchEviction):
    """Decides as `policies.eviction.s3fifo.S3FIFO`, which says how: treats at once what one queue gives up before the
    other has its turn.
    """

    asks_incoming = True

    def __init__(
        self, contents: Ints, small_share_blocks: int, most_ghosts: int, threshold: int, is_warming_up: bool
    ) -> None:
        self._contents_of = contents
        self._contents = contents.data  # this, and the like: where one is looked up
        self._small_share = small_share_blocks
        self._threshold = threshold
        self._is_warming_up = is_warming_up
        self._ghosts = GhostBatches(most_ghosts)
        self._small, self._main = IdLine(), IdLine()
        self._num_small = 0  # resident, referenced ones included
        self._marks_of = np.zeros(len(contents), dtype=np.int8)  # by id
        self._marks = self._marks_of.data
        # By mark: what becomes of it at the head of a queue, and whether it stays among the queued.
        marks = np.arange(_NUM_MARKS, dtype=np.int8)
        uses = marks & MOST_USES
        self._is_promoted = uses >= threshold
        self._is_kept = uses > 0
        self._least_kept = _IS_QUEUED + threshold  # a block of the small queue is a victim by a lesser mark
        self._after_small = np.where(self._is_promoted, marks & _IS_AWAKE | _IN_MAIN | _IS_QUEUED, marks & ~_IS_QUEUED)
        self._after_main = np.where(self._is_kept, marks - 1, marks & ~_IS_QUEUED)

    def enter(self, ids: array[int]) -> None:
        if len(ids) <= FEW and not self._is_warming_up and self._are_new(ids):
            self._num_small += len(ids)
            for block_id in ids:
                self._marks[block_id] = _IS_QUEUED | _IS_AWAKE
                self._small.append_one(block_id)
            return
        each = view_of(ids)
        came_back = self._ghosts.pick(self._contents_of[each])
        if came_back is None and not self._is_warming_up:
            self._join_small(each)
            return
        joins_main = np.zeros(len(each), dtype=bool)
        if came_back is not None:
            joins_main[came_back] = True
        if self._is_warming_up:
            joins_main |= np.cumsum(~joins_main) > self._small_share - self._num_small
        in_main = each[joins_main]
        self._marks_of[in_main] = _IN_MAIN | _IS_QUEUED | _IS_AWAKE
        self._main.append(in_main)
        self._join_small(each[~joins_main])

    def _are_new(self, ids: array[int]) -> bool:
        """Are they no ghosts?"""
        for block_id in ids:
            number = self._contents[block_id]
            if number and number in self._ghosts:
                return False
        return True

    def _join_small(self, ids: Ints) -> None:
        self._num_small += len(ids)
        self._marks_of[ids] = _IS_QUEUED | _IS_AWAKE
        self._small.append(ids)

    def hit(self, ids: Ints) -> None:
        marks = self._marks_of[ids]
        self._marks_of[ids] = marks + (marks & MOST_USES < MOST_USES)

    def wake(self, ids: Ints) -> None:
        self._marks_of[ids] |= _IS_AWAKE

    def rest(self, ids: Ints) -> None:
        marks = self._marks_of[ids]
        has_left = (marks & _IS_QUEUED) == 0
        self._marks_of[ids] = marks & ~_IS_AWAKE | _IS_QUEUED
        if np.count_nonzero(has_left):
            is_in_main = (marks & _IN_MAIN) != 0
            self._main.append(ids[has_left & is_in_main])
            self._small.append(ids[has_left & ~is_in_main])

    def choose(self, num_blocks: int, incoming: Ints | None) -> array[int]:
        self._is_warming_up = False
        victims = array("q")
        small, main = self._small, self._main
        while len(victims) < num_blocks:
            num_left = num_blocks - len(victims)
            if small.length > 0 and (self._num_small >= self._small_share or not main.length):
                if num_left <= FEW:
                    self._pass_one_of_small(victims, incoming)
                else:
                    self._pass_small(num_left, victims, incoming)
            elif num_left <= FEW:
                self._pass_one_of_main(victims)
            else:
                victims += self._pass_main(num_left)
        return victims

    def foresee(self, num_blocks: int) -> array[int]:
        """What enters joins the end of the small queue: as many as that gives up before the main queue could have its
        turn.
        """
        victims = array("q")
        small = self._small
        if not self._is_warming_up:
            while len(victims) < num_blocks and small.length and self._num_small >= self._small_share:
                self._pass_one_of_small(victims, None)
        return victims

    def _pass_small(self, most: int, victims: array[int], incoming: Ints | None) -> None:
        """As many of the small queue's oldest as leave before the main queue has its turn, and no more victims than
        that.
        """
        if self._evict_first(most, victims, incoming):
            return
        ids = self._small.first(most + most // 2 + _MORE_THAN_ENOUGH)
        marks = self._marks_of[ids]
        is_promoted = self._is_promoted.take(marks)
        has_gone = is_promoted | ((marks & _IS_AWAKE) == 0)
        if self._num_small >= self._small_share:
            last_ones = has_gone.nonzero()[0][self._num_small - self._small_share :]
        else:  # nothing is in the main queue
            last_ones = is_promoted.nonzero()[0]
        evicted = (has_gone & ~is_promoted).nonzero()[0]
        num_passed = int(last_ones[0]) + 1 if len(last_ones) else len(ids)
        if len(evicted) >= most:
            num_passed = min(num_passed, int(evicted[most - 1]) + 1)
        evicted = ids[evicted[: evicted.searchsorted(num_passed)]]
        ids, marks, is_promoted = ids[:num_passed], marks[:num_passed], is_promoted[:num_passed]
        self._small.drop(num_passed)
        self._num_small -= int(np.count_nonzero(has_gone[:num_passed]))
        self._marks_of[ids] = self._after_small.take(marks)
        self._main.append(ids[is_promoted])
        if len(evicted):
            self._evict(evicted, victims, incoming)

    def _evict_first(self, most: int, victims: array[int], incoming: Ints | None) -> bool:
        """The small queue's oldest, if so many are all victims, as they mostly are."""
        ids = self._small.first(most)
        if (
            len(ids) < most
            or self._num_small - self._small_share < most
            or largest(self._marks_of[ids]) >= self._least_kept
        ):
            return False
        self._small.drop(most)
        self._num_small -= most
        self._evict(ids, victims, incoming)
        return True

    def _evict(self, ids: Ints, victims: array[int], incoming: Ints | None) -> None:
        first, last = len(victims), len(victims) + len(ids)
        self._ghosts.add(self._contents_of[ids], None if incoming is None else incoming[first:last])
        victims += array_of(ids)

    def _pass_main(self, most: int) -> array[int]:
        """As many of the main queue's oldest, up to the last of so many victims. Returns those."""
        ids = self._main.first(most + most // 2 + _MORE_THAN_ENOUGH)
        marks = self._marks_of[ids]
        victims = (marks & (MOST_USES | _IS_AWAKE) == 0).nonzero()[0][:most]
        if len(victims) == most:
            num_passed = int(victims[-1]) + 1
            ids, marks = ids[:num_passed], marks[:num_passed]
        gone = array_of(ids[victims])  # before the line moves its ids to make room for those that stay
        self._main.drop(len(ids))
        self._marks_of[ids] = self._after_main.take(marks)
        self._main.append(ids[self._is_kept.take(marks)])
        return gone

    def _pass_one_of_small(self, victims: array[int], incoming: Ints | None) -> None:
        block_id = self._small.pop()
        mark = self._marks[block_id]
        if mark & MOST_USES >= self._threshold:
            self._num_small -= 1
            self._marks[block_id] = mark & _IS_AWAKE | _IN_MAIN | _IS_QUEUED
            self._main.append_one(block_id)
            return
        self._marks[block_id] = mark & ~_IS_QUEUED
        if not mark & _IS_AWAKE:
            self._num_small -= 1
            self._ghosts.add_one(self._contents[block_id], 0 if incoming is None else int(incoming[len(victims)]))
            victims.append(block_id)

    def _pass_one_of_main(self, victims: array[int]) -> None:
        block_id = self._main.pop()
        mark = self._marks[block_id]
        if mark & MOST_USES:
            self._marks[block_id] = mark - 1
            self._main.append_one(block_id)
            return
        self._marks[block_id] = mark & ~_IS_QUEUED
        if not mark & _IS_AWAKE:
            victims.append(block_id)

    def dropped(self, ids: array[int]) -> None:
        each = view_of(ids)
        self._small.remove(ids)
        self._main.remove(ids)
        self._num_small -= int(np.count_nonzero((self._marks_of[each] & _IN_MAIN) == 0))
        self._marks_of[each] = 0
