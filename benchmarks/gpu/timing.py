"""How long a call takes on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

NUM_WARM_UPS = 3


def median_s(call: Callable[[], Any], device: torch.device, num_runs: int) -> float:
    """Median over `num_runs`, after a few calls that compile and warm up; on a GPU by its own event clock."""
    if device.type != "cuda":
        return median(_host_s(call) for _ in range(num_runs))
    for _ in range(NUM_WARM_UPS):
        call()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(num_runs)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return median(start.elapsed_time(end) for start, end in marks) / 1e3


def _host_s(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s
