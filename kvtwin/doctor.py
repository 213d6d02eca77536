"""Is this machine ready for kvtwin? Versions, threads, weights, and a package that may have overwritten ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TextIO

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvtwin.compiled import is_used, is_wanted
from kvtwin.formatting import counted
from kvtwin.tables import print_tables

State = Literal["ok", "absent", "warning", "error"]

MINIMUM_PYTHON = (3, 11)
REQUIRED = ("numpy", "simpy", "hydra-core", "rich")
ENGINE = ("triton", "gguf", "tokenizers", "safetensors")
REPORT = ("plotly",)
_STYLES = {"ok": "green", "absent": "dim", "warning": "yellow", "error": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what it is, its state, and what was found or is to be done.

    "absent" is fine for who does not need it, "warning" costs speed or trust, "error" stops kvtwin from working.
    """

    name: str
    state: State
    detail: str


def doctor() -> list[Check]:
    """Every check, in the order shown."""
    return [
        check_python(sys.version_info[:2]),
        *(check_package(name, "error", "pip install kvtwin") for name in ("kvtwin", *REQUIRED)),
        check_torch(),
        *(check_package(name, "absent", "the engine needs it: pip install 'kvtwin[engine]'") for name in ENGINE),
        *(check_package(name, "absent", "reports need it: pip install 'kvtwin[report]'") for name in REPORT),
        check_threads(os.environ.get("OMP_NUM_THREADS"), available_cores()),
        check_weights(),
        check_simulator(),
        check_kernels(_folder_of("kernels"), _folder_of("core")),
    ]


def print_doctor(checks: Sequence[Check], file: TextIO | None = None) -> None:
    """Write the checks to `file` (default: standard output), and one line that sums them up."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for check in checks:
        table.add_row(Text(check.state, style=_STYLES[check.state]), check.name, Text(check.detail))
    print_tables(Group(table, Text(_summary(checks), style="bold")), file=file)


def check_python(found: tuple[int, ...]) -> Check:
    """Whether the interpreter is new enough."""
    text = ".".join(str(part) for part in found)
    if found < MINIMUM_PYTHON:
        return Check("Python", "error", f"{text}: kvtwin needs {'.'.join(map(str, MINIMUM_PYTHON))} or newer")
    return Check("Python", "ok", text)


def check_package(name: str, state_if_missing: State, remedy: str) -> Check:
    """Whether a distribution is installed, and which version."""
    try:
        return Check(name, "ok", version(name))
    except PackageNotFoundError:
        return Check(name, state_if_missing, f"not installed; {remedy}")


def check_simulator() -> Check:
    """Whether the simulator runs as machine code."""
    if is_used():
        return Check("simulator", "ok", "its inner modules are machine code")
    if not is_wanted():
        return Check("simulator", "ok", "read as source: KVTWIN_COMPILED=0")
    return Check("simulator", "absent", "machine code would take half the time: kvtwin compile")


def check_torch() -> Check:
    """Whether torch imports, and the device that the engine would take."""
    if find_spec("torch") is None:
        return Check("torch", "absent", "not installed; the engine needs it: pip install 'kvtwin[engine]'")
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:
        return Check("torch", "error", f"installed but does not import: {error}")
    if torch.cuda.is_available():
        return Check("torch", "ok", f"{torch.__version__}, on {torch.cuda.get_device_name(0)}")
    return Check("torch", "ok", f"{torch.__version__}, on the CPU: no CUDA device")


def check_threads(omp_num_threads: str | None, num_cores: int) -> Check:
    """Whether the thread setting asks for more threads than there are cores, which ruins CPU speed."""
    name = "threads"
    if omp_num_threads is None:
        return Check(name, "ok", f"{num_cores} cores, OMP_NUM_THREADS not set; set it to 1 for times that repeat")
    if not omp_num_threads.isdigit():
        return Check(name, "warning", f"OMP_NUM_THREADS={omp_num_threads!r}: expected a whole number")
    if int(omp_num_threads) > num_cores:
        return Check(name, "warning", f"OMP_NUM_THREADS={omp_num_threads} on {num_cores} cores: oversubscribed")
    return Check(name, "ok", f"{num_cores} cores, OMP_NUM_THREADS={omp_num_threads}")


def available_cores() -> int:
    """Cores that this process may use; where the system cannot say, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_weights() -> Check:
    """Whether the real weights are in the cache."""
    name = "weights of smollm2_135m"
    if find_spec("torch") is None:
        return Check(name, "absent", "not looked for: the engine is not installed")
    folder = import_module("engine.smollm2").find_smollm2_135m()
    if folder is None:
        return Check(name, "absent", "not fetched: kvtwin model fetch smollm2_135m (random weights until then)")
    return Check(name, "ok", str(folder))


def check_kernels(kernels_folder: Path | None, core_folder: Path | None) -> Check:
    """Whether `kernels` is ours: the PyPI package of that name, installed beside kvtwin, overwrites it.

    Ours lies beside `core`, has the reference kernels and, unlike the other, no `__version__`.
    """
    if kernels_folder is None or core_folder is None:
        return Check("kernels", "error", "the package is missing: install kvtwin again")
    is_beside_core = kernels_folder.parent == core_folder.parent
    is_complete = (kernels_folder / "reference.py").is_file()
    if is_beside_core and is_complete and "__version__" not in (kernels_folder / "__init__.py").read_text():
        return Check("kernels", "ok", "kvtwin's own")
    remedy = "pip uninstall kernels, then install kvtwin again"
    return Check("kernels", "error", f"another package took the name, in {kernels_folder}: {remedy}")


def _folder_of(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _summary(checks: Sequence[Check]) -> str:
    num_by_state = {state: sum(check.state == state for check in checks) for state in _STYLES}
    if num_by_state["error"]:
        return f"not ready: {num_by_state['error']} to repair"
    if num_by_state["absent"] or num_by_state["warning"]:
        absent, warnings = counted(num_by_state["absent"], "optional part"), counted(num_by_state["warning"], "warning")
        return f"ready; {absent} absent, {warnings}"
    return "ready"
