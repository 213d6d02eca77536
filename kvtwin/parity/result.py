"""What the comparison with a recorded log says, and how two records are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParityResult:
    """One log's verdict: how many steps (or operations) were compared, and the first difference if there is one."""

    path: Path
    num_steps: int
    difference: str | None

    @property
    def is_equal(self) -> bool:
        return self.difference is None


def first_difference(expected: Fields, got: Fields) -> str | None:
    """The first field, by name, that differs; an absent field is an empty one."""
    for name in sorted(expected.keys() | got.keys()):
        if (expected.get(name) or None) != (got.get(name) or None):
            return f"{name}: recorded {expected.get(name)}, ours {got.get(name)}"
    return None
