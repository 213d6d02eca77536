"""Each eviction policy on tiny pools, victim by victim, as its paper has it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial

import pytest
from block_streams import Build, accesses, num_hits, told

from core.block_pool import BlockPool, FreeOrder
from core.decision_log import DecisionLog
from core.errors import InputError
from core.foresight import Foresight
from core.interfaces import Block, Future, PolicyEnv
from core.prefix_index import HashIndex
from policies.eviction.arc import ARC
from policies.eviction.belady import Belady
from policies.eviction.clock import Clock
from policies.eviction.fifo import FIFO
from policies.eviction.filo import FILO
from policies.eviction.hyperbolic import Hyperbolic
from policies.eviction.lecar import LeCaR
from policies.eviction.lfu import LFU
from policies.eviction.lfu_da import LFUDA
from policies.eviction.lfu_perfect import PerfectLFU
from policies.eviction.lirs import LIRS
from policies.eviction.lru import LRU
from policies.eviction.mru import MRU
from policies.eviction.s3fifo import S3FIFO
from policies.eviction.sieve import Sieve
from policies.eviction.slru import SLRU
from policies.eviction.slru_hits import HitSLRU
from policies.eviction.two_q import TwoQ
from policies.eviction.w_tinylfu import WTinyLFU

# ---- the curves that people trust -------------------------------------------------------------------------------

SCAN = "ABABxyzABuvwABpqrAB"  # A and B are the hot prompt, the rest bursts of content used once
ANOMALY = "ABCDABEABCDE"


@pytest.mark.parametrize(
    ("policy", "num_blocks", "expected"),
    [(LRU, 3, 2), (FIFO, 3, 2), (LFU, 3, 8), (Belady, 3, 8), (LRU, 5, 8), (FIFO, 5, 6), (Belady, 5, 8)],
)
def test_scans_push_the_hot_prompt_out_of_lru_and_fifo(policy: Build, num_blocks: int, expected: int) -> None:
    assert num_hits(SCAN, policy, num_blocks) == expected


def test_beladys_anomaly() -> None:
    """FIFO loses a hit with a block more; LRU never does."""
    assert [num_hits(ANOMALY, FIFO, num_blocks) for num_blocks in (3, 4)] == [3, 2]
    assert [num_hits(ANOMALY, LRU, num_blocks) for num_blocks in (3, 4, 5)] == [2, 4, 7]
    assert [num_hits(ANOMALY, Belady, num_blocks) for num_blocks in (3, 4)] == [5, 6]


# ---- victims, one reference after the other: + is a hit, . a miss into free memory, a letter what was lost ------


@pytest.mark.parametrize(
    ("policy", "num_blocks", "stream", "expected"),
    [
        (LRU, 3, "abcadbe", "...+bca"),
        (MRU, 3, "abcadbe", "...+a+b"),  # a was used last, then b
        (FILO, 3, "abcadbe", "...+c+d"),  # c came last, then d
        (LFU, 3, "abcadbb", "...+bc+"),  # a has 2 uses; of b and c, b was released first
        (LFU, 3, "abbcade", "..+.+cd"),  # 2 each for a and b: c, newest of all, goes; then d
        (LFU, 2, "aabcbc", ".+.bcb"),  # b came back with a count of 1
        (PerfectLFU, 2, "aabcbc", ".+.bca"),  # b came back with 2, like a, which was released before it
        (LFU, 2, "aaabcde", ".++.bcd"),  # a stays for ever
        (LFUDA, 2, "aaabcde", ".++.bca"),  # L is 1 after b and 2 after c: d has 1 + 2, no less than a's 3
        (Clock, 3, "abcadbe", "...+bca"),  # the hand takes a's bit for b, then c; a's turn comes before d's
        (partial(Clock, bits=2), 3, "abcaadbec", "...++bcdb"),  # 2, 1 and 0: a is passed twice
        (Sieve, 3, "abcadbe", "...+bcd"),  # a keeps its place behind the hand, which goes on to c, then d
        # small: 1 block, ghosts: 2. a comes back into main; c, hit twice, is moved there, and d goes in its place
        (partial(S3FIFO, small_ratio=0.25, ghost_ratio=0.5), 4, "abcdeaccfgh", "....ab++def"),
        (partial(S3FIFO, small_ratio=0.25), 4, "abcdef", "....ab"),
        (partial(S3FIFO, small_ratio=0.25, warmup=True), 4, "abcdef", "....ae"),  # b, c, d found small full: main
        # Kin 1, Kout 2. a, c, d come back into Am while they are ghosts; then A1in has its share, and Am's LRU goes
        (TwoQ, 4, "abcdeafgcde", "....abcdefa"),
        # b, a ghost of T1, raises p to 1: T1 keeps c and T2 gives a; a, a ghost of T2, takes that back, and c goes
        (ARC, 2, "abacba", "..+bac"),
        # segments of 2: c's promotion lets a fall, on top of d
        (partial(SLRU, num_segments=2, warmup=False), 4, "abcdabcef", "....+++da"),
        (partial(SLRU, num_segments=2, warmup=False), 4, "abcdefg", "....abc"),
        (partial(SLRU, num_segments=2), 4, "abcdefg", "....abe"),  # c and d have filled the upper segment
        (HitSLRU, 3, "abcaabde", "...+++cb"),  # a is protected, b, hit once, is not
        # 2 LIR blocks, 1 HIR. c comes back while it is in the stack: LIR in place of a, which goes to the queue
        (LIRS, 3, "abcdcaef", "...cd+ae"),
        (partial(LIRS, demote_on_queue_hit=True), 3, "abcdcaef", "...cd+ab"),  # a's hit made b HIR, and e became LIR
        # window 1, probation 1, protected 2. d is no better than b; e, used twice, is better than c
        (WTinyLFU, 4, "abcdaebef", "....+d++c"),
        # uses per time, at d: a 2/4, b 1/3, c 1/2; at e: a 2/5, c 1/3, d 1/1; at f: a 2/6, d 1/2, e 1/1
        (partial(Hyperbolic, exact=True), 3, "abcadef", "...+bca"),
        (Belady, 3, "abcdabeab", "...c++d++"),  # c is never asked for again; d neither
    ],
)
def test_victims(policy: Build, num_blocks: int, stream: str, expected: str) -> None:
    assert told(stream, policy, num_blocks) == expected


def test_lecar_regrets() -> None:
    """LRU and LFU both name a; whoever was drawn is blamed when a is back one use later: e^(0.45 * sqrt(0.005))."""
    policy = LeCaR(PolicyEnv(now=lambda: 0, num_blocks=2, block_size_tokens=1, seed=3))
    assert told("abca", lambda env: policy, 2) == "..ab"
    grown = math.exp(0.45 * math.sqrt(0.005))
    assert min(policy._lru_weight, 1 - policy._lru_weight) == pytest.approx(1 / (1 + grown))


def test_hyperbolic_looks_at_a_sample() -> None:
    """Of 400 blocks in order of their worth: the worst of 64 is one of the worst."""
    stream = [*range(400), *range(200, 400), 400]
    lost = {list(accesses(stream, Hyperbolic, 400, seed))[-1][1] for seed in range(5)}
    assert len(lost) > 1
    assert all(isinstance(content, int) and content < 60 for content in lost)


def test_belady_takes_the_deepest_of_what_is_never_asked_for_and_the_farthest_of_the_rest() -> None:
    foresight = Foresight()
    foresight.expect(0, "ab")
    foresight.expect(1, "xy")
    foresight.expect(2, "a")
    desk = Desk(Belady, "abxyuvw", future=foresight, positions=(0, 1, 0, 1, 2, 0, 1))
    assert desk.order() == "uwvyxba"
    foresight.pass_by(0)  # admitted without a hit
    assert desk.order() == "uwbvayx", "b is never asked for now, and a later than x and y"


# ---- residency is not pinning -----------------------------------------------------------------------------------


class Desk:
    """A pool whose contents are single letters: cached, pinned by a hit, released, and evicted one at a time."""

    def __init__(
        self,
        policy: Build,
        contents: str,
        free_order: FreeOrder = FreeOrder.UNHASHED_FIRST,
        future: Future | None = None,
        positions: Sequence[int] | None = None,
    ) -> None:
        env = PolicyEnv(now=lambda: 0, num_blocks=len(contents), block_size_tokens=4, future=future)
        self.pool = BlockPool(len(contents), policy(env), DecisionLog(), HashIndex(), free_order)
        for content, position in zip(contents, positions or [0] * len(contents), strict=True):
            self.pool.release(self.insert(content, position), 0)

    def insert(self, content: str, position: int = 0) -> list[Block]:
        blocks = self.pool.take(1, 0, [content])
        self.pool.register(blocks, [content], 0, [position])
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


@pytest.mark.parametrize("policy", [Clock, Sieve, partial(S3FIFO, small_ratio=0.25), TwoQ])
def test_the_hand_takes_a_pinned_block_out_and_puts_it_back_behind_itself(policy: Build) -> None:
    desk = Desk(policy, "abcd")
    pinned = desk.pin("a")
    assert desk.evict() == "b", "past a"
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


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (partial(Clock, bits=0), "eviction.bits=0: expected a whole number of at least 1"),
        (partial(S3FIFO, small_ratio=2), "eviction.small_ratio=2: expected a ratio in (0, 1]"),
        (partial(S3FIFO, threshold=4), "eviction.threshold=4: expected a whole number from 1 to 3"),
        (partial(SLRU, num_segments=0), "eviction.num_segments=0: expected a whole number of at least 1"),
        (partial(WTinyLFU, protected_ratio=1), "eviction.protected_ratio=1: expected a ratio in (0, 1)"),
        (partial(PerfectLFU, num_ghosts=-1), "eviction.num_ghosts=-1: expected a whole number from 0 on, or null"),
        (partial(Hyperbolic, num_samples=0), "eviction.num_samples=0: expected a whole number of at least 1"),
        (partial(LeCaR, discount=-1), "eviction.discount=-1: expected a ratio in (0, 1]"),
    ],
)
def test_parameters_that_make_no_sense(policy: Build, expected: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        policy(PolicyEnv(now=lambda: 0, num_blocks=8, block_size_tokens=1))


def test_perfect_counts_can_be_bounded() -> None:
    """With one ghost, b's use is forgotten when c goes after it: b comes back with 1, not with a's 2."""
    assert told("aabcdbe", PerfectLFU, 2) == ".+.bcda"
    assert told("aabcdbe", partial(PerfectLFU, num_ghosts=1), 2) == ".+.bcdb"
