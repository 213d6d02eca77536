"""`kvtwin model list`, `kvtwin model fetch NAME`: known shapes, and real weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.errors import InputError
from kvtwin.naming import did_you_mean, options_of

FETCHABLE = ("smollm2_135m",)


def run(args: Sequence[str]) -> int:
    if list(args) == ["list"]:
        for name in options_of("model"):
            print(f"{name}  (weights: kvtwin model fetch {name})" if name in FETCHABLE else name)
        return 0
    if len(args) == 2 and args[0] == "fetch":
        return _fetch(args[1])
    raise InputError("usage: kvtwin model list | kvtwin model fetch NAME")


def _fetch(name: str) -> int:
    if name not in FETCHABLE:
        hint = did_you_mean(name, FETCHABLE) or f"; they can be fetched for {', '.join(FETCHABLE)}"
        raise InputError(f"model fetch {name}: no real weights of it are known{hint}")
    import torch

    from engine.smollm2 import fetch_smollm2_135m, find_smollm2_135m
    from engine.weights import load_weights

    if find_smollm2_135m() is None:
        print("fetching SmolLM2-135M (93 MB, once)", file=sys.stderr)
    folder = fetch_smollm2_135m()
    try:
        load_weights(folder, torch.float32)  # memory-mapped: it costs nothing to know that they are whole
    except InputError:
        raise InputError(f"{folder}: the weights there are damaged; delete the folder and fetch again") from None
    print(folder)
    return 0
