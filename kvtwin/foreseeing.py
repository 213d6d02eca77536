"""Clairvoyant policies: what they are told of the trace, and that they run only where they are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from omegaconf import DictConfig

from core.errors import InputError
from core.foresight import Foresight
from core.interfaces import Policy, PolicyEnv
from core.kv_group import group_key
from kvtwin.binding import POLICY_GROUPS, class_of, find_class
from traces.replay import ReplayConfig, TraceSource
from traces.schema import Trace


def is_clairvoyant(factory: Callable[[PolicyEnv], Policy]) -> bool:
    """Whether the policies of a checked factory want to know the future."""
    assert isinstance(factory, partial)
    return bool(class_of(factory).clairvoyant)


def foresight_of(trace: Trace, replay: ReplayConfig, num_groups: int) -> Foresight:
    """The blocks that each prompt will look up, in the trace's order: whole ones, always one token short of all."""
    foresight, source = Foresight(), TraceSource(trace, replay)
    for row, num_tokens in enumerate(trace.num_prompt_tokens.tolist()):
        keys = source.block_keys(row).keys(0, (num_tokens - 1) // replay.block_size_tokens)
        foresight.expect(row, (group_key(group, key) for key in keys for group in range(num_groups)))
    return foresight


def refuse_unnamed(config: DictConfig, choices: Mapping[str, str], words: Iterable[str]) -> None:
    """Raises InputError for a clairvoyant policy that a sweep came upon by `glob(…)`, not by its name."""
    globbed = {word.lstrip("+").partition("=")[0] for word in words if "glob(" in word}
    for group in globbed & set(POLICY_GROUPS):
        if find_class(str(config[group].get("_target_")), group).clairvoyant:
            name = choices[group]
            raise InputError(
                f"{group}={name}: it knows the future, a bound and no proposal, and runs only where it is named; "
                f"expected {group}=glob(*,exclude={name}), or {group}={name}"
            )
