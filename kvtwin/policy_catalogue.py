"""Every policy that can be chosen by a name: those that ship, from conf/, and those of plugins, from entry points."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from core.interfaces import Policy
from kvtwin.binding import find_class
from kvtwin.policy_kinds import Kind, names_of

SHIPPED = "kvtwin"
_SENTENCE_END = re.compile(r"(?<=\.)\s+")
_CITATION = re.compile(r"\b(19|20)\d\d\b|'\d\d\b|\bvLLM\b|\bSGLang\b|\bSource:")


@dataclass(frozen=True)
class Listed:
    """One policy. `summary` and `source` are sentences of its docstring; `origin` is the package that it comes with."""

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
    """The policies of a kind, by name."""
    return [_shipped(kind, name) for name in names_of(kind)]


def _shipped(kind: Kind, name: str) -> Listed:
    text = files("conf").joinpath(kind.group, f"{name}.yaml").read_text(encoding="utf-8")
    chosen = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    assert isinstance(chosen, dict)
    target = str(chosen.pop("_target_"))
    policy: type[Policy] = find_class(target, kind.group)
    given = {str(key): value for key, value in chosen.items()}
    return listed(kind, name, policy, given, SHIPPED)


def listed(kind: Kind, name: str, policy: type[Policy], given: dict[str, Any], origin: str) -> Listed:
    """`given` are parameters that differ from the defaults of the class, or repeat them."""
    sentences = list(_sentences(policy))
    return Listed(
        kind.name,
        name,
        " ".join([f"{kind.group}={name}", *([kind.setting] if kind.setting else [])]),
        f"{policy.__module__}.{policy.__qualname__}",
        {**defaults_of(policy), **given},
        policy.clairvoyant,
        sentences[0] if sentences else "",
        next((part for text in sentences for part in text.split("; ") if _CITATION.search(part)), ""),
        origin,
    )


def defaults_of(policy: type[Policy]) -> dict[str, Any]:
    """The parameters of a policy, but for its environment; `???` for one without a default."""
    taken = list(inspect.signature(policy).parameters.values())[1:]
    named = [one for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return {one.name: "???" if one.default is one.empty else one.default for one in named}


def _sentences(policy: type[Policy]) -> Iterator[str]:
    """Of the class's own docstring, then of its module's."""
    module = inspect.getmodule(policy)
    for text in (policy.__doc__, module.__doc__ if module is not None else None):
        if text:
            yield from _SENTENCE_END.split(" ".join(text.split()))
