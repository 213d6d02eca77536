"""The simulator alone, without torch, is a supported installation: tests of the engine are left out there.

Triton kernels run on the CPU here, in Triton's interpreter; it must be chosen before Triton is imported. The simulator
is read as source; KVTWIN_COMPILED=1 tests the machine code that `kvtwin compile` has made of it.
"""

import gc
import os
import sys
from importlib.util import find_spec

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("KVTWIN_COMPILED", "0")

import kvtwin  # noqa: F401  before a test imports what it may have as machine code

NEED_TORCH = [
    "test_architectures.py",
    "test_cpu_attention.py",
    "test_cpu_native.py",
    "test_device_memory.py",
    "test_engine_model.py",
    "test_engine_run.py",
    "test_engine_sampling.py",
    "test_engine_weights.py",
    "test_kernels_reference.py",
    "test_host_kv.py",
    "test_key_reuse.py",
    "test_lockstep.py",
    "test_mean_pooling.py",
    "test_overlap.py",
    "test_own_models.py",
    "test_preset_lockstep.py",
    "test_radix_lockstep.py",
    "test_row_tables.py",
    "test_shadow.py",
    "test_step_planner.py",
]
NEED_TRITON = [
    "test_cascade_engine.py",
    "test_decode_graphs.py",
    "test_gpu_check.py",
    "test_kernel_cascade.py",
    "test_kernel_copies.py",
    "test_kernel_decode.py",
    "test_kernel_engine.py",
    "test_kernel_experts.py",
    "test_kernel_mla.py",
    "test_kernel_moves.py",
    "test_kernel_prefill.py",
    "test_kernels_aot.py",
]


def _absent(package: str, tests: list[str]) -> list[str]:
    return [] if find_spec(package) is not None else tests


_LEFT_OUT = {
    "torch": _absent("torch", NEED_TORCH + NEED_TRITON),
    "triton": _absent("triton", NEED_TRITON),
}

collect_ignore = [test for tests in _LEFT_OUT.values() for test in tests]


def pytest_collection_finish() -> None:
    """What is loaded by now, torch and all tests, stays to the end: garbage collection need not look through it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What Triton holds must go before the process ends: its nanobind tells of every leak. Takes half a second."""
    if "triton" in sys.modules:
        gc.unfreeze()


def pytest_report_header() -> list[str]:
    return [
        f"{package} is not installed: not collected: {', '.join(tests)}"
        for package, tests in _LEFT_OUT.items()
        if tests
    ]
