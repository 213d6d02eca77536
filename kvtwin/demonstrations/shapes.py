"""Model shapes and devices by name, as the configuration knows them."""

from __future__ import annotations

from core.hardware import Hardware
from core.model_shape import ModelShape
from kvtwin.binding import instantiate_one
from kvtwin.composition import compose_config


def model_shape(name: str) -> ModelShape:
    """Raises InputError for a name that `conf/model` does not have."""
    shape: ModelShape = instantiate_one(compose_config("size", [f"model={name}"]).model, "model")
    return shape


def hardware_of(name: str) -> Hardware:
    """Raises InputError for a name that `conf/hardware` does not have."""
    hardware: Hardware = instantiate_one(compose_config("size", [f"hardware={name}"]).hardware, "hardware")
    return hardware
