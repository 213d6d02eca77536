"""Each eviction policy on tiny pools, victim by victim, as its paper has it."""

from __future__ import annotations

from functools import partial

import pytest
from block_streams import Build, num_hits, told

from core.block_pool import BlockPool, FreeOrder
from core.decision_log import DecisionLog
from core.errors import InputError
from core.interfaces import Block, PolicyEnv
from core.prefix_index import HashIndex
from policies.eviction.clock import Clock
from policies.eviction.fifo import FIFO
from policies.eviction.filo import FILO
from policies.eviction.lfu import LFU
from policies.eviction.lru import LRU
from policies.eviction.mru import MRU
from policies.eviction.sieve import Sieve

# ---- the curves that people trust -------------------------------------------------------------------------------

SCAN = "ABABxyzABuvwABpqrAB"  # A and B are the hot prompt, the rest bursts of content used once
ANOMALY = "ABCDABEABCDE"


@pytest.mark.parametrize(
    ("policy", "num_blocks", "expected"), [(LRU, 3, 2), (FIFO, 3, 2), (LFU, 3, 8), (LRU, 5, 8), (FIFO, 5, 6)]
)
def test_scans_push_the_hot_prompt_out_of_lru_and_fifo(policy: Build, num_blocks: int, expected: int) -> None:
    assert num_hits(SCAN, policy, num_blocks) == expected


def test_beladys_anomaly() -> None:
    """FIFO loses a hit with a block more; LRU never does."""
    assert [num_hits(ANOMALY, FIFO, num_blocks) for num_blocks in (3, 4)] == [3, 2]
    assert [num_hits(ANOMALY, LRU, num_blocks) for num_blocks in (3, 4, 5)] == [2, 4, 7]


# ---- victims, one reference after the other: + is a hit, . a miss into free memory, a letter what was lost ------


@pytest.mark.parametrize(
    ("policy", "stream", "expected"),
    [
        (LRU, "abcadbe", "...+bca"),
        (MRU, "abcadbe", "...+a+b"),  # a was used last, then b
        (FILO, "abcadbe", "...+c+d"),  # c came last, then d
        (LFU, "abcadbb", "...+bc+"),  # a has 2 uses; of b and c, b was released first
        (LFU, "abbcade", "..+.+cd"),  # 2 each for a and b: c, newest of all, goes; then d
        (Clock, "abcadbe", "...+bca"),  # the hand takes a's bit for b, then c; a's turn comes before d's
        (partial(Clock, bits=2), "abcaadbec", "...++bcdb"),  # 2, 1 and 0: a is passed twice
        (Sieve, "abcadbe", "...+bcd"),  # a keeps its place behind the hand, which goes on to c, then d
    ],
)
def test_victims(policy: Build, stream: str, expected: str) -> None:
    assert told(stream, policy, 3) == expected


# ---- residency is not pinning -----------------------------------------------------------------------------------


class Desk:
    """A pool whose contents are single letters: cached, pinned by a hit, released, and evicted one at a time."""

    def __init__(self, policy: Build, contents: str, free_order: FreeOrder = FreeOrder.UNHASHED_FIRST) -> None:
        env = PolicyEnv(now=lambda: 0, num_blocks=len(contents), block_size_tokens=4)
        self.pool = BlockPool(len(contents), policy(env), DecisionLog(), HashIndex(), free_order)
        for content in contents:
            self.pool.release(self.insert(content), 0)

    def insert(self, content: str) -> list[Block]:
        blocks = self.pool.take(1, 0, [content])
        self.pool.register(blocks, [content], 0)
        return blocks

    def pin(self, content: str) -> list[Block]:
        block = self.pool.index.get(content)
        assert block is not None, f"{content} is not resident"
        self.pool.adopt([block], 1, readmission=False)
        return [block]

    def hit(self, contents: str) -> None:
        for content in contents:
            self.pool.release(self.pin(content), 1)

    def evict(self) -> str:
        order = self.order()
        self.pool.take(1, 2)
        return order[0]

    def order(self) -> str:
        return "".join(str(block.key) for block in self.pool._eviction.eviction_order())


@pytest.mark.parametrize("policy", [Clock, Sieve])
def test_the_hand_takes_a_pinned_block_out_and_puts_it_back_behind_itself(policy: Build) -> None:
    desk = Desk(policy, "abcd")
    pinned = desk.pin("a")
    assert desk.evict() == "b", "past a, whose bit it takes"
    desk.pool.release(pinned, 1)
    assert desk.order() == "cda", "as if a had never been pinned, but passed"


@pytest.mark.parametrize(("policy", "expected"), [(Clock, "cdae"), (Sieve, "cdea")])
def test_what_comes_meanwhile(policy: Build, expected: str) -> None:
    """CLOCK's hand meets newcomers after what it has passed, SIEVE's before."""
    desk = Desk(policy, "abcd")
    desk.hit("a")
    pinned = desk.insert("e")
    desk.pool.release(pinned, 0)
    assert desk.order() == expected


@pytest.mark.parametrize("policy", [Clock, Sieve])
def test_a_pinned_block_the_hand_did_not_meet_stays_where_it_is(policy: Build) -> None:
    desk = Desk(policy, "abcd")
    pinned = desk.pin("c")
    assert desk.evict() == "a"
    desk.pool.release(pinned, 1)
    assert desk.order() == "bdc", "c has its bit still, and would be passed"
    assert desk.evict() == "b"
    assert desk.order() == "dc"


@pytest.mark.parametrize("policy", [Clock, Sieve, LFU, MRU, FILO])
def test_blocks_without_content_go_first(policy: Build) -> None:
    """As free_order=append_all releases them, MRU's and FILO's newest being just that."""
    desk = Desk(policy, "abc", FreeOrder.APPEND_ALL)
    blank = desk.pool.take(1, 0)
    desk.pool.release(blank, 0)
    assert desk.pool.take(1, 0) == blank


def test_bits_of_a_clock() -> None:
    with pytest.raises(InputError, match=r"eviction\.bits=0: expected a whole number of at least 1"):
        Clock(PolicyEnv(now=lambda: 0, num_blocks=1, block_size_tokens=1), bits=0)
