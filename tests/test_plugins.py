"""Policies of installed packages: by short name like those that ship, and told where they cannot be had."""

from __future__ import annotations

import copy
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree

import pytest
from command import Kvtwin, in_folder, refusals, summary_of
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from kvtwin import plugins
from kvtwin.plugins import offer_plugins, plugin_files, plugin_policies

EXAMPLE = Path(__file__).parents[1] / "examples" / "kvtwin-example-policy"
Install = Callable[[str, Mapping[str, Mapping[str, str]]], Path]


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    (tmp_path / "work").mkdir()
    return in_folder(tmp_path / "work", monkeypatch, capsys)


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """What pip leaves of a package: its entry points in a .dist-info; returns the folder for its modules."""
    site = tmp_path / "site"
    site.mkdir()
    Plugins.instance()  # Hydra's own options are in the store before it is copied
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))
    plugins._policy.cache_clear()
    plugins._conf_folder.cache_clear()

    def write(name: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        with (info / "entry_points.txt").open("w") as file:
            for group, points in entry_points.items():
                file.write("\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items()), ""]))
        return site

    yield write
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(site)):
            del sys.modules[name]


@pytest.fixture
def example(install) -> None:
    """The example package, installed as its own pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = install(project["name"], project["entry-points"])
    copytree(EXAMPLE / "src", site, dirs_exist_ok=True)


PLUGIN = """
from kvtwin import PriorityEviction, QueuePolicy

class Mine(PriorityEviction):
    def __init__(self, env, depth=2, *, share=0.5, names=(), hook=print):
        super().__init__(env)
        self.depth = depth
    def priority(self, block):
        return block.position // self.depth

class Needs(QueuePolicy):
    def __init__(self, env, patience_s):
        super().__init__(env)
    def key(self, request):
        return request.queue_position
"""


def test_the_example_runs_by_its_short_names(kvtwin, example):
    finished = kvtwin("sim", "eviction=second_chance_ends", "trace.limit=5", "pool.num_blocks=400")
    assert (finished.status, finished.errors) == (0, [])
    chosen = {"_target_": "kvtwin_example_policy.second_chance_ends.SecondChanceEnds", "protected_hits": 1}
    assert finished.summary["config"]["eviction"] == chosen


def test_the_example_keeps_its_promises_and_is_listed(kvtwin, example):
    finished = kvtwin("policy", "check", "second_chance_ends_3", "--fast")
    assert finished.out.splitlines()[0].endswith("kvtwin_example_policy.second_chance_ends.SecondChanceEnds")
    assert finished.status == 0
    out = kvtwin("policy", "list", "--kind", "eviction").out
    assert "second_chance_ends_3 comes with kvtwin-example-policy 1.0" in out


def test_a_plugin_shows_in_help_in_the_settings_and_in_a_glob(kvtwin, install):
    (install("own", {"kvtwin.eviction": {"mine": "own_plugin:Mine"}}) / "own_plugin.py").write_text(PLUGIN)
    assert ", mine, " in kvtwin("sim", "--help").out
    settings = kvtwin("sim", "eviction=mine", "--cfg", "job").out
    assert "eviction:\n  _target_: own_plugin.Mine\n  depth: 2\n  share: 0.5\n  names: []\n" in settings
    swept = kvtwin("sim", "-m", "eviction=glob(mi*)", "trace.limit=3")
    assert swept.status == 0
    (summary,) = Path("runs").rglob("summary.json")
    assert summary_of(summary.parent)["config"]["eviction"]["_target_"] == "own_plugin.Mine"


def test_a_parameter_without_a_default_has_to_be_given(kvtwin, install):
    (install("own", {"kvtwin.queue": {"needy": "own_plugin:Needs"}}) / "own_plugin.py").write_text(PLUGIN)
    assert refusals(kvtwin)("sim", "queue=needy") == "queue.patience_s is missing: Needs has no default for it"
    assert kvtwin("policy", "check", "needy", "patience_s=3", "--fast").status == 0


def test_what_cannot_be_had_is_left_out_and_told_once(capsys, install):
    points = {
        "kvtwin.eviction": {"broken": "broken_plugin:Mine", "path": "pathlib:Path"},
        "kvtwin.evictions": {"mine": "own_plugin:Mine"},
        "kvtwin.conf": {"own": "no_such_conf"},
    }
    (install("own", points) / "broken_plugin.py").write_text("import nothing_like_it\n")
    offer_plugins()
    offer_plugins()
    told = "".join(f"kvtwin: plugin {why}.*\n" for why in LEFT_OUT)
    assert re.fullmatch(told, capsys.readouterr().err)
    assert (plugin_policies(), plugin_files()) == ([], [])


LEFT_OUT = [
    "broken of own 1.0 is left out: broken_plugin:Mine: ModuleNotFoundError: No module named 'nothing_like_it' ",
    "mine of own 1.0 is left out: no group kvtwin.evictions; did you mean kvtwin.eviction ",
    "path of own 1.0 is left out: pathlib:Path is no policy; expected a class derived from one of kvtwin's",
    "own of own 1.0 is left out: no_such_conf: ModuleNotFoundError: No module named 'no_such_conf'",
]


@pytest.mark.parametrize(
    ("entry_points", "line"),
    [
        (
            {"kvtwin.eviction": {"lru": "own_plugin:Mine"}},
            "plugin own 1.0: eviction=lru is the name of one by kvtwin itself; expected another name",
        ),
        (
            {"kvtwin.eviction": {"mine": "own_plugin:Mine"}, "kvtwin.conf": {"own": "own_conf"}},
            "plugin own 1.0: eviction=mine is the name of one by own 1.0; expected another name",
        ),
    ],
)
def test_a_name_that_is_taken_is_an_error(kvtwin, install, entry_points, line):
    site = install("own", entry_points)
    (site / "own_plugin.py").write_text(PLUGIN)
    (site / "own_conf" / "eviction").mkdir(parents=True)
    (site / "own_conf" / "__init__.py").touch()
    (site / "own_conf" / "eviction" / "mine.yaml").write_text("_target_: own_plugin.Mine\n")
    assert refusals(kvtwin)("sim", "trace.limit=3") == line
