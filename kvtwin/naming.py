"""Names that can be chosen, and the near ones of a name that cannot."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.resources import files

HIDDEN = {"base"}
MAX_LISTED = 12


def options_of(group: str) -> list[str]:
    """The options of a config group, by name; empty if there is no such group."""
    folder = files("conf").joinpath(group)
    if not group or not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir())
    return sorted(name[:-5] for name in names if name.endswith(".yaml") and name[:-5] not in HIDDEN)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean …?`, or nothing where none is near.

    Near is what is spelled alike, or else what begins so: `h200` for `h200_141gb`.
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=3) or [each for each in names if name and each.startswith(name)][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def no_such_key(key: str, known: Iterable[str]) -> str:
    """`key: no such key`, with the near ones of its block, or of all where there is no such block; or what there is."""
    block, dot, _ = key.rpartition(".")
    names = set(known)
    inside = [name for name in names if dot and name.startswith(f"{block}.")]
    blocks = sorted({name.partition(".")[0] for name in names} - HIDDEN)
    all_of_them = did_you_mean(key, names) or f"; expected one of {', '.join(blocks)}, or a key of one of these"
    return f"{key}: no such key{near_or_all(key, inside) if inside else all_of_them}"


def near_or_all(name: str, known: Iterable[str]) -> str:
    """The same, with all names where none is near and they are few enough to read."""
    names = sorted(set(known) - HIDDEN)
    listed = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    return did_you_mean(name, names) or f"; expected one of {listed}"
