"""`kvtwin policy VERB`: what policies there are, a new one of your own, and whether it keeps its promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from core.errors import InputError
from kvtwin.naming import near_or_all

POLICY_VERBS = {
    "list": "every policy of every kind, with its parameters; --kind, --json",
    "new": "a file with a policy of your own that works, and its test",
    "check": "does a policy keep the promises of its kind? exit status 0 only if it does",
}

EXAMPLES = """examples:
  kvtwin policy list --kind eviction
  kvtwin policy new my_policy --kind eviction
  kvtwin policy check my_policy.MyPolicy depth=3
  kvtwin policy check lru

docs/write-a-policy.md goes from an idea to a sweep to the engine"""


def run(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if args[0] not in POLICY_VERBS:
        raise InputError(f"no policy verb {args[0]!r}{near_or_all(args[0], POLICY_VERBS)}")
    run_verb: Callable[[Sequence[str]], int] = import_module(f"kvtwin.policy_verbs.{args[0]}").run
    return run_verb(args[1:])


def _usage() -> str:
    width = max(map(len, POLICY_VERBS))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in POLICY_VERBS.items())
    return f"usage: kvtwin policy VERB ... [--option value ...]\n\n{lines}\n\n{EXAMPLES}"
