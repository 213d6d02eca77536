"""Miss counts on a public trace, equal to the last one to those of independent implementations."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from block_streams import SHARED, Build, accesses, mooncake, num_hits, oracle
from eviction_policies import shipped
from libcachesim_w_tinylfu import misses

from policies.eviction.arc import ARC
from policies.eviction.belady import Belady
from policies.eviction.clock import Clock
from policies.eviction.fifo import FIFO
from policies.eviction.lfu import LFU
from policies.eviction.lfu_da import LFUDA
from policies.eviction.lirs import LIRS
from policies.eviction.lru import LRU
from policies.eviction.s3fifo import S3FIFO
from policies.eviction.sieve import Sieve
from policies.eviction.slru import SLRU
from policies.eviction.two_q import TwoQ
from policies.eviction.w_tinylfu import WTinyLFU

pytestmark = pytest.mark.skipif(not (SHARED / "oracles").is_dir(), reason="no oracle values beside this checkout")

EXACT: dict[str, Build] = {
    "LRU": LRU,
    "FIFO": FIFO,
    "LFU": LFU,
    "CLOCK": Clock,
    "SIEVE": Sieve,
    "ARC": ARC,
    "2Q": TwoQ,
    "BELADY": Belady,
    "S3FIFO": partial(S3FIFO, warmup=True),
    "SLRU": SLRU,
    "LIRS": partial(LIRS, demote_on_queue_hit=True),
}
"""By their names in the file of libcachesim's counts, with its rules where they are not the paper's."""

SIZES = (1_000, 10_000, 30_000)  # from 43,924 on, the distinct content, all are equal


def num_misses(policy: Build, size: int) -> int:
    stream = mooncake("synthetic_trace")
    return len(stream) - num_hits(stream, policy, size)


@pytest.mark.parametrize("policy", shipped())
def test_what_holds_all_content_misses_each_once(policy: Build) -> None:
    stream = mooncake("synthetic_trace", 100)
    assert len(stream) - num_hits(stream, policy, len(set(stream))) == len(set(stream))


@pytest.mark.parametrize(
    ("name", "policy"), [("S3FIFO_paper_like", S3FIFO), ("2Q_vldb94_dynamic", TwoQ), ("GDSF_unit", LFUDA)]
)
def test_papers_that_were_implemented_twice(name: str, policy: Build) -> None:
    """S3-FIFO without libcachesim's warm-up rule; LFU-DA is GDSF where all blocks are of one size and cost."""
    own = oracle("mooncake_synthetic_trace_own_extra.json")
    expected = {size: own[str(size)][name]["misses"] for size in SIZES}
    assert {size: num_misses(policy, size) for size in SIZES} == expected


@pytest.mark.parametrize(
    ("policy", "libcachesim", "size", "ours", "theirs"),
    [
        (LFUDA, "LFUDA", 1_000, 111_440, 114_573),
        (LIRS, "LIRS", 10_000, 69_696, 69_690),
        (WTinyLFU, "WTinyLFU", 1_000, 113_117, 117_337),
    ],
)
def test_papers_that_libcachesim_parts_from(policy: Build, libcachesim: str, size: int, ours: int, theirs: int) -> None:
    """Or whose result hangs on hash functions; docs/decisions.md has the first reference that differs, and why."""
    counts = oracle("mooncake_synthetic_trace_libcachesim.json")["algs"][libcachesim]
    assert (num_misses(policy, size), counts[str(size)]["misses"]) == (ours, theirs)


@pytest.mark.parametrize("name", [*EXACT, "S3FIFO_paper_like"])
@pytest.mark.parametrize("part", ["conversation_trace[:2000]", "synthetic_trace[:500]"])
def test_the_beginnings_of_both_traces(name: str, part: str) -> None:
    trace, _, num_requests = part.removesuffix("]").partition("[:")
    stream = mooncake(trace, int(num_requests))
    for size, hits in oracle("mooncake_small_slices.json")[part]["finite"].items():
        key = "plain.S3FIFO_libcachesim" if name == "S3FIFO" else f"plain.{name}"
        if key in hits:
            assert num_hits(stream, EXACT.get(name, S3FIFO), int(size)) == hits[key], size


class ExactCounts:
    """In the place of `FrequencySketch`: the paper's counting without the sketch's error."""

    def __init__(self, num_keys: int) -> None:
        self._counts: Counter[object] = Counter()

    def add(self, key: object) -> None:
        self._counts[key] += 1

    def count(self, key: object) -> int:
        return self._counts[key]


def test_w_tinylfu_of_libcachesim_is_the_papers_but_for_how_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with its rules is equal to it. Ours first differs by a collision; without, by its crowded filter."""
    stream = mooncake("synthetic_trace")
    missing = misses(stream, 1_000)
    theirs = oracle("mooncake_synthetic_trace_libcachesim.json")["algs"]["WTinyLFU"]["1000"]["misses"]
    assert len(missing) == theirs == 117_337

    def first_difference() -> int:
        hits = [hit for hit, _ in accesses(stream[:3_300], WTinyLFU, 1_000)]
        return next(place for place, hit in enumerate(hits) if hit == (place in missing))

    assert first_difference() == 1_559
    monkeypatch.setattr("policies.eviction.w_tinylfu.FrequencySketch", ExactCounts)
    assert first_difference() == 3_247


def test_w_tinylfu_and_lfu_da_part_from_libcachesim_where_the_docs_say() -> None:
    """At 1,000 blocks: a content that both sides have missed once, and that we still hold when it comes again."""
    stream = mooncake("synthetic_trace")
    for policy, number in ((WTinyLFU, 1_559), (LFUDA, 20_502)):
        assert [hit for hit, _ in accesses(stream[: number + 1], policy, 1_000)][-1]
