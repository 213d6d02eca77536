"""Rotary positions: the angles of every position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.rope_scaling import RopeScaling, rope_frequencies


class Angles(NamedTuple):
    """cos and sin of rotation angles, fp32 [num_positions, rotated_dim / 2]."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor) -> Angles:
        """Of these positions int64 [num_tokens]."""
        return Angles(self.cos[positions], self.sin[positions])


def rope_angles(
    base: float, rotated_dim: int, num_positions: int, device: torch.device, scaling: RopeScaling | None = None
) -> Angles:
    """Of positions 0 … num_positions - 1; fp64 inside, so that far positions keep their phase."""
    frequencies = torch.tensor(rope_frequencies(base, rotated_dim, scaling), dtype=torch.float64)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    factor = 1.0 if scaling is None else scaling.attention_factor
    return Angles((angles.cos() * factor).float().to(device), (angles.sin() * factor).float().to(device))
