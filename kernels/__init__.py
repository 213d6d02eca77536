"""Attention, KV write and block copy over a paged cache: `reference.py` in torch, Triton kernels beside it."""
