"""Every eviction policy that the product ships, found by walking the package."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import policies.eviction
from core.interfaces import EvictionPolicy
from kvtwin.binding import missing_methods


def shipped() -> list[type[EvictionPolicy]]:
    """In order of their modules' names."""
    names = [f"policies.eviction.{found.name}" for found in pkgutil.iter_modules(policies.eviction.__path__)]
    return [
        cls
        for name in names
        for cls in vars(import_module(name)).values()
        if isinstance(cls, type) and issubclass(cls, EvictionPolicy) and cls.__module__ == name
        if not missing_methods(cls)
    ]


CAUSAL = [policy for policy in shipped() if not policy.clairvoyant]
CLAIRVOYANT = [policy for policy in shipped() if policy.clairvoyant]
