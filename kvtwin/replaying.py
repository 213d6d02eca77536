"""Lockstep: replays an engine run's recorded inputs into the simulator and compares the decisions.

`python -m kvtwin.replaying RUN_FOLDER ROWS_FILE` is the fresh process that does it: it knows nothing of the engine but
what the run folder says.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from core.decision_log import DecisionLog, Difference, first_difference
from core.errors import InputError
from core.inputs_log import read_inputs
from kvtwin.comparison import Lockstep
from kvtwin.experiment import load_experiment
from kvtwin.store import Run, read_run
from sim.recorded_cost import RecordedCost
from sim.simulation import run_simulation

INPUTS_FILE = "inputs.jsonl.gz"


def check_lockstep(run: Run, log: DecisionLog) -> Lockstep:
    """Are the simulator's decisions, fast-forwarding on the engine's recorded clock, those in `log`?"""
    with tempfile.TemporaryDirectory() as folder:
        rows_file = Path(folder) / "rows.npy"
        command = [sys.executable, "-m", "kvtwin.replaying", str(run.folder), str(rows_file)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode != 0:
            reason = child.stderr.strip().splitlines()[-1] if child.stderr.strip() else f"status {child.returncode}"
            return Lockstep(len(log), f"the replay stopped: {reason}")
        difference = first_difference(log.rows(), np.load(rows_file))
    return Lockstep(len(log), None if difference is None else _told(difference))


def _told(difference: Difference) -> str:
    sides = {"engine": difference.left, "simulator": difference.right}
    context = (f"  {name}:\n" + "\n".join(f"    {decision}" for decision in side) for name, side in sides.items())
    return "\n".join((f"decision {difference.position}", *context))


def replay(run: Run) -> DecisionLog:
    """The decisions of the simulator on the run's recorded inputs."""
    inputs = read_inputs(run.folder / INPUTS_FILE)
    config = OmegaConf.create(run.summary["config"])
    experiment = load_experiment(
        config,
        default_num_blocks=run.summary["pool"]["num_blocks"],
        default_max_model_len=run.summary["replay"]["max_model_len"],
        single_steps=False,
        outputs_as_recorded=run.summary["replay"]["outputs_as_recorded"],
    )
    if experiment.trace.sha256 != run.summary["trace"]["sha256"]:
        raise InputError(f"{run.folder}: the trace has changed since the run")
    log = DecisionLog()
    run_simulation(
        experiment.source(inputs.num_output_tokens), experiment.build(log), RecordedCost(inputs.durations_ps)
    )
    return log


def main() -> int:
    try:
        np.save(sys.argv[2], replay(read_run(Path(sys.argv[1]))).rows())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
