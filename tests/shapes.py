"""The bundled model shapes and devices, built as the command builds them: by their `_target_`."""

from __future__ import annotations

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf

from core.hardware import Hardware
from core.model_shape import ModelShape

CONF = Path(__file__).parents[1] / "conf"


def bundled(group: str) -> list[str]:
    """All but `file`, which is what a user names."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem != "file")


def model(name: str) -> ModelShape:
    return instantiate(OmegaConf.load(CONF / "model" / f"{name}.yaml"))


def hardware(name: str) -> Hardware:
    return instantiate(OmegaConf.load(CONF / "hardware" / f"{name}.yaml"))
