"""Every queue, admission and preemption policy on the engine: the simulator repeats its decisions, shadow tags on."""

from __future__ import annotations

from typing import Any

import pytest
from engine_world import EngineSetup, assert_lockstep, run_trace
from omegaconf import OmegaConf
from shapes import CONF, bundled
from test_lockstep import text_trace
from world import Settings

from core.decision_log import Event
from core.request import Outcome
from kvtwin.binding import bind_policy

GROUPS = ("queue", "admission", "preemption")
AT_SMALL_SCALE: dict[str, dict[str, Any]] = {
    "longest_prefix_match": {"check_tokens": 4, "share_tokens": 4, "max_waiting": 6},
    "sjf": {"aging_tokens_per_s": 100.0},
    "new_token_ratio": {"conservativeness": 0.2, "decay_steps": 20, "headroom_steps": 2},
    "slo_aware": {"ttft_s": 0.012, "tpot_s": 0.0045, "step_s": 0.001, "decode_sequence_s": 0.001},
    "sglang_length": {"headroom_steps": 1},
    "cost_based": {"latency_s": 0.0008},  # both ways occur
}
"""A step takes about a millisecond, a prompt 13 to 22 tokens."""

WITHOUT_PREEMPTIONS = ("full_reservation", "peak_aware", "peak_aware_predicted", "slo_aware")


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in GROUPS for name in bundled(group) if name != "own"]
)
def test_decisions_are_the_engines(group, name):
    config = OmegaConf.load(CONF / group / f"{name}.yaml")
    policy = bind_policy(OmegaConf.merge(config, AT_SMALL_SCALE.get(name, {})), group)
    rows = range(10)
    trace = text_trace(len(rows), tenant=[row % 3 for row in rows], priority=[row % 2 for row in rows])
    settings = Settings(24, block_size=4, full_prompt=False, host_blocks=30, **{group: policy})
    setup = EngineSetup(settings)
    engine = run_trace(trace, setup)
    outcomes = {request.outcome for request in engine.scheduler.recorder.done}
    assert outcomes == ({Outcome.FINISHED, Outcome.REJECTED} if name == "slo_aware" else {Outcome.FINISHED})
    assert (engine.num_of(Event.PREEMPT) == 0) == (name in WITHOUT_PREEMPTIONS)
    assert engine.shadow.num_checked["swap_in"] > 0 or name not in ("swap", "cost_based")
    assert_lockstep(trace, setup, engine)
