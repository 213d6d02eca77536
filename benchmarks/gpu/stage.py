"""What every stage of the check is given and gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.sizes import Sizes

Row = dict[str, Any]  # of the result file


@dataclass(frozen=True)
class Setting:
    device: torch.device
    sizes: Sizes

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


@dataclass
class Findings:
    """Rows of figures, what is plainly wrong, and what fell short of what was asked."""

    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    shortfalls: list[str] = field(default_factory=list)

    def ask(self, what: str, reached_ratio: float, asked_ratio: float) -> None:
        if reached_ratio < asked_ratio:
            self.shortfalls.append(f"{what}: {reached_ratio:.2f} of it, {asked_ratio:.2f} asked")


class CannotRun(Exception):
    """A stage lacks something on this machine, which the message names."""
