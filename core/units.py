"""Virtual time is an integer number of picoseconds; floats of seconds appear only at the edge."""

PS_PER_S = 1_000_000_000_000
NEVER_PS = 1 << 62
"""Later than anything that happens."""


def to_ps(seconds: float) -> int:
    """Nearest whole picosecond."""
    return round(seconds * PS_PER_S)


def to_s(picoseconds: int) -> float:
    return picoseconds / PS_PER_S
