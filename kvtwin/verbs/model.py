"""`kvtwin model list | fetch NAME | convert SOURCE TARGET --kv-heads N`: known shapes, real weights, fewer KV heads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from core.errors import InputError
from kvtwin.naming import did_you_mean, options_of

FETCHABLE = ("smollm2_135m",)
OWN_FILES = "file"
USAGE = "usage: kvtwin model list | kvtwin model fetch NAME | kvtwin model convert SOURCE TARGET --kv-heads N"


def run(args: Sequence[str]) -> int:
    if {"-h", "--help"} & set(args):
        print(USAGE)
        return 0
    if list(args) == ["list"]:
        for name in options_of("model"):
            print(f"{name}{_hint(name)}")
        return 0
    if len(args) == 2 and args[0] == "fetch":
        return _fetch(args[1])
    if len(args) == 5 and args[0] == "convert" and args[3] == "--kv-heads" and args[4].isdigit():
        return _convert(Path(args[1]), Path(args[2]), int(args[4]))
    raise InputError(USAGE)


def _hint(name: str) -> str:
    if name == OWN_FILES:
        return "  (weights of your own: model.path=FOLDER or GGUF file)"
    return f"  (weights: kvtwin model fetch {name})" if name in FETCHABLE else ""


def _convert(source: Path, target: Path, num_kv_heads: int) -> int:
    from engine.mean_pooling import convert_folder

    convert_folder(source, target, num_kv_heads)
    print(target)
    return 0


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
