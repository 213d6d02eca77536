"""Presets are YAML: each sets the switches that its name stands for, and any later word overrides it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

import kvtwin
from kvtwin.composition import compose_config
from kvtwin.naming import options_of
from kvtwin.settings import check_settings

PRESETS = tuple(name for name in options_of("preset") if name != "none")
PRESSURE = (
    "trace.limit=40",
    "trace.length_scale=1/8",
    "trace.arrivals=all_at_once",
    "pool.num_blocks=40",
    "pool.block_size_tokens=16",
    "scheduler.max_batch_tokens=512",
)

SWITCHES: dict[str, dict[str, Any]] = {
    "vllm_0_33": {
        "pool.free_order": "unhashed_first",
        "pool.first_block_id": 1,
        "scheduler.chunked_prefill": True,
        "scheduler.prefix_caching": True,
        "scheduler.publication": "schedule",
        "scheduler.admit_after_preemption": False,
        "scheduler.own_preemption_ends_step": False,
        "scheduler.async_scheduling": False,
        "batching._target_": "policies.batching.Chunked",
        "batching.exempts_alone": True,
        "admission.full_prompt": True,
        "admission.watermark": 0.0,
        "admission.num_null_blocks": 1,
        "admission.watermark_when_idle": False,
        "preemption._target_": "policies.preemption.last_arrived.LastArrived",
        "preemption.mode": "recompute",
        "eviction._target_": "policies.eviction.lru.LRU",
    }
}
SWITCHES["vllm_0_33_async"] = SWITCHES["vllm_0_33"] | {"scheduler.async_scheduling": True}
SWITCHES["vllm_0_20"] = SWITCHES["vllm_0_33"] | {
    "pool.free_order": "append_all",
    "scheduler.own_preemption_ends_step": True,
    "batching.exempts_alone": False,
}
SWITCHES["vllm_v0"] = SWITCHES["vllm_0_33"] | {
    "pool.first_block_id": 0,
    "scheduler.chunked_prefill": False,
    "scheduler.prefix_caching": False,
    "batching._target_": "policies.batching.PrefillFirst",
    "batching.exempts_alone": None,
    "admission.watermark": 0.01,
    "admission.num_null_blocks": 0,
    "admission.watermark_when_idle": True,
}
READ = {
    "pool.first_block_id": 0,
    "queue._target_": "policies.queueing.fcfs.FCFS",
    "scheduler.async_scheduling": False,
}
SWITCHES["sglang_0_5"] = READ | {
    "pool.block_size_tokens": 1,
    "pool.prefix_index": "radix",
    "eviction._target_": "policies.eviction.radix.RadixLRU",
    "batching._target_": "policies.batching.PrefillFirst",
    "scheduler.chunked_prefill": True,
    "admission._target_": "policies.admission.new_token_ratio.NewTokenRatio",
    "admission.conservativeness": 1.0,
    "preemption._target_": "policies.preemption.sglang_length.SGLangLength",
    "preemption.headroom_steps": 20,
}
SWITCHES["tgi"] = READ | {
    "batching._target_": "policies.batching.PrefillFirst",
    "scheduler.chunked_prefill": False,
    "scheduler.prefix_caching": False,
    "admission._target_": "policies.admission.full_reservation.FullReservation",
}
SWITCHES["tensorrt_llm_no_evict"] = READ | {
    "batching._target_": "policies.batching.Chunked",
    "scheduler.chunked_prefill": False,
    "scheduler.prefix_caching": True,
    "admission._target_": "policies.admission.full_reservation.FullReservation",
}
SWITCHES["tensorrt_llm_max_utilization"] = SWITCHES["tensorrt_llm_no_evict"] | {
    "admission._target_": "policies.admission.reservation.Reservation",
    "admission.full_prompt": True,
    "admission.watermark": 0.0,
    "preemption._target_": "policies.preemption.last_arrived.LastArrived",
}
SWITCHES["orca"] = READ | {
    "allocation._target_": "policies.allocation.contiguous_max.ContiguousMax",
    "allocation.max_seq_tokens": 2048,
    "batching._target_": "policies.batching.Orca",
    "scheduler.prefix_caching": False,
    "admission.full_prompt": False,
    "admission.watermark": 0.0,
}
SWITCHES["faster_transformer"] = SWITCHES["orca"] | {"batching._target_": "policies.batching.Static"}
BOLDER = {
    "sglang_0_5": ("admission.conservativeness=0.05",),  # else it reserves enough here
    "orca": ("allocation.max_seq_tokens=512", "pool.num_blocks=128"),  # room for four
    "faster_transformer": ("allocation.max_seq_tokens=512", "pool.num_blocks=128"),
}
NEVER_PREEMPTS = ("tgi", "tensorrt_llm_no_evict", "orca", "faster_transformer")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_sets_its_switches(preset: str) -> None:
    config = compose_config("sim", [f"preset={preset}"])
    check_settings(config)
    assert {key: OmegaConf.select(config, key) for key in SWITCHES[preset]} == SWITCHES[preset]
    assert config.preset == preset, "the summary of a run tells it"


@pytest.mark.parametrize("verb", ["sim", "engine", "validate"])
def test_the_default_is_none_of_them(verb: str) -> None:
    plain = OmegaConf.to_container(compose_config(verb, []))
    assert plain == OmegaConf.to_container(compose_config(verb, ["preset=none"]))
    assert isinstance(plain, dict)
    assert plain["preset"] == "none"


@pytest.mark.parametrize("words", [("preset=vllm_v0",), ()])
def test_later_words_win(words: tuple[str, ...]) -> None:
    """A whole policy chosen by name, or one value: nothing of the preset's own is left in it."""
    chosen = ("admission=greedy", "preemption=swap", "scheduler.prefix_caching=true", "batching=orca")
    config = compose_config("sim", [*words, *chosen])
    assert OmegaConf.to_container(config.admission) == OmegaConf.to_container(compose_config("sim", chosen).admission)
    assert (config.preemption.mode, config.scheduler.prefix_caching) == ("swap", True)
    assert OmegaConf.to_container(config.batching) == {"_target_": "policies.batching.Orca"}
    assert config.scheduler.chunked_prefill == (not words)


@cache
def summary_of(preset: str, fast_forward: bool = True) -> dict[str, Any]:
    words = [f"preset={preset}", f"fast_forward={str(fast_forward).lower()}", *PRESSURE, *BOLDER.get(preset, ())]
    return kvtwin.simulate("agent_sessions_sample", overrides=words).summary


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_under_pressure_is_the_same_run_with_spans_and_without(preset: str) -> None:
    spans, steps = summary_of(preset), summary_of(preset, fast_forward=False)
    assert spans["decisions"]["digest"] == steps["decisions"]["digest"]
    assert spans["metrics"] == steps["metrics"]
    assert (spans["metrics"]["num_preemptions"] == 0) == (preset in NEVER_PREEMPTS)
    assert spans["cost"]["num_plans"] < steps["cost"]["num_plans"]


def test_presets_decide_differently() -> None:
    assert len({summary_of(preset)["decisions"]["digest"] for preset in PRESETS}) == len(PRESETS)
