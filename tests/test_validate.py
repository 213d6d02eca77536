"""Engine and simulator on one trace: the same decisions, figures side by side, and any tampering found out."""

from __future__ import annotations

import gzip
import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from command import Kvtwin, in_folder, row, summary_of, write_trace

pytest.importorskip("torch", reason="torch is in the extra `engine`")
pytest.importorskip("plotly", reason="plotly is in the extra `report`")

from core.decision_log import DecisionLog
from kvtwin import engine_runs, validating
from kvtwin.api import compose
from kvtwin.engine_runs import EngineResult, load_engine_run
from kvtwin.replaying import check_lockstep
from kvtwin.simulating import load_calibrated
from kvtwin.store import Run
from sim.cost_model import StepWork

TINY = ("model=tiny", "engine.weights=random", "engine.dtype=float32")
SMALL = ("trace.limit=30", "trace.length_scale=1/16", "trace.rate_scale=100")
PRESSED = (*SMALL, "pool.num_blocks=24", "admission=greedy")
CALIBRATION = "validate.calibration.trace.limit=10"


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def test_under_pressure_the_decisions_are_the_same_and_the_times_stand_side_by_side(kvtwin):
    words = (*TINY, *PRESSED, CALIBRATION, "pool.host_blocks=60", "validate.repeats=1", "out=run${hydra:job.num}")
    finished = kvtwin("validate", "-m", *words, "preemption=recompute,swap")
    assert finished.status == 0, finished
    assert finished.out.count("decisions: identical (") == 2
    assert "\nSimulated (what was measured stands beside it" in finished.out
    assert [line.partition(": ")[2] for line in finished.errors if line.startswith("validate: engine run")] == [
        "engine run 1 of 1: 30 requests, calibration (10) in turns with it"
    ] * 2
    assert all(
        any(f"note: job {job} (" in line and "): random weights, seed 0: " in line for line in finished.errors)
        for job in (0, 1)
    )
    for number, mode in enumerate(("recompute", "swap")):
        check_validation(Path(f"run{number}"), mode)

    # What the two say together: does the simulator rank them as the engine does?
    ranking = read(Path(finished.out.splitlines()[-1]).parent, "ranking.json")
    assert list(ranking["configurations"]) == ["recompute", "swap"]
    throughput = ranking["configurations"]["swap"]["metrics"]["output_tokens_per_s"]
    assert throughput == read(Path("run1"), "comparison.json")["metrics"]["output_tokens_per_s"]
    assert ranking["agreement"]["output_tokens_per_s"]["kendall_tau"] in (1, -1)

    calibrated = kvtwin("sim", "cost=calibrated", "cost.path=run0/hardware.yaml", "trace.limit=5")
    assert calibrated.status == 0
    assert calibrated.errors == [
        "note: cost.path=run0/hardware.yaml was fitted to tiny, whose times these are; the model here is llama3_8b"
    ]
    page = Path("run0/report.html")
    page.unlink()
    assert kvtwin("report", "run0").out.strip() == str(page)


def check_validation(folder: Path, mode: str) -> None:
    simulated, measured = read(folder, "sim/summary.json"), read(folder, "engine-1/summary.json")
    for side in (simulated, measured):
        assert side["metrics"]["num_evictions"] > 0
        assert side["metrics"]["num_preemptions"] > 0
    assert all(num > 0 for kind, num in measured["engine"]["shadow_checked"].items() if kind in ("read", "hit"))
    assert measured["config"]["preemption"]["mode"] == mode
    assert (measured["metrics"]["swapped_bytes"] > 0) == (mode == "swap")
    assert (measured["metrics"]["recomputed_tokens"] > 0) == (mode == "recompute")

    comparison = read(folder, "comparison.json")
    assert comparison["lockstep"]["identical"] is True
    assert comparison["lockstep"]["num_decisions"] == measured["decisions"]["num"]
    assert comparison["first_difference"] is None
    assert comparison["capacity"]["equal"] is True
    ttft = comparison["metrics"]["ttft_s.p50"]
    assert ttft.keys() == {"simulated", "measured", "error_ratio", "engine_spread_ratio"}
    assert comparison["per_request"]["e2e_s"]["n"] == 30
    assert comparison["per_request"]["e2e_s"].keys() >= {"mape_ratio", "bias_ratio"}
    assert comparison["unmatched"] == {"simulated_only": [], "measured_only": []}
    assert comparison["calibration"]["trace"] != measured["trace"]["name"]
    assert (folder / "report.html").stat().st_size > 1_000_000


class Recorded(NamedTuple):
    run: Run
    log: DecisionLog

    def rewrite(self, change) -> Recorded:
        """The same with `change(rows)` in place of the recorded inputs."""
        path = self.run.folder / "inputs.jsonl.gz"
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in change(rows)).encode()))
        return self


@pytest.fixture(scope="module")
def engine_result() -> EngineResult:
    config, _ = compose("engine", "chat_sample", [*TINY, *PRESSED], {})
    return load_engine_run(config).run()


@pytest.fixture
def recorded(engine_result, tmp_path) -> Recorded:
    return Recorded(engine_result.records.write(tmp_path / "run"), engine_result.log)


def end_a_step_before_its_arrival(rows: list[dict]) -> list[dict]:
    """Moves the end of one step over an arrival: the request then comes in the step after."""
    for step, arrival in pairwise(rows):
        if step["input"] == "step" and arrival["input"] == "arrive" and step["time_ps"] + 1 < arrival["time_ps"]:
            step["duration_ps"] = arrival["time_ps"] - step["time_ps"] - 1
            return rows
    raise AssertionError("no request came in the midst of a step")


def test_a_duration_moved_over_an_arrival_is_found_out(recorded):
    told = check_lockstep(*recorded.rewrite(end_a_step_before_its_arrival)).first_difference
    assert told.startswith("decision ")
    engine, simulator = told.split("  simulator:")
    assert "  engine:" in engine
    assert "step " in engine
    assert "step " in simulator


class OneBlockOff:
    """A log in which one decision names another block."""

    def __init__(self, log: DecisionLog) -> None:
        self._rows = log.rows().copy()
        self._rows[100, 3] += 1

    def rows(self) -> np.ndarray:
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)


def test_one_changed_decision_or_one_arrival_too_many_is_found_out(recorded):
    assert check_lockstep(recorded.run, OneBlockOff(recorded.log)).first_difference.startswith("decision 100\n")
    recorded.rewrite(lambda rows: [*rows, {"input": "arrive", "time_ps": 10**18, "request": 29}])
    told = check_lockstep(*recorded).first_difference
    assert told.startswith("the replay stopped: arrivals part: the engine's request 29 at")


def test_decisions_that_differ_end_a_validation_with_both_contexts_and_status_1(kvtwin, monkeypatch):
    def tampered(run: Run, log: DecisionLog):
        return check_lockstep(*Recorded(run, log).rewrite(end_a_step_before_its_arrival))

    monkeypatch.setattr(validating, "check_lockstep", tampered)
    finished = kvtwin("validate", *TINY, *PRESSED, CALIBRATION, "validate.repeats=1", "report=false", "out=run")
    assert finished.status == 1
    assert "decisions: NOT identical; first difference: decision " in finished.out
    assert "  engine:\n" in finished.out
    assert "  simulator:\n" in finished.out
    assert json.loads(Path("run/comparison.json").read_text())["lockstep"]["identical"] is False


def test_a_second_run_finds_nothing_of_the_first_in_the_cache(tmp_path):
    # Every prompt has words of its own: whatever is hit must have been left behind by the run before.
    rows = [row(number, 64, 4, prompt_segments=[[number * 100, 64]]) for number in range(6)]
    trace = write_trace(tmp_path / "own.jsonl", rows)
    config, _ = compose("engine", trace, [*TINY, "trace.arrivals=sequential", "pool.num_blocks=200"], {})
    runner = load_engine_run(config)
    first, second = (runner.run().records.summary for _ in range(2))
    assert first["metrics"]["prefix_hit_tokens"] == second["metrics"]["prefix_hit_tokens"] == 0
    assert first["decisions"] == second["decisions"]


def test_calibrate_writes_a_file_that_the_simulator_reads(kvtwin):
    finished = kvtwin("calibrate", *TINY, "trace.limit=20", "trace.length_scale=1/16", "hardware_file=mine.yaml")
    assert finished.status == 0, finished
    assert finished.out.strip().endswith("mine.yaml")
    assert load_calibrated("mine.yaml").step_ps(StepWork(0, num_decodes=2, decode_context_tokens=40)) > 0
    refused = kvtwin("calibrate", *TINY, "trace.limit=1", "trace.length_scale=1/16", "hardware_file=none.yaml")
    assert refused.status == 2
    assert refused.errors[-1].startswith("kvtwin: calibration sees ")
    assert not Path("none.yaml").exists()
    assert kvtwin("calibrate", *TINY, "out=mine").errors == [
        "kvtwin: out=mine: a calibration leaves one file and no run; expected hardware_file=FILE"
    ]


def test_a_calibration_that_teaches_too_little_is_told_and_leaves_nothing(kvtwin):
    finished = kvtwin("validate", *TINY, *PRESSED, "validate.calibration.trace.limit=1", "validate.repeats=1")
    assert finished.status == 2
    assert "kvtwin: calibration sees " in finished.errors[-1]
    assert not Path("runs").exists()


@pytest.fixture
def ctrl_c(monkeypatch):
    """Presses Ctrl-C in the midst of the engine's n-th run of the command, at its fifth step."""

    def press(number: int) -> None:
        step = engine_runs._Observed.run
        runs: list[engine_runs._Observed] = []  # in the order in which they began

        def counted(self, plan):
            if not any(self is run for run in runs):
                runs.append(self)
            if len(runs) == number and self is runs[-1] and len(self.works) == 4:
                signal.raise_signal(signal.SIGINT)
            return step(self, plan)

        monkeypatch.setattr(engine_runs._Observed, "run", counted)

    return press


def test_ctrl_c_keeps_what_the_engine_ran_marked_as_interrupted(kvtwin, ctrl_c):
    ctrl_c(1)
    finished = kvtwin("engine", *TINY, *PRESSED, "out=run")
    assert finished.status == 130
    assert finished.errors[-1] == "kvtwin: interrupted"
    summary = summary_of(Path("run"))
    assert summary["interrupted"] is True
    assert summary["cost"]["num_steps"] == 5
    assert summary["metrics"]["outcomes"]["unfinished"] > 0


def test_ctrl_c_ends_a_validation_and_keeps_what_the_engine_ran(kvtwin, ctrl_c):
    ctrl_c(3)  # after the warm-up, with engine and calibration under way
    finished = kvtwin("validate", *TINY, *PRESSED, CALIBRATION, "out=run")
    assert finished.status == 130
    assert finished.errors[-2:] == ["kvtwin: what ran is in run", "kvtwin: interrupted"]
    assert summary_of(Path("run/engine-1"))["interrupted"] is True
    assert [path.name for path in Path("run").iterdir()] == ["engine-1"]


def test_ctrl_c_before_the_engine_ran_leaves_nothing(kvtwin, ctrl_c):
    ctrl_c(1)  # in the warm-up
    finished = kvtwin("validate", *TINY, *PRESSED, CALIBRATION)
    assert finished.status == 130
    assert finished.errors[-2:] == ["kvtwin: nothing ran to its end", "kvtwin: interrupted"]
    assert not Path("runs").exists()
