"""The Python face: the same runs as the command's, with objects where one has them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command import Kvtwin, in_folder, row, write_trace

import kvtwin
from kvtwin import EvictionPolicy, InputError, LeafRanking, PriorityEviction
from traces.reading import read_trace

ROOT = Path(__file__).parents[1]
SMALL = {"num_blocks": 150}
PRESSED = ("trace.limit=60", "trace.rate_scale=20", "admission=greedy")


class LastIn(PriorityEviction):
    """Evicts what was cached last: about the worst one can do."""

    def __init__(self, env, sign=-1.0):
        super().__init__(env)
        self._sign = sign
        self._num_seen = 0

    def priority(self, block):
        self._num_seen += 1
        return self._sign * self._num_seen


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def pressed(**choices) -> kvtwin.api.Run:
    return kvtwin.simulate("agent_sessions_sample", pool=SMALL, overrides=PRESSED, **choices)


def test_a_policy_class_of_ones_own_decides():
    lru, mine = pressed().summary, pressed(eviction=LastIn).summary
    assert mine["metrics"]["num_evictions"] > 0
    assert mine["decisions"]["digest"] != lru["decisions"]["digest"]
    assert mine["metrics"]["prefix_hit_ratio"] < lru["metrics"]["prefix_hit_ratio"]
    assert mine["labels"]["eviction"] == "lastin"
    assert mine["config"]["eviction"] == {"_target_": f"{__name__}.LastIn"}


class Shallow(LeafRanking):
    """Evicts the leaf with the least before it."""

    def rank(self, leaf):
        return leaf.depth_pages, leaf.last_access


def test_a_ranking_of_ones_own_decides_on_the_radix_tree():
    tree = {"num_blocks": 150, "prefix_index": "radix"}
    lru, mine = (
        kvtwin.simulate("agent_sessions_sample", pool=tree, overrides=PRESSED, eviction=eviction).summary
        for eviction in ("radix/lru", Shallow)
    )
    assert mine["labels"]["eviction"] == "shallow"
    assert min(run["metrics"]["num_evictions"] for run in (lru, mine)) > 0
    assert mine["decisions"]["digest"] != lru["decisions"]["digest"]


def test_its_parameters_are_bound_and_told(tmp_path):
    first_in = pressed(eviction=partial(LastIn, sign=1.0)).summary
    assert first_in["config"]["eviction"] == {"_target_": f"{__name__}.LastIn", "sign": 1.0}
    assert first_in["decisions"]["digest"] != pressed(eviction=LastIn).summary["decisions"]["digest"]


def test_the_command_finds_it_in_the_users_own_file(command, tmp_path):
    (tmp_path / "my_module.py").write_text(
        "from kvtwin import PriorityEviction\n\n\n"
        "class MyPolicy(PriorityEviction):\n"
        "    def __init__(self, env, sign=-1.0):\n"
        "        super().__init__(env)\n"
        "        self._sign = sign\n"
        "        self._num_seen = 0\n\n"
        "    def priority(self, block):\n"
        "        self._num_seen += 1\n"
        "        return self._sign * self._num_seen\n"
    )
    words = ("trace=agent_sessions_sample", "pool.num_blocks=150", *PRESSED)
    finished = command("sim", "eviction._target_=my_module.MyPolicy", *words)
    assert finished.status == 0
    assert finished.summary["decisions"] == pressed(eviction=LastIn).summary["decisions"]
    finished = command("sim", "eviction._target_=my_module.MyPolicy", "eviction.sign=1.0", *words)
    assert finished.summary["decisions"] == pressed(eviction=partial(LastIn, sign=1.0)).summary["decisions"]
    assert finished.summary["labels"]["eviction"] == "mypolicy"


def test_a_class_keeps_nothing_of_the_one_it_replaces(command, tmp_path):
    (tmp_path / "my_admission.py").write_text(
        "from kvtwin import Admission, AdmissionPolicy\n\n\n"
        "class Mine(AdmissionPolicy):\n"
        "    def admit(self, request, num_new_blocks, view):\n"
        "        return Admission.ADMIT if num_new_blocks <= view.num_free_blocks else Admission.WAIT\n"
    )
    words = ("trace=agent_sessions_sample", "pool.num_blocks=150", "trace.limit=60", "trace.rate_scale=20")
    finished = command("sim", "admission._target_=my_admission.Mine", *words)
    assert finished.status == 0, finished.errors
    assert finished.summary["config"]["admission"] == {"_target_": "my_admission.Mine"}
    assert finished.summary["decisions"] == pressed().summary["decisions"]  # it is greedy in other words


def test_the_same_seed_gives_the_same_bytes_in_any_process(tmp_path):
    code = (
        "import kvtwin; kvtwin.simulate('agent_sessions_sample', eviction='random', seed=3, out='again',"
        f" pool={SMALL}, overrides={PRESSED})"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, check=True)
    here = pressed(eviction="random", seed=3, out=tmp_path / "here")
    again = tmp_path / "again"
    for name in ("requests.npz", "steps.npz", "gaps.npz"):
        assert (again / name).read_bytes() == (here.folder / name).read_bytes(), name
    assert (again / "summary.json").read_text().count(here.summary["decisions"]["digest"]) == 1
    other = pressed(eviction="random", seed=4)
    assert other.summary["decisions"]["digest"] != here.summary["decisions"]["digest"]


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = kvtwin.simulate(overrides=["trace.limit=5"])
    assert repr(run) == "<Run: sim of chat: 5 finished; not written>"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="not written to a folder"):
        _ = run.folder


def test_a_trace_without_prefix_information_has_no_hit_ratio(tmp_path):
    run = kvtwin.simulate(write_trace(tmp_path / "own.jsonl", [row(0), row(1)]))
    assert run.summary["metrics"]["prefix_hit_ratio"] is None
    assert kvtwin.simulate(overrides=["trace.limit=5"]).summary["metrics"]["prefix_hit_ratio"] is not None
    off = kvtwin.simulate(overrides=["trace.limit=5", "scheduler.prefix_caching=false"])
    assert off.summary["metrics"]["prefix_hit_ratio"] is None


def test_a_trace_comes_by_name_path_or_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_trace(tmp_path / "own (1)=a.jsonl", [row(0), row(1), row(2)])
    runs = [kvtwin.simulate(each).summary for each in (path, str(path), read_trace(path))]
    assert {run["trace"]["num_requests"] for run in runs} == {3}
    assert len({run["decisions"]["digest"] for run in runs}) == 1
    limited = kvtwin.simulate(read_trace(path), overrides=["trace.limit=2"])
    assert limited.summary["trace"]["num_requests"] == 2


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"evction": "lru"}, "evction: no such key; did you mean eviction"),
        ({"eviction": "lruu"}, "eviction=lruu: no such eviction; did you mean lru or slru?"),
        ({"pool": {"num_blokcs": 3}}, "pool.num_blokcs: no such key; did you mean pool.num_blocks"),
        ({"pool": {"num_blocks": "few"}}, "pool.num_blocks=few: expected a whole number"),
        ({"eviction": EvictionPolicy}, "eviction: EvictionPolicy does not define on_acquire"),
        ({"queue": LastIn}, "queue: LastIn is no QueuePolicy"),
        ({"eviction": partial(LastIn, sgn=1)}, "eviction.sgn: LastIn has no such parameter; did you mean sign?"),
        ({"eviction": LastIn(None)}, "eviction=<"),
        ({"trace": "chat_smaple"}, "trace=chat_smaple: no such trace; did you mean chat_sample?"),
        ({"trace": "folder/none.jsonl"}, "trace=folder/none.jsonl: no such trace; expected one of "),
        ({"seed": "one"}, "seed=one: expected a whole number"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(choices, message):
    with pytest.raises(InputError) as caught:
        kvtwin.simulate(**choices)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_it_leaves_a_hydra_application_around_it_alone():
    from hydra import compose, initialize_config_module

    with initialize_config_module(version_base="1.3", config_module="conf"):
        kvtwin.simulate(overrides=["trace.limit=3"])
        assert compose("sim", ["seed=9"]).seed == 9


def test_two_runs_are_compared_and_unequal_pools_refused():
    ours, same, other = pressed(), pressed(eviction="fifo"), kvtwin.simulate(overrides=["trace.limit=3"])
    comparison = kvtwin.compare(ours, same)
    assert comparison["metrics"]["num_preemptions"].keys() >= {"simulated", "measured", "error_ratio"}
    with pytest.raises(InputError, match="cannot compare"):
        kvtwin.compare(ours, other)


def test_an_interrupted_run_is_marked_and_covers_what_ran(monkeypatch):
    from kvtwin.fleet import Stopped, Watch

    looks = []

    def stop_at_the_second(self, num_done):
        looks.append(num_done())
        if len(looks) == 2:
            self.interrupt.requested = True
            raise Stopped

    monkeypatch.setattr(Watch, "look_up", stop_at_the_second)
    run = pressed()
    assert run.is_interrupted
    assert run.summary["cost"]["num_plans"] == 31, "plans are counted in between"
    assert run.summary["metrics"]["outcomes"]["unfinished"] > 0
    lengths = {len(column) for column in run.steps.values()}
    assert len(lengths) == 1
    assert np.isfinite(run.steps["duration_s"]).all()


def test_the_engine_runs_from_python_too():
    pytest.importorskip("torch", reason="torch is in the extra `engine`")
    trace = ["trace.limit=6", "trace.length_scale=1/16"]
    engine = {"weights": "random", "output": "forced_length"}
    run = kvtwin.run_engine(model="tiny", engine=engine, eviction=LastIn, overrides=trace)
    assert run.summary["kind"] == "engine"
    assert run.summary["metrics"]["outcomes"]["finished"] == 6
    assert run.summary["engine"]["weights"] == "random weights, seed 0"
    assert "output_segments" in run.summary["ignored"]  # the model made up its own outputs
