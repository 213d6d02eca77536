"""`kvtwin model list`, `kvtwin model fetch NAME`: known shapes, and real weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.errors import InputError
from kvtwin.naming import options_of

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
        raise InputError(f"model fetch {name}: real weights can be fetched for {', '.join(FETCHABLE)}")
    try:
        from engine.smollm2 import fetch_smollm2_135m
    except ModuleNotFoundError as error:
        raise InputError(f"model fetch needs {error.name}: pip install 'kvtwin[engine]'") from None
    print("fetching SmolLM2-135M (93 MB, once)", file=sys.stderr)
    print(fetch_smollm2_135m())
    return 0
