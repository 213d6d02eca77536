"""Catches misspelt options before Hydra does, and names the near ones."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files

from core.errors import InputError

HIDDEN = {"base"}


def options_of(group: str) -> list[str]:
    """The options of a config group, by name; empty if there is no such group."""
    folder = files("conf").joinpath(group)
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir())
    return sorted(name[:-5] for name in names if name.endswith(".yaml") and name[:-5] not in HIDDEN)


def check_choices(args: Sequence[str]) -> None:
    """Raises InputError for the first `group=option` that names no option of that group."""
    for arg in args:
        group, equals, value = arg.lstrip("+").partition("=")
        options = options_of(group) if equals and "." not in group else []
        for choice in value.split(","):
            if options and choice not in options and not choice.startswith(("glob(", "choice(", "'", '"')):
                near = get_close_matches(choice, options, n=3)
                hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(options)}"
                raise InputError(f"{group}={choice}: no such {group}; {hint}")
