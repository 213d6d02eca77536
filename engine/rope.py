"""Rotary positions: the angles of every position, and the rotation of queries and keys."""

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
        """Of these positions int64 [num_tokens], with room for the heads: [num_tokens, 1, rotated_dim / 2]."""
        return Angles(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))


def rope_angles(
    base: float, rotated_dim: int, num_positions: int, device: torch.device, scaling: RopeScaling | None = None
) -> Angles:
    """Of positions 0 … num_positions - 1; fp64 inside, so that far positions keep their phase."""
    frequencies = torch.tensor(rope_frequencies(base, rotated_dim, scaling), dtype=torch.float64)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    factor = 1.0 if scaling is None else scaling.attention_factor
    return Angles((angles.cos() * factor).float().to(device), (angles.sin() * factor).float().to(device))


def rotate(heads: Tensor, angles: Angles) -> Tensor:
    """Half-split RoPE of [num_tokens, num_heads, rotated_dim]: dimension i pairs with i + rotated_dim / 2."""
    cos, sin = angles
    wide = heads.float()
    low, high = wide.chunk(2, dim=-1)
    rotated = (wide.unflatten(-1, (2, -1)) * cos.unsqueeze(-2)).flatten(-2)
    rotated_low, rotated_high = rotated.chunk(2, dim=-1)  # views: each half gets the other's part in place
    rotated_low.addcmul_(high, sin, value=-1)
    rotated_high.addcmul_(low, sin)
    return rotated.to(heads.dtype)
