"""Every preset on the engine: decisions equal to the simulator's, and no sequence ever reads KV that is not its own."""

from __future__ import annotations

import pytest

from core.decision_log import DecisionLog, Event, first_difference
from core.inputs_log import read_inputs
from engine.executor import TorchExecutor
from kvtwin.composition import compose_config
from kvtwin.engine_runs import INPUTS_FILE, load_engine_run
from kvtwin.naming import options_of
from sim.recorded_cost import RecordedCost
from sim.simulation import run_simulation

PRESSURE = (
    "trace=agent_sessions_sample",
    "trace.limit=30",
    "trace.length_scale=1/16",
    "trace.arrivals=all_at_once",
    "pool.block_size_tokens=4",
    "pool.num_blocks=90",
    "scheduler.max_batch_tokens=256",
    "engine.shadow=true",
)
BOLDER = {
    "vllm_0_33_async": ("engine.output=forced_length",),  # tokens that are on their way when they are used
    "sglang_0_5": ("admission.conservativeness=0.01", "pool.num_blocks=60"),  # else it reserves enough
    "orca": ("allocation.max_seq_tokens=256", "pool.num_blocks=128"),  # room for two
    "faster_transformer": ("allocation.max_seq_tokens=256", "pool.num_blocks=128"),
}
NEVER_PREEMPTS = ("tgi", "tensorrt_llm_no_evict", "orca", "faster_transformer")


@pytest.mark.parametrize("preset", [name for name in options_of("preset") if name != "none"])
def test_lockstep(preset, tmp_path, monkeypatch):
    # As on a GPU; has no effect where a step is decided when the one before it is done.
    monkeypatch.setattr(TorchExecutor, "overlaps", True)
    words = [f"preset={preset}", "model=tiny", *PRESSURE, *BOLDER.get(preset, ())]
    runner = load_engine_run(compose_config("engine", words))
    engine = runner.run()
    assert (Event.PREEMPT not in engine.log.rows()[:, 1]) == (preset in NEVER_PREEMPTS)
    assert engine.records.summary["engine"]["shadow_checked"]["read"] > 0
    (tmp_path / INPUTS_FILE).write_bytes(engine.records.files[INPUTS_FILE])
    inputs = read_inputs(tmp_path / INPUTS_FILE)
    experiment, log = runner.setup.experiment.spanning(), DecisionLog()
    run_simulation(
        experiment.source(inputs.num_output_tokens), experiment.build(log), RecordedCost(inputs.durations_ps)
    )
    difference = first_difference(log.rows(), engine.log.rows())
    assert difference is None, str(difference)
