"""The rules of the house: arrows between packages, no torch where none is needed, files that stay small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from shapes import bundled, hardware, model

ROOT = Path(__file__).parents[1]
PACKAGES = ("core", "policies", "sim", "engine", "kernels", "traces", "kvtwin")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that finds the packages of this tree."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)


def test_imports_follow_the_arrows():
    pytest.importorskip("importlinter", reason="import-linter is in the extra `dev`")
    finished = run_python("import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())")
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr


def test_the_simulators_path_imports_no_torch():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("core", "policies", "sim", "traces")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.stem.endswith("_tensors")
    ]
    modules += ["kvtwin"] if (ROOT / "kvtwin" / "__init__.py").exists() else []
    imports = "\n".join(f"import {name}" for name in modules)
    heavy = "{'torch', 'triton', 'plotly', 'hydra'} & set(sys.modules)"
    finished = run_python(f"import sys\n{imports}\nprint(sorted({heavy}))")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "[]"


def test_kernels_has_no_version_for_transformers_to_find():
    # transformers takes any importable `kernels` with a version for the package of that name on PyPI.
    for path in (ROOT / "kernels").rglob("*.py"):
        assert "__version__" not in path.read_text(), path


@pytest.mark.parametrize("name", bundled("model"))
def test_every_model_file_makes_the_shape_it_is_named_after(name):
    assert model(name).name == name


@pytest.mark.parametrize("name", bundled("hardware"))
def test_every_hardware_file_makes_a_device(name):
    if name != "local":  # a placeholder, named for what it is; calibration writes files of its own
        assert hardware(name).name == name
    assert hardware(name).ridge_flop_per_byte > 0


@pytest.mark.parametrize("group", ["model", "hardware"])
def test_every_figure_file_opens_with_its_source(group):
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        assert path.read_text().startswith("# "), path


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 80


@pytest.mark.parametrize("package", [*PACKAGES, "tests", "benchmarks"])
def test_no_file_is_long(package):
    long = [path.name for path in (ROOT / package).rglob("*.py") if len(path.read_text().splitlines()) > 400]
    assert long == []


def test_every_direct_dependency_is_pinned():
    extras = PROJECT["project"]["optional-dependencies"].values()
    requirements = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    direct = {re.match(r"[\w-]+", requirement).group() for requirement in requirements}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    # triton is bounded: torch's CUDA build wants a version of its own.
    assert direct - pinned == {"triton"}
    assert "triton<=3.9.0" in lines


def test_every_package_is_shipped():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(wheel) == sorted([*PACKAGES, "conf"])
    for package in wheel:
        assert (ROOT / package / "__init__.py").is_file(), f"{package} is not importable once installed"


def test_the_names_of_this_machine_stay_out():
    ours = [path for package in (*PACKAGES, "conf", "docs", "scripts") for path in (ROOT / package).rglob("*")]
    ours += [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run"]
    texts = (path for path in ours if path.suffix in {"", ".py", ".md", ".yaml"} and path.is_file())
    home = re.compile(r"(?<![\w.])/(?:work|root|home)/")
    assert [str(path) for path in texts if home.search(path.read_text())] == []
