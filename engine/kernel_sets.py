"""Which set of kernels a decoder computes with: `kernels.reference` says what each of them is to return."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec

import torch

from core.errors import InputError
from engine.attention import DecoderKernels
from engine.cache_dir import default_cache_dir
from engine.decoder_shape import DecoderShape
from kernels import reference
from kernels.cpu_attention import CpuAttention
from kernels.cpu_native import NativeKernels
from kernels.native_build import NativeUnavailableError, native_library

KERNEL_SETS = ("auto", "reference", "cpu", "native", "triton")


def kernels_for(
    name: str, shape: DecoderShape, device: torch.device, dtype: torch.dtype = torch.float32
) -> DecoderKernels:
    """The set by its name. auto: on a GPU Triton's where they can serve, else the reference; on a CPU the native ones
    where they serve the `dtype` of the weights and can be compiled, else those of torch for a CPU.

    Raises InputError where a set is asked for that cannot serve.
    """
    if name == "reference":
        return reference
    if name in ("cpu", "native") and device.type != "cpu":
        raise InputError(f"engine.kernels={name}: the model runs on {device.type}; expected reference, triton or auto")
    if name == "native":
        return _native_kernels()
    if name == "triton":
        obstacle = _obstacle_to_triton(shape, device)
        if obstacle is not None:
            raise InputError(f"engine.kernels=triton: {obstacle}; expected reference or auto")
        return _triton_kernels()
    if device.type == "cpu":
        return _cpu_kernels(dtype) if name == "auto" else CpuAttention()
    return reference if _obstacle_to_triton(shape, device) else _triton_kernels()


def knows_padding(kernels: DecoderKernels) -> bool:
    """Whether the set caches nothing for a row whose slot is -1, and attends to nothing where there are no tokens."""
    return find_spec("triton") is not None and kernels is _triton_kernels()


def is_for_cpus(kernels: DecoderKernels) -> bool:
    """Whether a step computed with the set has no device to wait for."""
    return isinstance(kernels, CpuAttention)


def name_of(kernels: DecoderKernels) -> str:
    """One of KERNEL_SETS."""
    if kernels is reference:
        return "reference"
    if is_for_cpus(kernels):
        return "native" if isinstance(kernels, NativeKernels) else "cpu"
    return "triton"


def _cpu_kernels(dtype: torch.dtype) -> DecoderKernels:
    if dtype is torch.bfloat16:
        with suppress(InputError):
            return _native_kernels()
    return CpuAttention()


def _native_kernels() -> DecoderKernels:
    try:
        return NativeKernels(native_library(default_cache_dir()))
    except NativeUnavailableError as error:
        raise InputError(f"engine.kernels=native: {error}; expected cpu or auto") from error


def _triton_kernels() -> DecoderKernels:
    from kernels import fast  # Triton is imported where it runs

    return fast


def _obstacle_to_triton(shape: DecoderShape, device: torch.device) -> str | None:
    """Why this decoder cannot run on Triton's kernels here, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    from kernels.attention_checks import MAX_HEAD_DIM, MAX_LATENT_DIM, MAX_ROPE_DIM
    from kernels.interpreter import INTERPRETED
    from kernels.rms_norm import MAX_HIDDEN

    if device.type == "cpu" and not INTERPRETED:
        return "it compiles for GPUs, and interprets on a CPU only with TRITON_INTERPRET=1 in the environment"
    if shape.hidden > MAX_HIDDEN:
        return f"hidden states of {shape.hidden}, it has kernels for up to {MAX_HIDDEN}"
    latent = shape.latent
    if latent is None and shape.head_dim > MAX_HEAD_DIM:
        return f"heads of {shape.head_dim}, it has kernels for up to {MAX_HEAD_DIM}"
    if latent is not None and (latent.latent_dim > MAX_LATENT_DIM or latent.rope_dim > MAX_ROPE_DIM):
        widths = f"latents of {latent.latent_dim} with rotated keys of {latent.rope_dim}"
        return f"{widths}, it has kernels for up to {MAX_LATENT_DIM} and {MAX_ROPE_DIM}"
    return None
