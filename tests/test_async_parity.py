"""Async scheduling, decision by decision, against an independent transcription of vLLM's rules."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from async_reference import recorded_log

from kvtwin.parity.checking import check_log
from kvtwin.parity.result import first_difference

GOLDEN = Path(__file__).parent / "data" / "golden_vllm"

Fields = dict[str, Any]


def random_scenario(seed: int, is_async: bool) -> Fields:
    """A header: a few requests that share prefixes, in a pool hardly bigger than the largest of them."""
    draw = random.Random(seed)
    block_size = draw.choice([1, 2, 4, 8])
    families = [[draw.randrange(50) for _ in range(60)] for _ in range(3)]
    requests, arrive = [], 0
    for number in range(draw.randint(1, 14)):
        arrive += draw.choice([0, 0, 0, 1, 2, 5, 9])
        num_prompt = draw.randint(1, 30)
        num_shared = draw.randint(0, num_prompt)
        prompt = [*draw.choice(families)[:num_shared], *(draw.randrange(1000) for _ in range(num_prompt - num_shared))]
        output = [draw.randrange(1000) for _ in range(draw.randint(1, 20))]
        requests.append({"id": f"r{number}", "arrive": arrive, "prompt": prompt, "output": output})
    if draw.random() < 0.5:
        for request in requests:
            request |= {"priority": draw.randint(0, 2), "arrival_time": draw.choice([0.0, 1.0, 2.0])}
    largest = max(-(-(len(request["prompt"]) + len(request["output"])) // block_size) for request in requests)
    names = [request["id"] for request in requests]
    return {
        "config": {
            "block_size": block_size,
            "num_gpu_blocks": min(79, largest + 2 + draw.randint(0, largest)),
            "max_num_seqs": draw.randint(1, 8),
            "max_num_batched_tokens": draw.choice([3, 8, 20, 64]),
            "max_model_len": draw.choice([4096, 40]),
            "enable_chunked_prefill": True,
            "enable_prefix_caching": draw.random() < 0.7,
            "policy": draw.choice(["fcfs", "priority"]),
            "watermark": draw.choice([0, 0, 0.1]),
            "long_prefill_token_threshold": draw.choice([0, 0, 3, 7]),
            "scheduler_reserve_full_isl": draw.random() < 0.6,
            "async_scheduling": is_async,
        },
        "requests": requests,
        "aborts": [
            {"step": draw.randint(0, arrive + 25), "id": draw.choice(names), "when": draw.choice(["before", "during"])}
            for _ in range(draw.choice([0, 0, 1, 4]))
        ],
    }


@pytest.mark.parametrize("name", ["k2_async_plain", "c_preempt", "d_prefix", "h_abort"])
def test_the_reference_itself_reproduces_the_recorded_logs(name: str) -> None:
    header, *steps = map(json.loads, (GOLDEN / f"{name}.jsonl").read_text().splitlines())
    header["config"].setdefault("async_scheduling", False)
    header.setdefault("aborts", [])
    ours = recorded_log(header)[1:]
    assert len(ours) == len(steps)
    for expected, got in zip(steps, ours, strict=True):
        assert first_difference(expected, got) is None


@pytest.mark.parametrize("version", ["0.20.2", "0.32.0"])
def test_before_0_33_who_is_its_own_victim_ends_the_step(tmp_path: Path, version: str) -> None:
    """Also where it leaves nobody to serve: the next step is then decided with no token under way."""
    num_empty = 0
    for seed in (1, 8, 31, *range(70, 80)):
        header = random_scenario(seed, is_async=True) | {"version": version}
        header["config"]["policy"] = "priority"
        for request in header["requests"]:
            request.setdefault("priority", seed % 3)
        lines = recorded_log(header)
        num_empty += sum(bool(line["run"] and line["preempt"]) and not line["sched"] for line in lines[1:])
        path = tmp_path / f"{seed}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        result = check_log(path)
        assert result.is_equal, f"seed {seed}: {result.difference}"
    assert num_empty > 2


@pytest.mark.parametrize(("is_async", "num_scenarios"), [(True, 45), (False, 12)])
def test_random_scenarios_are_decided_alike_in_every_field(tmp_path: Path, is_async: bool, num_scenarios: int) -> None:
    """Scenarios with preemption, priorities, ties, aborts at any moment, shared prefixes and tiny budgets."""
    num_of = dict.fromkeys(("preempt", "cache_upd", "evict", "hit"), 0)
    for seed in range(num_scenarios):
        lines = recorded_log(random_scenario(seed, is_async))
        for name in num_of:
            num_of[name] += sum(len(line[name]) for line in lines[1:])
        path = tmp_path / f"{seed}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        result = check_log(path)
        assert result.is_equal, f"seed {seed}: {result.difference}"
        assert result.num_steps == len(lines) - 1
    assert num_of["preempt"] > num_scenarios, "memory was short"
    assert num_of["evict"] > 2 * num_scenarios, "and caches under pressure"
    assert num_of["hit"] > 5 * num_scenarios
    assert (num_of["cache_upd"] > num_scenarios) == is_async, (
        "blocks whose last token was in flight are published afterwards"
    )
