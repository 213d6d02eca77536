"""Figures as people read them. A metric's name ends in its unit, so the name alone decides how a value is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

NOTHING = "–"

# What a table of one comparison shows, in order; comparison.json holds every figure.
COMPARED = (
    "output_tokens_per_s",
    "requests_per_s",
    "ttft_s.mean",
    "ttft_s.p50",
    "ttft_s.p90",
    "ttft_s.p99",
    "tpot_s.mean",
    "tpot_s.p50",
    "itl_s.p50",
    "itl_s.p99",
    "e2e_s.mean",
    "e2e_s.p50",
    "e2e_s.p90",
    "queue_s.mean",
    "prefix_hit_ratio",
    "num_preemptions",
    "recomputed_tokens",
    "num_evictions",
    "kv_utilization_ratio.time_mean",
    "kv_utilization_ratio.peak",
)

SLO_MET = "slo_attainment_ratio"  # defined, and shown, where a service level was set

_LABELS = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_s": "E2E",
    "queue_s": "Queue wait",
    "normalized_latency_s": "E2E per output token",
    "makespan_s": "Makespan",
    "output_tokens_per_s": "Output throughput",
    "requests_per_s": "Request throughput",
    "goodput_rps": "Goodput",
    "slo_attainment_ratio": "SLO attainment",
    "prefix_hit_ratio": "Prefix hit ratio",
    "prefix_hit_tokens": "Prefix hit tokens",
    "num_preemptions": "Preemptions",
    "recomputed_tokens": "Recomputed, preempted",
    "swapped_bytes": "Swapped",
    "num_evictions": "Evictions",
    "num_costly_evictions": "Evictions that cost",
    "recomputed_evicted_tokens": "Recomputed, evicted",
    "evictable_ratio": "Evictable share",
    "kv_utilization_ratio": "KV use",
    "kv_cached_ratio": "KV cached",
    "orphan_blocks": "Orphan blocks",
    "waste_ratio": "KV waste",
    "waste_total_ratio": "KV waste in all",
    "pool_share_ratio": "Share of the pool",
    "saturated_share_ratio": "Share of the pool under full load",
    "saturated_num_running": "Running under full load",
    "num_moved_blocks": "Moved blocks",
    "sharing_saved_ratio": "KV saved by sharing",
}


def metric_label(name: str) -> str:
    """A metric's display name: `ttft_s.p50` → `TTFT p50`, `kv_utilization_ratio.time_mean` → `KV use, mean`."""
    key, _, part = name.partition(".")
    label = _LABELS.get(key, key.replace("_", " "))
    if not part:
        return label
    return f"{label} {part}" if key.endswith("_s") else f"{label}, {part.removeprefix('time_')}"


def metric_text(name: str, value: float | None) -> str:
    """A metric's value with its unit, chosen by the end of its name; an en dash when it is not defined."""
    key = name.partition(".")[0]
    return next((text for suffix, text in _BY_SUFFIX if key.endswith(suffix)), count_text)(value)


def seconds_text(value: float | None) -> str:
    """Seconds with three significant digits, as µs, ms, s or minutes."""
    if value is None:
        return NOTHING
    scale, unit = time_unit(value)
    return f"{_digits(value / scale)} {unit}"


def time_unit(value: float) -> tuple[float, str]:
    """The (seconds per unit, name) in which a duration of `value` seconds reads best."""
    if value == 0 or abs(value) >= 600:
        return (60.0, "min") if value else (1.0, "s")
    if abs(value) >= 1:
        return 1.0, "s"
    return (1e-3, "ms") if abs(value) >= 1e-3 else (1e-6, "µs")


def count_text(value: float | None) -> str:
    """A count, thousands grouped; a median of counts may end in a half."""
    return NOTHING if value is None else f"{value:,.1f}".removesuffix(".0")


def counted(number: int, name: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def ratio_text(value: float | None) -> str:
    """A share in per cent."""
    return NOTHING if value is None else f"{value * 100:.1f} %"


def dropped_text(num_dropped: Mapping[str, int], name: str) -> str:
    """How many rows of a trace were left out, by reason."""
    reasons = ", ".join(f"{num:,} {reason}" for reason, num in num_dropped.items())
    num_rows = sum(num_dropped.values())
    return f"{num_rows:,} row{'s were' if num_rows > 1 else ' was'} left out of {name}: {reasons}"


def error_text(value: float | None) -> str:
    """A signed error in per cent."""
    if value is None:
        return NOTHING
    return f"{value * 100:+.1f} %".replace("-", "−") if abs(value) >= 0.0005 else "0.0 %"


def spread_text(value: float | None) -> str:
    """A run-to-run spread (full width, not ±) in per cent."""
    return ratio_text(value)


def bytes_text(value: float | None) -> str:
    """Bytes in powers of ten."""
    if value is None:
        return NOTHING
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{value:.0f} B"


def _token_rate_text(value: float | None) -> str:
    return NOTHING if value is None else f"{_digits(value)} tok/s"


def _request_rate_text(value: float | None) -> str:
    return NOTHING if value is None else f"{_digits(value)} req/s"


def _digits(value: float) -> str:
    """At least three significant digits, no more decimals than that takes (two from 0.1 on)."""
    if 0 < abs(value) < 0.1:
        return f"{value:.3g}"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


# Longer endings first: `_tokens_per_s` also ends in `_s`.
_BY_SUFFIX: tuple[tuple[str, Callable[[float | None], str]], ...] = (
    ("_tokens_per_s", _token_rate_text),
    ("requests_per_s", _request_rate_text),
    ("_rps", _request_rate_text),
    ("_s", seconds_text),
    ("_ratio", ratio_text),
    ("_bytes", bytes_text),
)
