"""Compiles `cpu_native.c` with the C compiler of this machine, for its CPU, once; later runs load what was built.

OpenMP is left to torch, which has loaded its runtime for everybody: two of them would each keep threads of their own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime resolves the library's symbols

_SOURCE = Path(__file__).with_name("cpu_native.c")
_FLAGS = ("-O2", "-march=native", "-std=gnu11", "-fPIC", "-fopenmp", "-fno-strict-aliasing", "-fno-math-errno")
_CPU_KEYS = ("model name", "flags", "Features")  # of /proc/cpuinfo: what -march=native depends on
_MOST_SECONDS = 120

_POINTER, _COUNT, _NUMBER, _THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_ARGUMENTS = {
    "rms_norm": [*[_POINTER] * 3, *[_COUNT] * 2, _NUMBER, _THREADS],
    "add_rms_norm": [*[_POINTER] * 5, *[_COUNT] * 2, _NUMBER, _THREADS],
    "swiglu": [*[_POINTER] * 2, *[_COUNT] * 2, _THREADS],
    "rope_kv_write": [*[_POINTER] * 7, *[_COUNT] * 4, _THREADS],
    "decode_attention": [*[_POINTER] * 5, _COUNT, _POINTER, *[_COUNT] * 5, _NUMBER, _COUNT, _THREADS],
}


class NativeUnavailableError(Exception):
    """Why there is no compiled library here, in a few words."""


@cache
def native_library(folder: Path) -> ctypes.CDLL:
    """The functions of `cpu_native.c`, kept in `folder` from the first call on. Raises NativeUnavailableError."""
    path = folder / f"cpu_native-{_fingerprint()}.so"
    try:
        if not path.is_file():
            _build(path)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"{path.name} was not made or does not load: {error}") from error
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def _fingerprint() -> str:
    """Of all that decides whether a library built before will do."""
    parts = [_SOURCE.read_text(), *_FLAGS, platform.machine(), *_cpu_lines()]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _cpu_lines() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.startswith(_CPU_KEYS)})


def _build(path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "")) or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NativeUnavailableError("no C compiler found (CC, gcc, cc)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        compiled, linked = Path(scratch) / "native.o", Path(scratch) / "native.so"
        _call(compiler, *_FLAGS, "-c", str(_SOURCE), "-o", str(compiled))
        _call(compiler, "-shared", str(compiled), "-o", str(linked))  # no -fopenmp: that would name a runtime
        linked.replace(path)


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailableError(f"{command[0]} took more than {_MOST_SECONDS} s") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "it gives no reason")
        raise NativeUnavailableError(f"{command[0]} does not compile it: {first.strip()}")
