"""What the checks have to say: a promise that was broken, with the shortest story that shows it."""

from __future__ import annotations

from collections.abc import Sequence


class PolicyFault(AssertionError):
    """A policy broke a promise. `rule` names the promise, `what` tells how; `story` lines lead there, one by one."""

    def __init__(self, rule: str, what: str, story: Sequence[str] = ()) -> None:
        super().__init__("\n".join([f"{rule}: {what}", *(f"    {line}" for line in story)]))
        self.rule = rule
        self.what = what
        self.story = tuple(story)


class NotChecked(Exception):
    """A check that this policy gives no occasion for, and why."""
