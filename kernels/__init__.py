"""Kernels of the engine over a paged cache: `reference.py` in torch, one Triton kernel a file beside it."""
