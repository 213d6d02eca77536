"""Virtual time is an integer number of picoseconds; floats of seconds appear only at the edge."""

from __future__ import annotations

from typing import Final

PS_PER_S: Final = 1_000_000_000_000
NEVER_PS: Final = (1 << 62) - 1
"""Later than anything that happens; as machine code, the greatest integer that is no object."""


def to_ps(seconds: float) -> int:
    """Nearest whole picosecond."""
    return round(seconds * PS_PER_S)


def to_s(picoseconds: int) -> float:
    return picoseconds / PS_PER_S
