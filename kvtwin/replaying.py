"""Lockstep: replays an engine run's recorded inputs into the simulator and compares the decisions.

`python -m kvtwin.replaying RUN_FOLDER ROWS_FILE` is the fresh process that does it: it knows nothing of the engine but
what the run folder says.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from core.columns import requests_of
from core.decision_log import DecisionLog, Difference, first_difference
from core.errors import InputError
from core.inputs_log import RecordedInputs, read_inputs
from core.request_log import RequestLog
from kvtwin.comparison import Lockstep
from kvtwin.experiment import load_experiment
from kvtwin.failures import tell_failure
from kvtwin.store import Run, read_run
from sim.beam_model import RecordedBeams
from sim.recorded_cost import RecordedCost
from sim.simulation import run_simulation

INPUTS_FILE = "inputs.jsonl.gz"


def check_lockstep(run: Run, log: DecisionLog) -> Lockstep:
    """Are the simulator's decisions, fast-forwarding on the engine's recorded clock, those in `log`?"""
    with tempfile.TemporaryDirectory() as folder:
        rows_file = Path(folder) / "rows.npy"
        # -P: the working folder comes last on the path, lest a sim/ or core.py of the user's hides ours.
        command = [sys.executable, "-P", "-m", "kvtwin.replaying", str(run.folder), str(rows_file)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        told = child.stderr.strip().splitlines()
        stopped = f"the replay stopped: {told[-1].removeprefix('kvtwin: ')}" if told else ""
        if not rows_file.exists():
            return Lockstep(len(log), stopped or f"the replay ended with status {child.returncode}")
        difference = first_difference(log.rows(), np.load(rows_file))
    return Lockstep(len(log), stopped or None if difference is None else _told(difference))


def _told(difference: Difference) -> str:
    sides = {"engine": difference.left, "simulator": difference.right}
    context = (f"  {name}:\n" + "\n".join(f"    {decision}" for decision in side) for name, side in sides.items())
    return "\n".join((f"decision {difference.position}", *context))


def replay(run: Run, log: DecisionLog) -> None:
    """Takes the simulator's decisions on the run's recorded inputs into `log`.

    Raises InputError where the inputs do not fit the run; `log` then holds the decisions up to there.
    """
    inputs = read_inputs(run.folder / INPUTS_FILE)
    experiment = load_experiment(
        OmegaConf.create(run.summary["config"]),
        default_num_blocks=run.summary["pool"]["num_blocks"],
        default_max_model_len=run.summary["replay"]["max_model_len"],
        single_steps=False,
        outputs_as_recorded=run.summary["replay"]["outputs_as_recorded"],
    )
    if experiment.trace.sha256 != run.summary["trace"]["sha256"]:
        raise InputError(f"{run.folder}: the trace has changed since the run")
    scheduler = experiment.build(log)
    source, cost = experiment.source(inputs.num_output_tokens), RecordedCost(inputs.durations_ps)
    run_simulation(source, scheduler, cost, RecordedBeams(inputs.parents))
    _check_arrivals(inputs, requests_of(scheduler))


def _check_arrivals(inputs: RecordedInputs, requests: RequestLog) -> None:
    """Decisions that agree although requests came at other times would agree by luck."""
    arrivals = zip(requests.column("arrival_ps").tolist(), requests.column("request_id").tolist(), strict=True)
    for recorded, replayed in zip_longest(sorted(inputs.arrivals), sorted(arrivals)):
        if recorded != replayed:
            raise InputError(f"arrivals part: the engine's {_arrival(recorded)}, the simulator's {_arrival(replayed)}")


def _arrival(arrival: tuple[int, int] | None) -> str:
    return "none" if arrival is None else f"request {arrival[1]} at {arrival[0]} ps"


def main() -> int:
    sys.path.append(str(Path.cwd()))  # for a policy of the user's own
    log = DecisionLog()
    try:
        replay(read_run(Path(sys.argv[1])), log)
    except Exception as error:
        return tell_failure(error)
    finally:
        if len(log):
            np.save(sys.argv[2], log.rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
