"""Whatever ships, each option and each preset as the product binds it, decides in spans as in single steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapes import CONF
from test_radix_scheduling import on_radix
from test_spans import assert_equal, assert_sound
from workloads import Workload, workloads
from world import KeepingRecorder, Run, Settings

from core.build import build_scheduler
from core.decision_log import DecisionLog
from kvtwin.composition import compose_config
from kvtwin.experiment import Experiment
from kvtwin.settings import check_settings
from kvtwin.simulating import load_simulation
from sim.simulation import run_simulation
from traces.replay import ReplayConfig

GROUPS = ("queue", "admission", "preemption", "batching", "allocation", "eviction")
LARGEST = 40  # tokens of the largest request that is drawn
RESERVED = f"allocation.max_seq_tokens={LARGEST}"
STEADY = ("admission.decay_steps=6", "admission.clip_tokens=8", "admission.headroom_steps=2")
AT_SMALL_SCALE: dict[str, tuple[str, ...]] = {
    "queue=longest_prefix_match": ("queue.max_waiting=4", "queue.check_tokens=2", "queue.share_tokens=2"),
    "queue=hrrn": ("queue.max_waiting=4",),
    "admission=new_token_ratio": STEADY,
    "admission=slo_aware": (
        *("admission.ttft_s=1e-10", "admission.tpot_s=3.5e-11"),
        *("admission.step_s=1e-11", "admission.decode_sequence_s=1e-11", "admission.prefill_token_s=0"),
    ),
    "allocation=contiguous_max": (RESERVED,),
    "allocation=page_group": ("allocation.page_bytes=65536",),  # 32 tokens of Llama 3 8B
    "eviction=ttl": ("eviction.ttl_s=7e-11",),
    "preset=sglang_0_5": STEADY,
    "preset=orca": (RESERVED,),
    "preset=faster_transformer": (RESERVED,),
}
"""A step takes ten picoseconds or a few more."""
RESERVING = (
    *("allocation=contiguous_max", "allocation=orca_pow2", "allocation=page_group"),
    *("preset=orca", "preset=faster_transformer"),
)


def shipped(group: str) -> list[str]:
    """The words that choose its options, those of folders below it included; `own` stands for what a user names."""
    files = sorted((CONF / group).rglob("*.yaml"))
    return [f"{group}={file.relative_to(CONF / group).with_suffix('')}" for file in files if file.stem != "own"]


@cache
def experiment_of(word: str) -> Experiment:
    tree = ("pool.prefix_index=radix",) if word.startswith("eviction=radix/") else ()
    config = compose_config("sim", [word, *tree, *AT_SMALL_SCALE.get(word, ()), "trace.limit=1"])
    check_settings(config)
    return load_simulation(config)


@st.composite
def crowds(draw: st.DrawFn, word: str) -> Workload:
    """Several requests at a time, whose whole prompts fit into a step; six reservations at most fit into the pool."""
    workload = draw(workloads())
    drawn = workload.settings
    chosen = replace(drawn, max_num_seqs=drawn.max_num_seqs + 2, budget=drawn.budget + LARGEST)
    if word in RESERVING:
        chosen = replace(chosen, num_blocks=-(-2 * LARGEST // drawn.block_size) * draw(st.integers(1, 3)))
    return replace(workload, settings=chosen)


def with_option(word: str, chosen: Settings) -> Settings:
    """What was drawn, but for this option, what it has no use without, and what does not go with it."""
    group = word.partition("=")[0]
    policy = getattr(experiment_of(word).policies, group)
    chosen = replace(chosen, **{group: policy})
    if group == "eviction":
        chosen = replace(chosen, caching=True, foresees=word == "eviction=belady")
    if word.startswith("eviction=radix/"):
        return on_radix(chosen, policy)
    if group == "preemption":
        return replace(chosen, host_blocks=6)
    if group != "allocation" or word == "allocation=paged":
        return chosen
    if word == "allocation=token_granular":
        chosen = replace(chosen, block_size=1, num_blocks=(chosen.num_blocks or 0) * chosen.block_size)
    return replace(chosen, caching=False, host_blocks=0, free_order="unhashed_first", leaf_first=False)


@pytest.mark.parametrize("word", [word for group in GROUPS for word in shipped(group)])
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_option(word: str, data: st.DataObject) -> None:
    workload = data.draw(crowds(word))
    chosen = with_option(word, workload.settings)
    spans, steps = (workload.run(replace(chosen, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)


def run_of(preset: Experiment, workload: Workload, spans: bool) -> Run:
    """The drawn requests, pool and batches under the policies and switches of the preset."""
    drawn = workload.settings
    scheduler = build_scheduler(
        replace(
            preset.scheduler,
            max_num_seqs=drawn.max_num_seqs,
            max_batch_tokens=drawn.budget,
            long_prefill_threshold_tokens=drawn.long_prefill,
            single_steps=not spans,
        ),
        replace(preset.pool, num_blocks=drawn.num_blocks, block_size_tokens=drawn.block_size),
        preset.policies,
        DecisionLog(),
        KeepingRecorder(),
        preset.prefix_caching,
        by_ids=spans and workload.trace.num_samples is None,
    )
    replay = ReplayConfig(drawn.block_size, workload.arrivals, workload.concurrency)
    run_simulation(replace(preset, trace=workload.trace, replay=replay).source(), scheduler, workload.cost)
    return Run(scheduler, workload.trace.num_requests)


@pytest.mark.parametrize("word", [word for word in shipped("preset") if word != "preset=none"])
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_preset(word: str, data: st.DataObject) -> None:
    workload = data.draw(crowds(word))
    spans, steps = (run_of(experiment_of(word), workload, on) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)
