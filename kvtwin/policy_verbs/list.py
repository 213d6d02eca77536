"""`kvtwin policy list`: every policy that can be chosen by a name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvtwin.arguments import Arguments
from kvtwin.policy_catalogue import SHIPPED, Listed, catalogue
from kvtwin.policy_kinds import KINDS, kind_named
from kvtwin.tables import print_tables

_WIDEST = {"name": None, "parameters": 40, "what it does": 60, "source": 50}  # in a pipe, too, which has no width


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    kinds = [kind_named(options.kind)] if options.kind else list(KINDS.values())
    policies = [policy for kind in kinds for policy in catalogue(kind)]
    if options.json:
        print(json.dumps([asdict(policy) for policy in policies], indent=1, default=str))
    else:
        print_tables(*(_table(kind.name, [each for each in policies if each.kind == kind.name]) for kind in kinds))
    return 0


def _table(kind: str, policies: Sequence[Listed]) -> Group:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading, max_width in _WIDEST.items():
        table.add_column(heading, max_width=max_width)
    for policy in policies:
        source = "" if policy.source in policy.summary else policy.source
        table.add_row(policy.name, _parameters(policy), Text(policy.summary), Text(source))
    notes = [f"{each.name} comes with {each.origin}" for each in policies if each.origin != SHIPPED]
    return Group(Text(f"{kind}, such as {policies[0].use}", style="bold"), table, *map(Text, notes))


def _parameters(policy: Listed) -> Text:
    named = [f"{name}={_shown(value)}" for name, value in policy.parameters.items()]
    return Text(", ".join([*named, *(["clairvoyant"] if policy.clairvoyant else [])]))


def _shown(value: Any) -> str:
    """As one would write it on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parser() -> Arguments:
    parser = Arguments("policy list", "Every policy that can be chosen by a name, with its parameters and defaults.")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--json", action="store_true", help="with the class, where it comes from, and how to choose it")
    return parser
