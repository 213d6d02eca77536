"""Whether Triton interprets kernels in Python (TRITON_INTERPRET=1 when it was imported) instead of compiling them."""

import triton


@triton.jit
def _probe() -> None:
    pass


INTERPRETED = not isinstance(_probe, triton.JITFunction)
"""Kernels then widen what they load: the interpreter (Triton 3.9) adds and multiplies bfloat16 as raw bits."""
