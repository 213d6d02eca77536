"""Machine code stands for the very sources at hand, or not at all; and it computes what they do."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from core import units
from core.errors import InputError
from kvtwin import compiled, compiling
from kvtwin.app import main

ANY_COMPILER = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")


@pytest.fixture
def one_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a product of one small module. Whatever is found by it is forgotten again."""
    monkeypatch.setenv("KVTWIN_CACHE", str(tmp_path))
    monkeypatch.delenv("KVTWIN_COMPILED", raising=False)
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, compiled._Finder)])
    for module in (compiled, compiling):
        monkeypatch.setattr(module, "MODULES", ("core.units",))
    return tmp_path


def test_a_changed_source_has_no_machine_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in compiled.PACKAGES:
        (tmp_path / package).mkdir()
    source = tmp_path / "core" / "step.py"
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    folders = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        source.write_text(text)
        folders.add(compiled.folder())
    source.rename(tmp_path / "sim" / "step.py")
    folders.add(compiled.folder())
    assert len(folders) == 3, "two texts in one place, one of them in another"


def test_machine_code_is_used_from_the_start_or_not_at_all(one_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.folder().mkdir(parents=True)
    compiled.use()
    assert not compiled.is_used(), "core.units is already here, as source"
    monkeypatch.delitem(sys.modules, "core.units")
    monkeypatch.setenv("KVTWIN_COMPILED", "0")
    compiled.use()
    assert not compiled.is_used()
    monkeypatch.delenv("KVTWIN_COMPILED")
    compiled.use()
    assert compiled.is_used()
    found = importlib.util.find_spec("core.units")
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).parent == compiled.folder() / "core"


def test_without_a_folder_the_sources_are_read(one_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "core.units")
    compiled.use()
    (one_module / "compiled").mkdir()
    compiled.use()
    assert not compiled.is_used()


def test_machine_code_that_does_something_else_is_not_kept(one_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = compiled.folder()
    place.mkdir(parents=True)
    found = {"0": {"a": 1, "b": 2}, "1": {"a": 1, "b": 3}}
    monkeypatch.setattr(compiling, "_outcomes", lambda kind: found[kind])
    with pytest.raises(InputError, match="is not kept, for it does otherwise than the source: b"):
        compiling._check(place)
    assert not place.exists()
    place.mkdir()
    found["1"] = {"TypeError: bool expected": None}
    with pytest.raises(InputError, match="otherwise than the source: TypeError: bool expected"):
        compiling._check(place)
    place.mkdir()
    found["1"] = found["0"]
    compiling._check(place)
    assert place.exists()


@pytest.mark.skipif(ANY_COMPILER is None, reason="no C compiler here")
@pytest.mark.skipif(compiled.is_used(), reason="this process has machine code of all modules")
def test_machine_code_computes_what_the_source_does(
    one_module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "_check", lambda place: None)  # of nearly all, which is source here
    assert main(["compile"]) == 0
    assert "made" in capsys.readouterr().out
    assert main(["compile"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert list((one_module / "compiled").iterdir()) == [compiled.folder()], "nothing half-made is left"

    sys.meta_path.insert(0, compiled._Finder(compiled.folder()))
    spec = importlib.util.find_spec("core.units") if sys.modules.pop("core.units") else None
    sys.modules["core.units"] = units
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    assert native.__file__ is not None
    assert native.__file__.endswith(".so") or native.__file__.endswith(".pyd")
    assert native.PS_PER_S == units.PS_PER_S
    for seconds in (0.0, 1e-12, 0.1, 1.5e-7, 86_400.123, 1e9):
        assert native.to_ps(seconds) == units.to_ps(seconds)
        assert native.to_s(units.to_ps(seconds)) == units.to_s(units.to_ps(seconds))


def test_what_is_missing_is_said_in_one_line(one_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^compile: mypyc and setuptools not installed; pip install 'kvtwin\[comp"):
        compiling.compile_modules()


def test_a_failed_compilation_leaves_nothing(one_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MODULES", ("core.no_such_module",))
    with pytest.raises(InputError, match=r"^compile: mypyc or the C compiler failed: .*no_such_module"):
        compiling.compile_modules()
    assert list((one_module / "compiled").iterdir()) == []


def test_compile_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "core"]) == 2
    assert "compile takes no arguments, got core" in capsys.readouterr().err
    assert main(["compile", "--help"]) == 0
    assert "KVTWIN_COMPILED=0" in capsys.readouterr().out
