"""Eviction policies by words on the command line: `lru`, `s3fifo[warmup=true]`, `my_module.MyPolicy[threshold=3]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from core.errors import InputError
from core.interfaces import EvictionPolicy, PolicyEnv
from kvtwin.binding import bind_policy, class_of
from kvtwin.composition import OWN, compose_config
from kvtwin.naming import options_of

ALL = "all"
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_WORD = re.compile(r"(?P<name>[\w.]+)(?:\[(?P<parameters>[^\[\]]*)\])?")


@dataclass(frozen=True)
class PolicyChoice:
    """A policy as it was written, and how to make one."""

    label: str
    make: Callable[[PolicyEnv], EvictionPolicy]
    policy: type[EvictionPolicy]


def policy_choices(words: str) -> list[PolicyChoice]:
    """The policies of a list with commas; parameters stand in brackets, `name[key=value,key=value]`.

    `all` is every policy that comes with kvtwin, but for the clairvoyant ones: those have to be named. A name with a
    dot is a class of the user's own. Raises InputError for a word that names no policy, or the same one twice.
    """
    choices: list[PolicyChoice] = []
    for word in _OUTSIDE_BRACKETS.split(words):
        choices += _every_causal() if word.strip() == ALL else [_choice(word.strip())]
    labels = [choice.label for choice in choices]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InputError(f"policies: {twice} stands there twice; expected each once")
    return choices


def _every_causal() -> list[PolicyChoice]:
    choices = [_choice(name) for name in options_of("eviction") if name != OWN]
    return [choice for choice in choices if not choice.policy.clairvoyant]


def _choice(word: str) -> PolicyChoice:
    found = _WORD.fullmatch(word)
    if found is None:
        raise InputError(f"policies: cannot read {word!r}; expected a name, or name[key=value,key=value]")
    factory: Any = bind_policy(_config(found["name"], found["parameters"]), "eviction")
    return PolicyChoice(word, factory, class_of(factory))


def _config(name: str, parameters: str | None) -> Any:
    """The block `eviction`. One that ships is read as it is: Hydra takes a fifth of a second for each."""
    if not parameters and name in options_of("eviction"):
        return OmegaConf.create(files("conf").joinpath("eviction", f"{name}.yaml").read_text())
    chosen = f"eviction._target_={name}" if "." in name else f"eviction={name}"
    given = [f"eviction.{parameter.strip()}" for parameter in parameters.split(",")] if parameters else []
    return compose_config("sim", [chosen, *given]).eviction
