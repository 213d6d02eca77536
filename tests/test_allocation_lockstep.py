"""Every allocation policy on the engine: the same decisions as in the simulator, and nobody reads another's KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from engine_world import EngineResult, EngineSetup, assert_lockstep, run_trace
from world import Settings, trace_of

from core.decision_log import Event
from core.model_shape import ModelShape
from core.request import Outcome
from core.units import PS_PER_S
from engine.executor import TorchExecutor
from engine.shadow import ShadowError
from policies.allocation.contiguous_max import ContiguousMax
from policies.allocation.orca_oracle import OrcaOracle
from policies.allocation.orca_pow2 import OrcaPow2
from policies.allocation.page_group import PageGroup
from policies.allocation.paged import Paged
from policies.allocation.reallocating import Reallocating
from policies.allocation.token_granular import TokenGranular
from traces.schema import Trace

SMALL = ModelShape(
    name="small",
    num_layers=2,
    hidden=2048,
    num_heads=32,
    num_kv_heads=32,
    head_dim=64,
    intermediate=48,
    vocab_size=512,
    max_context_tokens=64,
)
POLICIES: dict[str, tuple[Callable, int]] = {
    "paged": (Paged, 4),
    "token_granular": (TokenGranular, 1),
    "contiguous_max": (partial(ContiguousMax, max_seq_tokens=40), 4),
    "orca_pow2": (OrcaPow2, 4),
    "orca_oracle": (OrcaOracle, 1),
    "first_fit": (partial(OrcaOracle, placement="first_fit"), 4),
    "compacting": (partial(OrcaOracle, placement="best_fit", compaction=True), 1),
    "reallocating": (Reallocating, 4),
    "cat": (partial(Reallocating, growth_factor=1, compaction=True), 1),
    "page_group": (partial(PageGroup, model=SMALL, page_bytes=65_536), 4),
}


def trace() -> Trace:
    """Requests of all lengths that come faster than they go; one in four is cancelled."""
    rows = range(24)
    return trace_of(
        [row * 0.0015 for row in rows],
        [3 + (row * 7) % 23 for row in rows],
        [2 + (row * 5) % 15 for row in rows],
        cancel_after_ps=[-1 if row % 4 else (4 + row) * PS_PER_S // 1000 for row in rows],
    )


def run(name: str, executor: type[TorchExecutor] = TorchExecutor) -> tuple[EngineSetup, EngineResult]:
    allocation, block_size = POLICIES[name]
    chosen = Settings(96 // block_size, block_size, caching=False, full_prompt=False, allocation=allocation)
    setup = EngineSetup(chosen, executor=executor)
    return setup, run_trace(trace(), setup)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy(name: str) -> None:
    setup, engine = run(name)
    outcomes = [request.outcome for request in engine.scheduler.recorder.done]
    assert len(outcomes) == 24
    assert set(outcomes) <= {Outcome.FINISHED, Outcome.CANCELLED}
    assert engine.shadow.num_checked["read"] > 0
    assert (engine.num_of(Event.MOVE) > 0) == (name in ("compacting", "reallocating", "cat"))
    assert (engine.shadow.num_checked["copy"] > 0) == (engine.num_of(Event.MOVE) > 0)
    assert_lockstep(trace(), setup, engine)


def test_the_same_tokens_come_out_wherever_they_lie() -> None:
    """Without cancellations, whose time depends on the run, every policy's answers are those of paged blocks."""
    whole = replace(trace(), cancel_after_ps=None)
    answers = []
    for name in ("paged", "compacting", "reallocating"):
        allocation, block_size = POLICIES[name]
        chosen = Settings(96 // block_size, block_size, caching=False, full_prompt=False, allocation=allocation)
        answers.append(run_trace(whole, EngineSetup(chosen)).outputs())
    assert answers[0] == answers[1] == answers[2]


class Forgetful(TorchExecutor):
    """Makes no moves."""

    def _move_blocks(self, plan, memory):
        plan.moves.clear()
        super()._move_blocks(plan, memory)


def test_a_move_that_is_not_made_is_found() -> None:
    with pytest.raises(ShadowError, match="expected"):
        run("reallocating", Forgetful)
