"""Makes machine code of the modules in `kvtwin.compiled`, with mypyc and the C compiler of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from typing import Any

from core.errors import InputError
from kvtwin.compiled import LIBRARY, MODULES, PACKAGES, ROOT, folder
from kvtwin.processes import num_cores

# A C file for each module, compiled side by side: setuptools would take those of one library one after the other. What
# they have of each other is hidden from other libraries, else they would call each other through a table.
_BUILD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

library, num_cores, *paths = sys.argv[1:]

class Build(build_ext):
    def build_extension(self, extension):
        def objects_of(source):
            return self.compiler.compile([source], self.build_temp, include_dirs=extension.include_dirs,
                                         extra_postargs=[*extension.extra_compile_args, *hidden])
        hidden = ["-fvisibility=hidden"] if self.compiler.compiler_type == "unix" else []
        first, *others = extension.sources
        extension.extra_objects += objects_of(first)  # by itself: then the compiler is known
        with ThreadPoolExecutor(int(num_cores)) as pool:
            for objects in pool.map(objects_of, others):
                extension.extra_objects += objects
        extension.sources = []
        super().build_extension(extension)

sys.argv = ["build", "-q", "build_ext", "--build-lib", "../made", "--build-temp", "../temp"]
options = {"opt_level": "2", "debug_level": "0", "strip_asserts": False, "multi_file": True, "group_name": library}
modules = mypycify(["--config-file=", *paths], **options)
setup(name=library, packages=[], ext_modules=modules, cmdclass={"build_ext": Build})
"""


def compile_modules() -> tuple[Path, bool]:
    """Returns where the machine code lies, and whether it was made now: it takes some minutes.

    Raises InputError where mypyc or a C compiler is missing, where one of them fails, and where what they made decides
    otherwise than the source.
    """
    place = folder()
    if place.is_dir():
        return place, False
    missing = [name for name in ("mypyc", "setuptools") if find_spec(name) is None]
    if missing:
        raise InputError(f"compile: {' and '.join(missing)} not installed; pip install 'kvtwin[compile]'")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".compile-") as scratch:
            _build(Path(scratch))
            (Path(scratch) / "made").rename(place)
        _check(place)
    except OSError as error:
        message = f"{place.parent}: cannot keep machine code there ({error}); set KVTWIN_CACHE to a folder"
        raise InputError(message) from error
    return place, True


def _build(scratch: Path) -> None:
    """Leaves the modules below `scratch/made`. Built from a copy: nothing is written beside the sources."""
    for package in PACKAGES:
        copytree(ROOT / package, scratch / "source" / package, ignore=ignore_patterns("__pycache__", "*.so"))
    paths = [f"{name.replace('.', '/')}.py" for name in MODULES]
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, LIBRARY, str(num_cores()), *paths],
        cwd=scratch / "source",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
        raise InputError(f"compile: mypyc or the C compiler failed: {lines[0].strip() if lines else 'no reason given'}")


def _check(place: Path) -> None:
    """Keeps the machine code only if it does what the source does."""
    expected, got = _outcomes("0"), _outcomes("1")
    if expected == got:
        return
    rmtree(place)
    other = [name for name, outcome in got.items() if name not in expected or expected[name] != outcome]
    raise InputError(f"compile: the machine code is not kept, for it does otherwise than the source: {other[0]}")


def _outcomes(compiled: str) -> dict[str, Any]:
    """By run, or an error's last line alone."""
    command = [sys.executable, "-P", "-m", "kvtwin.compiled_check"]
    environment = {**os.environ, "KVTWIN_COMPILED": compiled}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {(done.stderr.strip().splitlines() or ["it dies"])[-1]: None}
    found: dict[str, Any] = json.loads(done.stdout)
    return found
