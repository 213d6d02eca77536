"""A policy of the user's own that cannot be had, or fails: one line that names its file, never a traceback unasked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import Kvtwin, in_folder, refusals
from omegaconf import OmegaConf

from core.errors import InputError
from core.interfaces import PolicyEnv
from kvtwin.app import main
from kvtwin.binding import bind_policy, find_class


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's own into the working folder, which is on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("bad_import", "\nraise RuntimeError('boom')\n", "importing bad_import: RuntimeError: boom (bad_import.py, li"),
        ("bad_syntax", "class Mine(\n", "importing bad_syntax: SyntaxError: '(' was never closed (bad_syntax.py"),
        ("needs_more", "import nothing_like_it\n", "needs_more needs nothing_like_it, not installed"),
        ("has_another", "class Mien: pass\n", "has_another has no Mine; did you mean Mien?"),
        ("has_others", "class A: pass\nclass B: pass\n", "has_others has no Mine; expected one of A, B"),
    ],
)
def test_a_plugin_that_cannot_be_imported_says_why(module, name, text, line):
    module(name, text)
    target = f"{name}.Mine"
    with pytest.raises(InputError) as caught:
        find_class(target, "eviction")
    assert str(caught.value).startswith(f"eviction._target_={target}: {line}")


PLUGIN = """
from kvtwin import EvictionPolicy, PriorityEviction

class Stranger:
    def __init__(self, env): ...

class Abstract(EvictionPolicy):
    def on_release(self, blocks): ...

class Misspelt(EvictionPolicy):
    def on_release(self, blocks): ...
    def on_acquire(self, blocks): ...
    def pop_victm(self, incoming): ...
    def eviction_order(self): ...

class Unmade(PriorityEviction):
    def __init__(self, env, depth=1):
        super().__init__(env)
        self.depth = depth / 0
    def priority(self, block): return 0.0

class Raises(PriorityEviction):
    def priority(self, block):
        raise LookupError("no such block")
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Stranger", "eviction: Stranger is no EvictionPolicy; expected a class derived from kvtwin.EvictionPolicy"),
        ("Abstract", "eviction: Abstract does not define on_acquire, pop_victim, which every EvictionPolicy must"),
        (
            "Misspelt",
            "eviction: Misspelt does not define pop_victim, which every EvictionPolicy must; is its pop_victm",
        ),
        ("Unmade", "eviction: Unmade cannot be made: ZeroDivisionError: division by zero (own_plugin.py, line 19,"),
    ],
)
def test_a_plugin_that_is_no_policy_is_refused(module, name, line):
    module("own_plugin", PLUGIN)
    with pytest.raises(InputError) as caught:
        bind_policy(OmegaConf.create({"_target_": f"own_plugin.{name}"}), "eviction")(PolicyEnv(lambda: 0, 8, 16))
    assert str(caught.value).startswith(line)


def test_a_misspelt_parameter_of_a_plugin_is_told(kvtwin, module):
    module("own_plugin", PLUGIN)
    line = refusals(kvtwin)("sim", "eviction._target_=own_plugin.Unmade", "eviction.dept=3")
    assert line == "eviction.dept: Unmade has no such parameter; did you mean depth?"


def test_a_plugin_that_fails_in_the_midst_of_a_run_is_told_with_its_line(kvtwin, module):
    module("own_plugin", PLUGIN)
    finished = kvtwin("sim", "eviction._target_=own_plugin.Raises", "trace.limit=5")
    assert (finished.status, finished.out) == (1, "")
    (line,) = finished.errors
    assert line.startswith("kvtwin: LookupError: no such block (own_plugin.py, line 24, in priority); KVTWIN_TRACE")
    assert not Path("runs").exists()


def test_the_traceback_is_there_for_who_wants_it(tmp_path, monkeypatch, capsys, module):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVTWIN_TRACEBACK", "1")
    module("own_plugin", PLUGIN)
    assert main(["sim", "eviction._target_=own_plugin.Raises", "trace.limit=5"]) == 1
    assert "Traceback" in capsys.readouterr().err
