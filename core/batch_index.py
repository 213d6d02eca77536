"""The prefix index of a pool whose blocks are evicted in any order, many at a time."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.batch_eviction import FEW, Ints, view_of
from core.content import BlockKeys
from core.id_index import IdIndex
from core.numbered_text import ContentNumbers, NumberedText

_FIRST_ROOM: Final = 1024
_ROOT: Final = 0
_ONE = np.int32(1)  # a number of another kind than the column's would be ten times as slow


class BatchIndex(IdIndex):
    """As `LinkedIndex`, of ids, by the numbers of contents, which are never given up. All that is ever registered has
    one, though its own text is numbered only when a sequence ends: it holds all that is before it until then.

    29 bytes for each content that was ever met, whether or not it is held.
    """

    def __init__(self, num_ids: int) -> None:
        self.numbers = ContentNumbers(_ROOT + 1)
        self.contents: Ints = np.zeros(num_ids, dtype=np.int64)  # by id: the number of what it holds; 0: none
        self.num_orphans = 0
        self._num_losses = 0
        self._younger: dict[int, list[int]] = {}
        self._contents = self.contents.data  # this, and the like: where one is looked up
        self._room = _FIRST_ROOM
        self._oldest_of: Ints = np.full(_FIRST_ROOM, -1)  # by number: the block that has held it for longest; -1: none
        self._lost_of: Ints = np.full(_FIRST_ROOM, -1)  # by number: as which loss it was last evicted; -1: it never was
        self._before_of: Ints = np.zeros(_FIRST_ROOM, dtype=np.int64)  # by number: what it continues
        self._num_children_of = np.zeros(_FIRST_ROOM, dtype=np.int32)  # by number: blocks that hold what continues it
        self._has_younger_of = np.zeros(_FIRST_ROOM, dtype=np.bool_)  # by number: whether other blocks hold it, too
        self._look_again()
        self._oldest[_ROOT] = 0  # what begins a text continues this, which is never missing

    def _look_again(self) -> None:
        self._oldest, self._lost = self._oldest_of.data, self._lost_of.data
        self._before, self._num_children = self._before_of.data, self._num_children_of.data
        self._has_younger = self._has_younger_of.data

    # ---- numbers ----------------------------------------------------------------------------------------------------

    def text(self, keys: BlockKeys) -> NumberedText:
        first = self.numbers.num_numbers
        text = self.numbers.text(keys)
        if self.numbers.num_numbers > first:
            self._make_room(first)
            before = _ROOT
            for begin, end, shift in text.pieces(0, text.num_numbered):
                if begin + shift >= first:
                    self._before[begin + shift] = before
                before = end - 1 + shift
        return text

    def _make_room(self, first: int) -> None:
        """For the numbers from this one on: each continues the one before it, until more is known."""
        last = self.numbers.num_numbers
        if last > self._room:
            room, self._room = self._room, 2 * last
            self._oldest_of, self._lost_of = self._grown(self._oldest_of), self._grown(self._lost_of)
            self._before_of = self._grown(self._before_of)
            self._num_children_of = np.append(self._num_children_of, np.zeros(self._room - room, dtype=np.int32))
            self._has_younger_of = np.append(self._has_younger_of, np.zeros(self._room - room, dtype=np.bool_))
            self._look_again()
        self._oldest_of[first:last] = -1
        self._lost_of[first:last] = -1
        self._before_of[first:last] = np.arange(first - 1, last - 1)

    def _grown(self, column: Ints) -> Ints:
        grown = np.empty(self._room, dtype=np.int64)
        grown[: len(column)] = column
        return grown

    def number_own(self, text: NumberedText, last: int, table: array[int]) -> None:
        """What is its sequence's own of its first `last` blocks, all registered and in this table, gets numbers."""
        place, first = text.num_numbered, self.numbers.num_numbers
        if place >= last:
            return
        before = text.number(place - 1) if place else _ROOT
        self.numbers.extend(text, last)
        self._make_room(first)
        self._before[first] = before
        self._insert_all(first, view_of(table)[place:last])

    # ---- looking up -------------------------------------------------------------------------------------------------

    def leading(self, text: NumberedText, num_blocks: int) -> array[int]:
        found = array("q")
        for begin, end, shift in text.pieces(0, min(num_blocks, text.num_numbered)):
            if self._oldest[begin + shift] < 0:
                break
            held = self._oldest_of[begin + shift : end + shift]
            is_missing = held < 0
            first = int(is_missing.argmax())
            if is_missing[first]:
                found.frombytes(held[:first].tobytes())
                break
            found.frombytes(held.tobytes())
        return found

    def losses(self, text: NumberedText, first: int, last: int) -> list[int]:
        found: list[int] = []
        loss = -1
        for begin, end, shift in text.pieces(first, min(last, text.num_numbered)):
            is_held = self._oldest_of[begin + shift : end + shift] >= 0
            lost = self._lost_of[begin + shift : end + shift]
            if np.count_nonzero(is_held):
                causes = np.maximum.accumulate(np.where(is_held, -1, np.arange(end - begin)))
                lost = np.where(causes < 0, loss, lost[causes])
            num_lost = int((lost < 0).argmax())
            if lost[num_lost] < 0:
                found += lost[:num_lost].tolist()
                return found
            found += lost.tolist()
            loss = found[-1]
        return found

    # ---- coming and going -------------------------------------------------------------------------------------------

    def insert(self, text: NumberedText, first: int, last: int, ids: array[int]) -> None:
        """O(1) a block: an array operation for many new ones, of which each continues the one before."""
        for begin, end, shift in text.pieces(first, last):
            number = begin + shift
            if end - begin > FEW and not np.count_nonzero(self._oldest_of[number : end + shift] >= 0):
                self._insert_all(number, view_of(ids)[begin - first : end - first])
                continue
            for place in range(begin, end):
                self._insert_one(place + shift, ids[place - first])

    def _insert_all(self, first: int, ids: Ints) -> None:
        """Consecutive contents that no block holds."""
        last = first + len(ids)
        self.contents[ids] = np.arange(first, last)
        self._oldest_of[first:last] = ids
        num_children = self._num_children_of[first:last]
        self.num_orphans -= _sum(num_children)
        num_children[:-1] += 1
        self._add_child(self._before[first])

    def _insert_one(self, number: int, block_id: int) -> None:
        self._contents[block_id] = number
        self._add_child(self._before[number])
        if self._oldest[number] < 0:
            self._oldest[number] = block_id
            self.num_orphans -= self._num_children[number]
        else:
            self._younger.setdefault(number, []).append(block_id)
            self._has_younger[number] = True

    def _add_child(self, number: int) -> None:
        self._num_children[number] += 1
        if self._oldest[number] < 0:
            self.num_orphans += 1

    def evict(self, ids: array[int]) -> None:
        """These lose their content; the next oldest with the same content serve from now on."""
        first_loss = self._num_losses
        self._num_losses += len(ids)
        if len(ids) <= FEW:
            for loss, block_id in enumerate(ids, first_loss):
                self._lost[self._contents[block_id]] = loss
                self.remove(block_id)
            return
        each = view_of(ids)
        numbers, losses = self.contents[each], np.arange(first_loss, self._num_losses)
        if self._younger:
            have_younger = self._has_younger_of[numbers]
            if np.count_nonzero(have_younger):
                for place in have_younger.nonzero()[0].tolist():
                    self._lost[int(numbers[place])] = first_loss + place
                    self.remove(ids[place])
                each, numbers, losses = each[~have_younger], numbers[~have_younger], losses[~have_younger]
        self._evict_last(each, numbers, losses)

    def _evict_last(self, ids: Ints, numbers: Ints, losses: Ints) -> None:
        """Nothing that they hold is in any other block."""
        before = self._before_of[numbers]
        self._lost_of[numbers] = losses
        self.contents[ids] = 0
        num_orphans_gone = np.count_nonzero(self._oldest_of[before] < 0)
        np.subtract.at(self._num_children_of, before, _ONE)
        self._oldest_of[numbers] = -1
        self.num_orphans += _sum(self._num_children_of[numbers]) - int(num_orphans_gone)

    def remove(self, block_id: int) -> None:
        """This block loses what it holds, if that has a number."""
        number = self._contents[block_id]
        if not number:
            return
        self._contents[block_id] = 0
        before = self._before[number]
        self._num_children[before] -= 1
        if self._oldest[before] < 0:
            self.num_orphans -= 1
        younger = self._younger.get(number)
        if younger is None:
            self._oldest[number] = -1
            self.num_orphans += self._num_children[number]
            return
        if self._oldest[number] == block_id:
            self._oldest[number] = younger.pop(0)
        else:
            younger.remove(block_id)
        if not younger:
            del self._younger[number]
            self._has_younger[number] = False


def _sum(counts: NDArray[np.int32]) -> int:
    """In their own kind, for they are blocks of a pool: a wider one takes four times as long."""
    return int(np.add.reduce(counts, dtype=np.int32))
