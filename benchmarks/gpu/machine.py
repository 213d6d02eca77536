"""The machine that figures belong to."""

from __future__ import annotations

import platform
from typing import Any

import torch
import triton


def describe(device: torch.device) -> dict[str, Any]:
    """What ran, with versions; of a GPU its name, memory and processors."""
    told: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "device": device_name(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told |= {
            "memory_bytes": properties.total_memory,
            "num_processors": properties.multi_processor_count,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }
    return told


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"


def file_name(device: torch.device) -> str:
    """The device's name in letters, digits and underscores: nvidia_h200."""
    return "".join(char if char.isalnum() else "_" for char in device_name(device).lower())
