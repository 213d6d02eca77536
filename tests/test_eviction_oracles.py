"""Miss counts on a public trace, equal to the last one to those of independent implementations."""

from __future__ import annotations

import pytest
from block_streams import SHARED, Build, mooncake, num_hits, oracle

from policies.eviction.clock import Clock
from policies.eviction.fifo import FIFO
from policies.eviction.lfu import LFU
from policies.eviction.lru import LRU
from policies.eviction.sieve import Sieve

pytestmark = pytest.mark.skipif(not (SHARED / "oracles").is_dir(), reason="no oracle values beside this checkout")

EXACT: dict[str, Build] = {"LRU": LRU, "FIFO": FIFO, "LFU": LFU, "CLOCK": Clock, "SIEVE": Sieve}
"""By the name in the files of libcachesim's counts, and in those of the slices."""


@pytest.mark.parametrize("name", EXACT)
def test_the_whole_trace_at_every_size(name: str) -> None:
    stream = mooncake("synthetic_trace")
    expected = oracle("mooncake_synthetic_trace_libcachesim.json")["algs"][name]
    expected = {int(size): counts["misses"] for size, counts in expected.items()}
    own = oracle("mooncake_synthetic_trace_own.json")["finite"]
    expected |= {
        int(size): counts[f"plain.{name}"]["misses"] for size, counts in own.items() if f"plain.{name}" in counts
    }
    misses = {size: len(stream) - num_hits(stream, EXACT[name], size) for size in expected if size < 100_000}
    assert misses == {size: expected[size] for size in misses}


SLICES = ["conversation_trace[:500]", "conversation_trace[:2000]", "synthetic_trace[:500]", "synthetic_trace[:2000]"]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("part", SLICES)
def test_the_beginnings_of_both_traces(name: str, part: str) -> None:
    trace, _, num_requests = part.removesuffix("]").partition("[:")
    stream = mooncake(trace, int(num_requests))
    for size, hits in oracle("mooncake_small_slices.json")[part]["finite"].items():
        if f"plain.{name}" in hits:
            assert num_hits(stream, EXACT[name], int(size)) == hits[f"plain.{name}"], size
