"""The command as a newcomer meets it: its verbs, what it prints and leaves behind, how it ends when told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import Kvtwin, in_folder, row, summary_of, write_trace

from kvtwin.app import VERBS

ROOT = Path(__file__).parents[1]
LATENCY = {"mean", "p50", "p90", "p95", "p99", "max", "n"}


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def process(folder: Path, *words: str) -> subprocess.Popen[str]:
    """`kvtwin WORDS...` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "kvtwin.app", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def long_trace(path: Path) -> Path:
    """Takes minutes to simulate step by step."""
    return write_trace(path, [row(number, 300, 400) for number in range(6000)])


@pytest.mark.parametrize(
    ("verb", "set_by_user", "found"), [("mrc", None, "1"), ("mrc", "3", "3"), ("demo", None, None), ("demo", "3", "3")]
)
def test_numpy_starts_no_threads_where_nothing_would_use_them(kvtwin, monkeypatch, verb, set_by_user, found):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", set_by_user or "")
    if set_by_user is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    kvtwin(verb, "--help")
    assert os.environ.get("OPENBLAS_NUM_THREADS") == found


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(kvtwin, words):
    finished = kvtwin(*words)
    assert finished.status == 0
    assert all(f"  {verb} " in finished.out for verb in VERBS)


def test_help_of_a_verb_lists_its_groups_and_keys(kvtwin):
    finished = kvtwin("sim", "--help")
    assert finished.status == 0
    assert finished.out.startswith("kvtwin sim: ")
    options = sorted(path.stem for path in (ROOT / "conf" / "eviction").glob("*.yaml"))
    assert f"eviction: {', '.join(options)}\n" in finished.out
    assert "num_blocks: auto" in finished.out


@pytest.mark.parametrize("verb", ["parity", "model", "report", "doctor", "collect", "compare"])
def test_help_of_a_verb_without_a_configuration_is_its_usage(kvtwin, verb):
    finished = kvtwin(verb, "--help")
    assert finished.status == 0
    assert finished.out.startswith(f"usage: kvtwin {verb}")


def test_the_version_is_the_packages(kvtwin):
    finished = kvtwin("--version")
    assert finished.status == 0
    assert finished.out.startswith("kvtwin ")


def test_a_simulation_prints_a_table_and_leaves_a_run_folder(kvtwin):
    finished = kvtwin("sim", "trace.limit=20")
    assert (finished.status, finished.errors) == (0, [])
    assert "TTFT (ms)" in finished.out
    assert "Output throughput" in finished.out
    assert finished.folder.parent == Path("runs/sim")
    written = {path.name for path in finished.folder.iterdir()}
    assert written == {"summary.json", "requests.npz", "steps.npz", "gaps.npz"}
    assert {path.name for path in Path().iterdir()} == {"runs"}


def test_a_summary_has_every_key_that_scripts_rely_on(kvtwin):
    summary = kvtwin("sim", "trace.limit=20", "slo=chat", "seed=7").summary
    assert summary["schema"] == "kvtwin.run/1"
    assert summary["kind"] == "sim"
    assert summary["seed"] == 7
    assert summary["config"]["trace"]["limit"] == 20
    assert summary["config"]["cost"]["hardware"]["name"] == "h100_80gb"  # resolved
    assert {"eviction", "admission", "queue", "preemption", "model", "hardware", "trace"} <= summary["labels"].keys()
    assert {"python", "kvtwin", "numpy", "simpy", "hydra-core"} <= summary["versions"].keys()
    assert summary["ignored"] == []
    assert summary["interrupted"] is False
    assert summary["trace"].keys() == {"name", "sha256", "num_requests", "num_dropped"}
    assert summary["trace"]["num_requests"] == 20
    assert summary["trace"]["num_dropped"] == {}
    pool = summary["pool"]
    assert pool["bytes"] == pool["num_blocks"] * pool["block_size_tokens"] * pool["bytes_per_token"]
    assert summary["decisions"]["num"] > 0
    assert len(summary["decisions"]["digest"]) == 64
    metrics = summary["metrics"]
    for latency in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        assert metrics[latency].keys() == LATENCY, latency
    for figure in ("output_tokens_per_s", "requests_per_s", "goodput_rps", "slo_attainment_ratio", "prefix_hit_ratio"):
        assert isinstance(metrics[figure], float), figure
    for count in ("prefix_hit_tokens", "prompt_tokens", "num_preemptions", "recomputed_tokens", "swapped_bytes"):
        assert isinstance(metrics[count], int), count
    assert isinstance(metrics["num_evictions"], int)
    assert metrics["kv_utilization_ratio"].keys() == {"time_mean", "peak"}
    assert metrics["waste_ratio"].keys() == {"reserved", "internal", "external"}
    assert metrics["outcomes"] == {"finished": 20, "rejected": 0, "cancelled": 0, "unfinished": 0}
    cost = summary["cost"]
    assert cost.keys() == {"wall_s", "cpu_s", "peak_rss_bytes", "num_steps", "num_plans", "num_refused_spans"}
    assert 0 == cost["num_refused_spans"] < cost["num_plans"] < cost["num_steps"]


@pytest.mark.parametrize(
    "words",
    [("queue=vtc",), ("model=gemma3_1b", "cost=linear"), ("trace.beam_width=2",), ("cost._target_=own_cost.Tick",)],
    ids=lambda words: words[0],
)
def test_steps_that_no_span_can_hold_are_counted(kvtwin, words):
    """A queue that is asked anew in each step, layers with a window, a search, a cost that knows single steps only."""
    Path("own_cost.py").write_text(
        "from sim.cost_model import CostModel\n"
        "class Tick(CostModel):\n"
        "    def __init__(self, **ignored): pass\n"
        "    def step_ps(self, work): return 10**9\n"
    )
    cost = kvtwin("sim", "trace.limit=60", "trace.rate_scale=100", "pool.num_blocks=600", *words).summary["cost"]
    assert 0 < cost["num_refused_spans"] <= cost["num_plans"] <= cost["num_steps"]


def test_the_log_of_decisions_is_kept_on_request(kvtwin):
    full = kvtwin("sim", "trace.limit=10", "decisions=full")
    off = kvtwin("sim", "trace.limit=10", "decisions=off")
    assert (full.folder / "decisions.jsonl.gz").exists()
    assert full.summary["decisions"]["num"] > 0
    assert off.summary["decisions"] == {"num": 0, "digest": None}


def test_fast_forward_changes_no_decision(kvtwin):
    fast = kvtwin("sim", "trace.limit=30", "pool.num_blocks=600").summary
    single = kvtwin("sim", "trace.limit=30", "pool.num_blocks=600", "fast_forward=false").summary
    assert fast["decisions"] == single["decisions"]
    assert fast["metrics"] == single["metrics"]
    assert single["cost"]["num_plans"] == single["cost"]["num_steps"]


def test_a_run_goes_exactly_where_it_is_told_to(kvtwin):
    assert kvtwin("sim", "trace.limit=5", "out=here/there").folder == Path("here/there")
    assert summary_of(Path("here/there"))["config"]["out"] == "here/there"
    assert not Path("runs").exists()


def test_what_the_trace_offers_in_vain_is_named(kvtwin, tmp_path):
    rows = [row(0, tenant=1, session_id=4), row(1, num_samples=2), row(2, cancel_after_s=9, priority=3)]
    trace = write_trace(tmp_path / "own.jsonl", rows)
    finished = kvtwin("sim", "trace=file", f"trace.path={trace}")
    assert finished.errors == ["note: not honoured by this run: priority, tenant, session_id"]
    assert finished.summary["ignored"] == ["priority", "tenant", "session_id"]
    assert re.search(r"Prefix hit ratio +undefined", finished.out)


@pytest.mark.parametrize(
    ("words", "honoured"),
    [
        (["queue=priority"], "priority"),
        (["preemption=lowest_priority"], "priority"),
        (["eviction=radix/priority", "pool.prefix_index=radix"], "priority"),
        (["queue=vtc"], "tenant"),
    ],
)
def test_what_a_policy_goes_by_is_honoured(kvtwin, tmp_path, words, honoured):
    trace = write_trace(tmp_path / "own.jsonl", [row(0, tenant=1), row(1, priority=3)])
    finished = kvtwin("sim", "trace=file", f"trace.path={trace}", *words)
    assert finished.summary["ignored"] == [name for name in ("priority", "tenant") if name != honoured]


def test_swapping_without_room_on_the_host_is_told(kvtwin):
    few_blocks = ("trace.limit=40", "trace.rate_scale=20", "pool.num_blocks=150", "admission=greedy")
    finished = kvtwin("sim", "preemption=swap", *few_blocks)
    assert finished.summary["metrics"]["num_swap_fallbacks"] > 0
    assert any("found no room on the host" in line for line in finished.errors)


def test_size_prints_a_screen_or_json(kvtwin):
    screen = kvtwin("size", "context=2048")
    assert screen.status == 0
    assert "KV" in screen.out
    figures = json.loads(kvtwin("size", "context=2048", "--json").out)
    assert figures["context_tokens"] == 2048


def test_models_are_listed(kvtwin):
    finished = kvtwin("model", "list")
    assert finished.status == 0
    assert "llama3_8b" in finished.out.splitlines()


def test_a_finished_run_gets_its_report(kvtwin):
    pytest.importorskip("plotly", reason="plotly is in the extra `report`")
    run = kvtwin("sim", "trace.limit=10").folder
    finished = kvtwin("report", str(run))
    assert (finished.status, finished.out.strip()) == (0, str(run / "report.html"))
    assert (run / "report.html").stat().st_size > 1_000_000  # plotly itself is inside: the page works offline


ONE_SIMULATION = """
import sys
import kvtwin.verbs.sim as verb
from kvtwin.app import main

simulate = verb.simulate_records

def begin(*given):
    late = {"rich", "traces.generate", "traces.recipe", "traces.readers.azure", "traces.readers.parquet"}
    print(sorted(late & set(sys.modules)), "traces.readers.own" in sys.modules)
    return simulate(*given)

verb.simulate_records = begin
status = main(["sim", "trace.limit=5"])
print(status, sorted({"torch", "triton", "plotly"} & set(sys.modules)))
"""


def test_the_simulator_never_imports_torch_and_begins_before_it_imports_what_tables_need(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", ONE_SIMULATION]
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = finished.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[] True", "0 []"), finished.stderr


def test_a_reader_that_stops_reading_ends_the_command_in_silence(tmp_path):
    child = process(tmp_path, "model", "list")
    assert child.stdout is not None
    child.stdout.close()
    _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (1, "")


def test_ctrl_c_keeps_what_was_simulated_marked_as_interrupted(tmp_path):
    trace = long_trace(tmp_path / "long.jsonl")
    child = process(tmp_path, "sim", "trace=file", f"trace.path={trace}", "fast_forward=false")
    runs = tmp_path / "runs" / "sim"
    while not runs.exists():  # made when the simulation begins
        time.sleep(0.05)
        assert child.poll() is None, child.communicate()
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert errors.splitlines() == ["stopping after this step; Ctrl-C again drops what ran", "kvtwin: interrupted"]
    assert "interrupted: figures cover the part that ran" in out
    (folder,) = runs.iterdir()
    summary = summary_of(folder)
    assert summary["interrupted"] is True
    assert 0 < summary["metrics"]["outcomes"]["unfinished"] < 6001


def test_ctrl_c_before_there_is_anything_leaves_nothing(tmp_path):
    child = process(tmp_path, "sim", "trace.limit=5")
    time.sleep(0.1)  # Python is starting, or the configuration is being read
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert child.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_sweep_and_its_whole_rows_are_printed(kvtwin, tmp_path, monkeypatch):
    trace = write_trace(tmp_path / "own.jsonl", [row(0), row(1)])
    runs_so_far = []

    def interrupted_in_the_second(*args):
        runs_so_far.append(args)
        if len(runs_so_far) == 2:
            raise KeyboardInterrupt
        return simulate(*args)

    from kvtwin.verbs import sim

    simulate = sim.simulate_records
    monkeypatch.setattr(sim, "simulate_records", interrupted_in_the_second)
    finished = kvtwin("sim", "hydra.launcher.processes=1", "-m", "seed=1,2,3", "trace=file", f"trace.path={trace}")
    assert finished.status == 130
    assert finished.errors == ["kvtwin: interrupted"]
    assert len(runs_so_far) == 2  # the third job never began
    assert len(list(Path("runs/sim").iterdir())) == 1  # and the second left no folder


def test_files_have_the_names_that_people_give_them(kvtwin, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    write_trace(tmp_path / "home" / "a days = own (1).jsonl", [row(0)])
    assert kvtwin("sim", "trace=file", "trace.path=~/a days = own (1).jsonl", "out=~/run [1]").status == 0
    assert (tmp_path / "home" / "run [1]" / "summary.json").exists()


def test_no_hit_at_all_is_explained_by_the_block_size(kvtwin):
    """Sharing is matched in whole blocks: with one longer than every prompt the hit ratio is 0; a note says why."""
    finished = kvtwin("sim", "trace=agent_sessions_sample", "trace.limit=20", "pool.block_size_tokens=8192")
    assert finished.summary["metrics"]["prefix_hit_ratio"] == 0
    assert "note: no prefix hits: prefixes are matched in whole blocks of 8192 tokens" in " ".join(finished.errors)
    assert not kvtwin("sim", "trace=agent_sessions_sample", "trace.limit=20").errors
