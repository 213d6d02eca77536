"""The simulator alone, without torch, is a supported installation: tests of the engine are left out there."""

from importlib.util import find_spec

NEED_TORCH = [
    "test_engine_model.py",
    "test_engine_run.py",
    "test_engine_sampling.py",
    "test_engine_weights.py",
    "test_kernels_reference.py",
    "test_lockstep.py",
    "test_preset_lockstep.py",
    "test_radix_lockstep.py",
    "test_shadow.py",
]
HAS_TORCH = find_spec("torch") is not None

collect_ignore = [] if HAS_TORCH else NEED_TORCH


def pytest_report_header() -> str:
    return "" if HAS_TORCH else f"torch is not installed: not collected: {', '.join(NEED_TORCH)}"
