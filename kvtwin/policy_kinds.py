"""The kinds of policy that a user can write, and where each is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.build import PrefixIndex
from core.errors import InputError
from core.interfaces import LeafRanking, Policy
from kvtwin.binding import POLICY_BASES
from kvtwin.composition import OWN
from kvtwin.naming import near_or_all, options_of


@dataclass(frozen=True)
class Kind:
    """`group` is the config group it is chosen in; `setting` what else has to be said to use it."""

    name: str
    group: str
    base: type[Policy]
    setting: str = ""


_ALSO = {"routing": "cluster.num_replicas=4"}
KINDS: Mapping[str, Kind] = {
    **{group: Kind(group, group, base, _ALSO.get(group, "")) for group, base in POLICY_BASES.items()},
    "leaf": Kind("leaf", "eviction", LeafRanking, f"pool.prefix_index={PrefixIndex.RADIX.value}"),
}


def kind_named(name: str) -> Kind:
    """Raises InputError for a name that is none."""
    if name not in KINDS:
        raise InputError(f"--kind {name}: no such kind of policy{near_or_all(name, KINDS)}")
    return KINDS[name]


def kind_of(policy: Any) -> Kind:
    """The kind that a class derives from. Raises InputError for what is no policy."""
    for kind in KINDS.values():
        if isinstance(policy, type) and issubclass(policy, kind.base):
            return kind
    name = getattr(policy, "__qualname__", repr(policy))
    bases = ", ".join(kind.base.__name__ for kind in KINDS.values())
    raise InputError(f"{name} is no policy; expected a class derived from one of kvtwin's {bases}")


def shipped_names(kind: Kind) -> list[str]:
    """The short names of the policies of a kind that ship. Leaf rankings have a folder of their own in their group."""
    if kind.name == kind.group:
        return [name for name in options_of(kind.group) if name != OWN]
    return [f"radix/{name}" for name in options_of(f"{kind.group}/radix")]
