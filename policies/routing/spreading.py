"""Numbers that look drawn at random, and are the same on every machine."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any


def spread(*parts: Any) -> int:
    """64 bits that depend on every bit of what the parts are written as. About 1 us."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")
