"""Every policy that can be chosen by a name: those that ship, from conf/, and those of plugins, from entry points."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from omegaconf import OmegaConf

from core.interfaces import Policy
from kvtwin.binding import find_class
from kvtwin.plugins import defaults_of, plugin_files, plugin_policies
from kvtwin.policy_kinds import Kind, kind_of, shipped_names

SHIPPED = "kvtwin"
_SENTENCE_END = re.compile(r"(?<=\.)\s+")
_SOURCE = "Source: "  # what a sentence that says so begins with
_SOURCE_LINE = re.compile(rf"^# {_SOURCE}(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Listed:
    """One policy. `summary` is the first sentence of its docstring, `origin` the package that it comes with. `source`
    is a paper, an engine, or that there is none: what the option's file says in a line `# Source: ...`, else a sentence
    of the docstring that begins so.
    """

    kind: str
    name: str
    use: str  # as on the command line
    policy: str
    parameters: dict[str, Any]
    clairvoyant: bool
    summary: str
    source: str
    origin: str


def catalogue(kind: Kind) -> list[Listed]:
    """The policies of a kind: those that ship, by name, then those of plugins."""
    folder = files("conf").joinpath(kind.group)
    files_of = {name: folder.joinpath(f"{name}.yaml") for name in shipped_names(kind)}
    shipped = [listed(kind, name, *_read(file, kind.group), origin=SHIPPED) for name, file in files_of.items()]
    return [*shipped, *(one for one in _of_plugins(kind.group) if one.kind == kind.name)]


def names_of(kind: Kind) -> list[str]:
    """What can be chosen by name."""
    return [*shipped_names(kind), *(one.name for one in _of_plugins(kind.group) if one.kind == kind.name)]


def _of_plugins(group: str) -> Iterator[Listed]:
    """Of whatever kind their classes are."""
    for offer in plugin_policies(group):
        yield listed(kind_of(offer.policy), offer.name, offer.policy, {}, "", offer.package)
    for option in plugin_files(group):
        policy, parameters, source = _read(option.file, group)
        yield listed(kind_of(policy), option.name, policy, parameters, source, option.package)


def _read(file: Traversable, group: str) -> tuple[type[Policy], dict[str, Any], str]:
    """The class that an option names, the parameters that it sets, and the source that it states."""
    text = file.read_text(encoding="utf-8")
    chosen = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    assert isinstance(chosen, dict)
    policy: type[Policy] = find_class(str(chosen.pop("_target_", None)), group)
    stated = _SOURCE_LINE.search(text)
    return policy, {str(key): value for key, value in chosen.items()}, stated[1] if stated else ""


def listed(kind: Kind, name: str, policy: type[Policy], given: dict[str, Any], source: str, origin: str) -> Listed:
    """`given` are parameters that differ from the defaults of the class, or repeat them. `source`: "" if not stated."""
    sentences = list(_sentences(policy))
    return Listed(
        kind.name,
        name,
        " ".join([f"{kind.group}={name}", *([kind.setting] if kind.setting else [])]),
        f"{policy.__module__}.{policy.__qualname__}",
        {**defaults_of(policy), **given},
        policy.clairvoyant,
        sentences[0] if sentences else "",
        source or next((text.removeprefix(_SOURCE) for text in sentences if text.startswith(_SOURCE)), ""),
        origin,
    )


def _sentences(policy: type[Policy]) -> Iterator[str]:
    """Of the class's own docstring, then of its module's."""
    module = inspect.getmodule(policy)
    for text in (policy.__doc__, module.__doc__ if module is not None else None):
        if text:
            yield from _SENTENCE_END.split(" ".join(text.split()))
