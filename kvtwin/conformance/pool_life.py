"""Random lives of a block pool: tables come, adopt what is cached, take the rest, publish it, and go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from core.block_pool import BlockPool, FreeOrder
from core.decision_log import DecisionLog
from core.errors import InputError
from core.interfaces import Block, EvictionPolicy
from core.leaf_first import LeafFirst
from core.linked_index import LinkedIndex
from core.prefix_index import HashIndex
from core.units import PS_PER_S
from kvtwin.conformance.eviction_guard import ORDER, guarded
from kvtwin.conformance.fault import PolicyFault
from kvtwin.conformance.line_meter import MOST_LINES_A_CALL, LineMeter
from kvtwin.conformance.subject import Subject

MADE = "can be made for any pool"
SAME = "same seed and history, same victims"
NUM_TEXTS = 3
LONGEST_TEXT_BLOCKS = 5

Chain = tuple[int, int]  # which text, and how deep in it: the key of a block


class Act(Enum):
    TAKE = "takes"  # blocks without content, as decodes do
    PREFILL = "asks for"
    PUBLISH = "publishes"
    TAKE_BACK = "takes back"
    END = "ends"


class Operation(NamedTuple):
    """`which` chooses the text, or one of the tables there are; operations that find nothing to do do nothing."""

    act: Act
    which: int = 0
    num_blocks: int = 1
    readmission: bool = False

    def __str__(self) -> str:
        blocks = "1 block" if self.num_blocks == 1 else f"{self.num_blocks} blocks"
        if self.act is Act.TAKE:
            return f"a request takes {blocks} without content"
        if self.act is Act.PREFILL:
            how = "a readmitted request" if self.readmission else "a request"
            return f"{how} asks for text {self.which % NUM_TEXTS}, {blocks}: adopts what is cached, takes the rest"
        if self.act is Act.PUBLISH:
            return f"table {self.which} publishes its blocks without content as text {self.num_blocks % NUM_TEXTS}"
        if self.act is Act.TAKE_BACK:
            return f"table {self.which} takes its publications back"
        return f"table {self.which} ends: its blocks are released, last to first"

    def simpler(self) -> list[Operation]:
        """The same with smaller numbers, simplest first."""
        plain = self._replace(readmission=False)
        return [
            plain._replace(which=which, num_blocks=number)
            for number in range(1, self.num_blocks + 1)
            for which in range(self.which + 1)
            if (which, number, False) != self[1:]
        ]


def random_operations(number: int, source: random.Random) -> list[Operation]:
    acts = source.choices(list(Act), weights=(3, 5, 1, 1, 4), k=number)
    return [
        Operation(act, source.randrange(6), source.randint(1, LONGEST_TEXT_BLOCKS), source.random() < 0.3)
        for act in acts
    ]


@dataclass(frozen=True)
class PoolCase:
    """The pool that a life takes place in."""

    num_blocks: int | None
    free_order: FreeOrder
    leaf_first: bool
    seed: int

    def __str__(self) -> str:
        size = "unbounded" if self.num_blocks is None else self.num_blocks
        leaf = ", leaf_first" if self.leaf_first else ""
        return f"pool.num_blocks={size}, pool.free_order={self.free_order.value}{leaf}, seed={self.seed}"


class PoolLife:
    """Two pools live the same life. Whatever the second decides otherwise is no function of seed and history."""

    def __init__(self, subject: Subject, case: PoolCase) -> None:
        self._now_ps = 0
        self._case = case
        self._tables: list[list[int]] = []  # block ids
        self._guards = []
        self._pools = []
        for _ in range(2):
            policy = self._made(subject, case.num_blocks)
            guard = guarded(policy, LineMeter(MOST_LINES_A_CALL))
            self._guards.append(guard)
            self._pools.append(_pool(guard, case))

    def _made(self, subject: Subject, num_blocks: int | None) -> Any:
        try:
            return subject.make(lambda: self._now_ps, num_blocks)
        except InputError as error:
            raise PolicyFault(MADE, str(error)) from error

    def apply(self, operation: Operation) -> None:
        """Raises PolicyFault where the policy breaks a promise."""
        self._now_ps += PS_PER_S
        if operation.act is Act.TAKE:
            self._take_blank(operation.num_blocks)
        elif operation.act is Act.PREFILL:
            self._prefill(operation.which % NUM_TEXTS, operation.num_blocks, operation.readmission)
        elif self._tables:
            number = operation.which % len(self._tables)
            if operation.act is Act.PUBLISH:
                self._publish(self._tables[number], operation.num_blocks % NUM_TEXTS)
            elif operation.act is Act.TAKE_BACK:
                self._take_back(self._tables[number])
            else:
                self._end(self._tables.pop(number))

    def drain(self) -> None:
        """Everybody goes, and every block comes out exactly once."""
        while self._tables:
            self._end(self._tables.pop())
        if self._case.num_blocks is not None:
            self._take(self._case.num_blocks, [])

    def _take_blank(self, number: int) -> None:
        number = min(number, self._pools[0].num_available)
        if number == 0:
            return
        is_foreseen = self._case.num_blocks is not None and not self._case.leaf_first and self._guards[0].tells_order()
        foreseen = self._pools[0].free_queue()[:number] if is_foreseen else None
        taken = self._take(number, [])
        if foreseen is not None and taken != foreseen:
            raise PolicyFault(ORDER, f"eviction_order foretold blocks {foreseen}, then {taken} went")
        self._tables.append(taken)

    def _take(self, number: int, incoming: Sequence[Chain]) -> list[int]:
        ids = [[block.block_id for block in pool.take(number, 0, incoming)] for pool in self._pools]
        if ids[0] != ids[1]:
            raise PolicyFault(SAME, f"one copy of the policy gave up blocks {ids[0]}, another {ids[1]}")
        return ids[0]

    def _prefill(self, text: int, length: int, readmission: bool) -> None:
        keys = [(text, depth) for depth in range(length)]
        hits = [block.block_id for block in self._pools[0].index.leading(keys)]
        missing = keys[len(hits) :]
        num_idle = sum(self._pools[0].block(block_id).ref_count == 0 for block_id in hits)
        if len(missing) + num_idle > self._pools[0].num_available:
            return
        if hits:
            for pool, blocks in self._blocks(hits):
                pool.adopt(blocks, 0, readmission)
        fresh = self._take(len(missing), missing) if missing else []
        if fresh:
            self._register(fresh, missing)
        self._tables.append(hits + fresh)

    def _publish(self, table: Sequence[int], text: int) -> None:
        """Content that may be resident already: equal keys in several blocks."""
        places = [place for place, block_id in enumerate(table) if self._pools[0].block(block_id).key is None]
        if places:
            self._register([table[place] for place in places], [(text, place) for place in places])

    def _register(self, ids: Sequence[int], keys: Sequence[Chain]) -> None:
        parents = [(key[0], key[1] - 1) if key[1] else None for key in keys]
        for pool, blocks in self._blocks(ids):
            pool.register(blocks, keys, 0, [depth for _, depth in keys], category=keys[0][0], parents=parents)

    def _take_back(self, table: Sequence[int]) -> None:
        """A prefill was cancelled within its step."""
        for block_id in table:
            block = self._pools[0].block(block_id)
            if block.key is not None and block.ref_count == 1:
                for pool, (twin,) in self._blocks([block_id]):
                    pool.unregister(twin)

    def _end(self, table: Sequence[int]) -> None:
        for pool, blocks in self._blocks(table):
            pool.release(blocks[::-1], 0)

    def _blocks(self, ids: Sequence[int]) -> Iterator[tuple[BlockPool, list[Block]]]:
        for pool in self._pools:
            yield pool, [pool.block(block_id) for block_id in ids]


def _pool(policy: EvictionPolicy, case: PoolCase) -> BlockPool:
    if not case.leaf_first:
        return BlockPool(case.num_blocks, policy, DecisionLog(), HashIndex(), case.free_order)
    index = LinkedIndex()
    return BlockPool(case.num_blocks, LeafFirst(policy, index), DecisionLog(), index, case.free_order)


def fault_of(subject: Subject, case: PoolCase, operations: Sequence[Operation]) -> PolicyFault | None:
    """What the policy does wrong in this life, its story being the operations up to then; None: nothing."""
    told: list[str] = []
    try:
        life = PoolLife(subject, case)
        for number, operation in enumerate(operations, 1):
            told.append(f"{number}. {operation}")
            life.apply(operation)
        told.append(f"{len(operations) + 1}. all requests end, and every block is taken")
        life.drain()
    except PolicyFault as fault:
        what = f"operation {len(told)}: {fault.what}" if told else fault.what
        return PolicyFault(fault.rule, what, [str(case), *told])
    return None
