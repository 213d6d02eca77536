"""Where the slots of the pool went: tokens, and waste told apart as by the PagedAttention paper (SOSP'23, section 3.1).

*Reserved*: will hold a token later. *Internal*: part of a sequence's blocks, but beyond its last token. *External*:
part of no sequence, and of no use: padding of a run, and, under contiguous allocation while somebody is refused memory,
whatever is free. Paged blocks have no external waste: any of them serves anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SHARES = ("token", "reserved", "internal", "external", "free")


@dataclass(frozen=True, slots=True)
class WasteColumns:
    """Token slots that hold no token, per step, [num_steps]."""

    num_reserved_tokens: Ints
    num_internal_tokens: Ints
    num_external_tokens: Ints

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> WasteColumns:
        """The columns of `steps.npz`; raises KeyError naming a column that is missing."""
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    @property
    def num_wasted_tokens(self) -> Ints:
        return np.asarray(self.num_reserved_tokens + self.num_internal_tokens + self.num_external_tokens)


def waste_ratios(waste: WasteColumns | None, num_referenced_tokens: Ints, duration_s: Floats) -> dict[str, Any]:
    """Wasted slots over the slots that are taken out of use (those of referenced blocks, and external ones), both
    integrated over the steps' time; with the tokens held, the three parts and 1 add up. `waste_total_ratio` is their
    sum, and its highest value in any step.
    """
    if waste is None:
        return {
            "waste_ratio": {"reserved": None, "internal": None, "external": None},
            "waste_total_ratio": {"time_mean": None, "peak": None},
        }
    taken = num_referenced_tokens + waste.num_external_tokens
    taken_total = float(np.dot(taken, duration_s))
    total = waste.num_wasted_tokens
    in_use = taken > 0

    def share(column: Ints) -> float | None:
        return float(np.dot(column, duration_s)) / taken_total if taken_total > 0 else None

    return {
        "waste_ratio": {
            "reserved": share(waste.num_reserved_tokens),
            "internal": share(waste.num_internal_tokens),
            "external": share(waste.num_external_tokens),
        },
        "waste_total_ratio": {
            "time_mean": share(total),
            "peak": float((total[in_use] / taken[in_use]).max()) if in_use.any() else None,
        },
    }


def pool_shares(
    waste: WasteColumns | None, num_referenced_tokens: Ints, duration_s: Floats, pool_tokens: int | None
) -> dict[str, float | None]:
    """Shares of the whole pool, weighted by the steps' time; they add up to 1. None without steps, or without an end
    of the pool.
    """
    total_s = float(duration_s.sum())
    if waste is None or pool_tokens is None or total_s == 0:
        return dict.fromkeys(SHARES)
    columns = (
        num_referenced_tokens - waste.num_reserved_tokens - waste.num_internal_tokens,
        waste.num_reserved_tokens,
        waste.num_internal_tokens,
        waste.num_external_tokens,
        pool_tokens - num_referenced_tokens - waste.num_external_tokens,
    )
    means = [float(np.dot(column, duration_s)) / total_s / pool_tokens for column in columns]
    return dict(zip(SHARES, means, strict=True))


def saturated(
    waste: WasteColumns | None,
    num_referenced_tokens: Ints,
    duration_s: Floats,
    pool_tokens: int | None,
    num_waiting: Ints | None,
    num_running: Ints | None,
) -> dict[str, Any]:
    """The same shares, and the running requests, over the steps in which requests waited: the system under full load,
    without a warm-up in which nobody waits yet and the drain in which nobody waits any more.
    """
    if waste is None or num_waiting is None or num_running is None:
        return {"saturated_share_ratio": dict.fromkeys(SHARES), "saturated_num_running": None}
    rows = num_waiting > 0
    part = WasteColumns(*(getattr(waste, field.name)[rows] for field in fields(waste)))
    total_s = float(duration_s[rows].sum())
    return {
        "saturated_share_ratio": pool_shares(part, num_referenced_tokens[rows], duration_s[rows], pool_tokens),
        "saturated_num_running": float(np.dot(num_running[rows], duration_s[rows])) / total_s if total_s else None,
    }
