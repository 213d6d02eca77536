"""Compiles kernels for GPUs that are not there, and says what they would need on them.

A kernel that spills registers to memory, or that asks for more shared memory than the GPU has, still compiles; so what
the compiled code says of itself is read and checked here. Needs a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia_backend
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kernels.checks import require

KIB = 1024


class Target(NamedTuple):
    """An architecture and the shared memory (LDS) that one program may use there.

    NVIDIA: CUDA C programming guide 12, table of compute capabilities; AMD: CDNA 3 instruction set reference.
    """

    name: str
    gpu: GPUTarget
    max_shared_bytes: int


TARGETS = (
    Target("sm_80", GPUTarget("cuda", 80, 32), 163 * KIB),
    Target("sm_90", GPUTarget("cuda", 90, 32), 227 * KIB),
    Target("sm_100", GPUTarget("cuda", 100, 32), 227 * KIB),
    Target("gfx942", GPUTarget("hip", "gfx942", 64), 64 * KIB),
)


class Work(NamedTuple):
    """What one call of a representative size does."""

    description: str
    num_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel as it would be launched: types of its run-time arguments, compile-time values, and the work it does."""

    name: str
    kernel: JITFunction
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    work: Work
    num_warps: int = 4
    num_stages: int = 3
    not_divisible: frozenset[str] = field(default_factory=frozenset)  # arguments that are never multiples of 16
    divisibilities: tuple[bool, ...] = (True, False)  # one where the other is launched in another way, as another case
    num_quick_targets: int = len(TARGETS)  # how many of them the quick check takes; scripts/kernel-report takes all


class Resources(NamedTuple):
    """Of one program: registers a thread, bytes of stack a thread (spills lie there), bytes of shared memory."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def compile_case(case: Case, target: Target, divisible: bool, max_registers: int | None = None) -> Resources:
    """Compiles with all pointers and integers known to be multiples of 16, or none: Triton specialises on that.

    Raises ValueError under TRITON_INTERPRET, or where the types and values given do not fit the kernel.
    """
    require(
        isinstance(case.kernel, JITFunction), "kernels are compiled ahead of time in a process without TRITON_INTERPRET"
    )
    names = case.kernel.arg_names
    given = {*case.arguments, *case.constants}
    require(given == set(names), f"{case.name}: the kernel takes {sorted(names)}, the case gives {sorted(given)}")
    place = {name: (index,) for index, name in enumerate(names)}
    aligned = [name for name, kind in case.arguments.items() if kind[0] in "*i" and name not in case.not_divisible]
    source = ASTSource(
        case.kernel,
        {name: case.arguments.get(name, "constexpr") for name in names},
        {place[name]: value for name, value in case.constants.items()},
        {place[name]: [["tt.divisibility", 16]] for name in aligned if divisible},
    )
    options: dict[str, Any] = {"num_warps": case.num_warps, "num_stages": case.num_stages, "enable_fp_fusion": True}
    if max_registers is not None:
        options["maxnreg"] = max_registers
    compiled = triton.compile(source, target=target.gpu, options=options)
    read = _amd_usage if target.gpu.backend == "hip" else _nvidia_usage
    registers, stack_bytes = read(compiled.asm)
    return Resources(registers, stack_bytes, compiled.metadata.shared)


def problems(resources: Resources, target: Target) -> list[str]:
    """What is wrong with a compiled kernel, in words; empty where nothing is."""
    found = []
    if resources.stack_bytes:
        found.append(f"{resources.stack_bytes} bytes of stack a thread: registers are spilled")
    if resources.shared_bytes > target.max_shared_bytes:
        found.append(
            f"{resources.shared_bytes:,} bytes of shared memory, {target.name} has {target.max_shared_bytes:,}"
        )
    return found


def fresh_cache() -> tempfile.TemporaryDirectory[str]:
    """A cache folder of Triton's that is gone at the end of the `with`: nothing compiled before is believed."""
    folder = tempfile.TemporaryDirectory(prefix="kvtwin-aot-")
    os.environ["TRITON_CACHE_DIR"] = folder.name
    return folder


def _nvidia_usage(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Registers and stack, as the cuobjdump that Triton brings along reads them from the binary."""
    tool = Path(nvidia_backend).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(asm["cubin"])
        cubin.flush()
        told = subprocess.run(
            [tool, "--dump-resource-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    return _number(r"REG:(\d+)", told), _number(r"STACK:(\d+)", told)


def _amd_usage(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Vector registers and scratch memory, from the metadata in the assembly."""
    told = asm["amdgcn"]
    return _number(r"\.vgpr_count:\s+(\d+)", told), _number(r"\.private_segment_fixed_size:\s+(\d+)", told)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    require(found is not None, f"no {pattern} in the compiler's output: {text[:200]!r}")
    return int(found.group(1))
