"""The four public traces, read whole: exact values, prefix hits of an infinite cache, CPU time."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from traces.reading import read_trace
from traces.schema import Trace
from traces.transforms import length_scale, limit

SHARED = Path(__file__).parents[1].parent / "shared"
FILES = {
    "azure/code": "azure/AzureLLMInferenceTrace_code.csv",
    "azure/conv": "azure/AzureLLMInferenceTrace_conv.csv",
    "mooncake/conversation_trace": "mooncake/conversation_trace.jsonl",
    "mooncake/synthetic_trace": "mooncake/synthetic_trace.jsonl",
}
pytestmark = pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no public traces beside this checkout")


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {name: read_trace(SHARED / "traces" / file) for name, file in FILES.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, dict]:
    return json.loads((SHARED / "oracles" / "trace_stats.json").read_text())


@pytest.mark.parametrize("name", FILES)
def test_every_value_of_the_oracle(name, traces, expected):
    trace, stats = traces[name], expected[name]

    assert trace.sha256 == stats["sha256"]
    assert trace.num_requests == stats["rows"]
    assert trace.num_dropped == {}
    assert trace.arrival_ps[0] == 0
    assert trace.span_s == pytest.approx(stats["duration_s"], abs=1e-9)
    assert len(np.unique(trace.arrival_ps)) == stats["distinct_timestamps"]
    for column, key in ((trace.num_prompt_tokens, "input"), (trace.num_output_tokens, "output")):
        assert (column.min(), column.max(), column.sum()) == tuple(stats[key][k] for k in ("min", "max", "sum"))
        assert np.percentile(column, [50, 90, 99]) == pytest.approx([stats[key][k] for k in ("p50", "p90", "p99")])
    gaps_s = np.diff(trace.arrival_ps) / 1e12
    assert gaps_s.mean() == pytest.approx(stats["iat_mean_s"], abs=1e-6)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(stats["iat_cv"], abs=2e-3)
    assert gaps_s.max() == pytest.approx(stats["iat_max_s"], abs=1e-6)


@pytest.mark.parametrize("name", ["mooncake/conversation_trace", "mooncake/synthetic_trace"])
def test_block_hashes_of_mooncake(name, traces, expected):
    hash_ids, stats = traces[name].hash_ids, expected[name]

    assert traces[name].hash_block_tokens == 512
    assert len(hash_ids.values) == stats["total_block_refs"]
    assert len(np.unique(hash_ids.values)) == stats["unique_blocks"]
    assert hash_ids.row_lengths.max() == stats["hash_ids_per_req"]["max"]


@pytest.mark.parametrize("name", ["azure/code", "azure/conv"])
def test_azure_says_nothing_on_prefixes(name, traces):
    assert not traces[name].has_prefix_information


def full_block_prefix_hit_tokens(trace: Trace) -> int:
    """One request after the other, nothing ever evicted, at least one prompt token always left to compute."""
    seen: set[int] = set()
    num_hit_blocks = 0
    for row in range(trace.num_requests):
        ids = trace.hash_ids.row(row).tolist()
        full = ids[: (int(trace.num_prompt_tokens[row]) - 1) // trace.hash_block_tokens]
        num_hit_blocks += next((i for i, block in enumerate(full) if block not in seen), len(full))
        seen.update(ids[: int(trace.num_prompt_tokens[row]) // trace.hash_block_tokens])
    return num_hit_blocks * trace.hash_block_tokens


@pytest.mark.parametrize(
    ("name", "hit_tokens", "prompt_tokens"),
    [
        ("mooncake/conversation_trace", 54_063_104, 144_793_823),
        ("mooncake/synthetic_trace", 39_802_880, 61_194_628),
    ],
)
def test_prefix_hits_of_an_infinite_cache(name, hit_tokens, prompt_tokens, traces):
    assert traces[name].num_prompt_tokens.sum() == prompt_tokens
    assert full_block_prefix_hit_tokens(traces[name]) == hit_tokens


def test_scaled_mooncake_keeps_its_blocks(traces):
    trace = traces["mooncake/conversation_trace"]
    scaled = length_scale(trace, "1/32")

    scaled.validate()  # among others: one id for every 16 tokens
    assert scaled.hash_block_tokens == 16
    assert scaled.hash_ids is trace.hash_ids
    assert full_block_prefix_hit_tokens(limit(scaled, 500)) * 32 == full_block_prefix_hit_tokens(limit(trace, 500))


@pytest.mark.parametrize("name", FILES)
def test_reading_takes_half_a_second_of_cpu_at_most(name):
    cpu_s = []
    for _ in range(3):  # the best of three: others may be using the machine
        start_s = time.process_time()
        read_trace(SHARED / "traces" / FILES[name])
        cpu_s.append(time.process_time() - start_s)
    assert min(cpu_s) < 0.5
