"""The hardware file that a calibration writes: this machine, when, with what, and the fitted coefficients."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from core.errors import InputError
from kvtwin.calibration import Fit
from kvtwin.store import write_atomically
from kvtwin.summary import versions


def write_hardware_file(path: Path, fit: Fit, engine: Mapping[str, Any], model_name: str, trace_name: str) -> None:
    """Writes YAML that `cost=calibrated cost.path=...` reads. `engine` is the engine block of a run's summary."""
    content = {
        "name": f"{platform.node() or 'local'}_{engine['device']}",
        "calibrated": {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "device": f"{engine['device']}, {platform.machine()}, {os.cpu_count()} cores",
            "threads": engine["threads"],
            "dtype": engine["dtype"],
            "clock": engine["clock"],
            "model": model_name,
            "trace": trace_name,
            "num_steps": fit.num_steps,
            "held_out_mape_ratio": round(fit.held_out_mape_ratio, 4),
            "held_out_bias_ratio": round(fit.held_out_bias_ratio, 4),
            "versions": versions(),
        },
        "cost": fit.coefficients,
    }
    header = "# Written by `kvtwin calibrate`. Use: kvtwin sim cost=calibrated cost.path=FILE\n"
    try:
        write_atomically(path, (header + OmegaConf.to_yaml(OmegaConf.create(content))).encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
