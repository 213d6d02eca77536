"""From a `_target_` to the class it names and to a factory; what cannot be is told in one line before anything runs."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from typing import Any, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from core.build import PrefixIndex
from core.errors import InputError
from core.interfaces import (
    AdmissionPolicy,
    AllocationPolicy,
    BatchPolicy,
    EvictionPolicy,
    LeafRanking,
    Policy,
    PolicyEnv,
    PreemptionPolicy,
    QueuePolicy,
)
from core.routing import RoutingPolicy
from kvtwin.failures import failure_line
from kvtwin.naming import did_you_mean, near_or_all, no_such_key

POLICY_BASES: Mapping[str, type[Policy]] = {
    "eviction": EvictionPolicy,
    "allocation": AllocationPolicy,
    "preemption": PreemptionPolicy,
    "batching": BatchPolicy,
    "queue": QueuePolicy,
    "admission": AdmissionPolicy,
    "routing": RoutingPolicy,
}
POLICY_GROUPS = tuple(POLICY_BASES)
EVICTION_BASES: Mapping[PrefixIndex, type[Policy]] = {
    PrefixIndex.HASH: EvictionPolicy,
    PrefixIndex.RADIX: LeafRanking,
}

_PLAIN_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "null",
}
_OTHER_FORM: Mapping[type[Policy], str] = {
    EvictionPolicy: ", or pool.prefix_index=radix with this one",
    LeafRanking: " such as eviction=radix/lru, or pool.prefix_index=hash with this one",
}

PolicyFactory = type[Policy] | partial[Any]


def policy_bases(form: PrefixIndex) -> Mapping[str, type[Policy]]:
    """What each policy of a replica derives from, by group, where the prefix index has this form."""
    bases = {**POLICY_BASES, "eviction": EVICTION_BASES[form]}
    del bases["routing"]
    return bases


def bind_policy(config: DictConfig, group: str, base: type[Policy] | None = None) -> partial[Any]:
    """The class that the group names, with its parameters: `factory(env)` makes the policy.

    It must derive from `base`, or else from what the group's policies usually derive from. Hydra must not see the
    environment, which it would turn into a DictConfig. Raises InputError.
    """
    cls = find_class(str(config.get("_target_")), group)
    _require_policy(cls, group, base)
    values = _plain_values(config)
    factory = instantiate_one(config, group, _partial_=True) if values is None else partial(cls, **values)
    return checked_policy(factory, group, base)


def checked_policy(factory: PolicyFactory, group: str, base: type[Policy] | None = None) -> partial[Any]:
    """The factory, once it is known to make a policy of this group with the parameters it is bound to."""
    bound = factory if isinstance(factory, partial) else partial(factory)
    cls = bound.func
    _require_policy(cls, group, base)
    takes = inspect.signature(cls).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    unknown = [] if takes_any else [key for key in bound.keywords if key not in takes]
    if unknown:
        own = list(takes)[1:]  # the first is the environment
        listed = did_you_mean(unknown[0], own) or f"; it takes {', '.join(own) or 'none'}"
        raise InputError(f"{group}.{unknown[0]}: {cls.__qualname__} has no such parameter{listed}")
    missing = [key for key, parameter in list(takes.items())[1:] if _is_required(parameter, bound)]
    if missing:
        raise InputError(f"{group}.{missing[0]} is missing: {cls.__qualname__} has no default for it")
    # A plain one: what Hydra makes checks anew at each call what it calls, 0.2 ms, and fleets make very many.
    return partial(_built, partial(cls, *bound.args, **bound.keywords), group)


def _is_required(parameter: inspect.Parameter, bound: partial[Any]) -> bool:
    has_place = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return has_place and parameter.default is inspect.Parameter.empty and parameter.name not in bound.keywords


def class_of(factory: partial[Any]) -> Any:
    """The class of the policies that a checked factory makes."""
    return factory.args[0].func


def _require_policy(cls: Any, group: str, base: type[Policy] | None) -> None:
    base, name = base or POLICY_BASES[group], getattr(cls, "__qualname__", repr(cls))
    if not (isinstance(cls, type) and issubclass(cls, base)):
        hint = _OTHER_FORM.get(base, "") if _is_eviction(cls) else ""
        raise InputError(
            f"{group}: {name} is no {base.__name__}; expected a class derived from kvtwin.{base.__name__}{hint}"
        )
    missing = missing_methods(cls)
    if missing:
        own = [each for each in vars(cls) if each not in dir(base)]
        near = get_close_matches(missing[0], own, n=1)
        hint = f"; is its {near[0]} meant?" if near else ""
        raise InputError(
            f"{group}: {name} does not define {', '.join(missing)}, which every {base.__name__} must{hint}"
        )


def missing_methods(cls: type[Policy]) -> list[str]:
    """What a policy of this class cannot do without. Machine code keeps no marks of abstract methods: those classes
    list them.
    """
    missing = set(getattr(cls, "__abstractmethods__", ()))
    for base in cls.__mro__:
        listed = vars(base).get("to_define", ())
        missing.update(name for name in listed if getattr(cls, name) is getattr(base, name))
    return sorted(missing)


def _is_eviction(cls: Any) -> bool:
    """Is it of one form or the other?"""
    return isinstance(cls, type) and issubclass(cls, tuple(EVICTION_BASES.values()))


def _built(factory: partial[Any], group: str, env: PolicyEnv) -> Policy:
    try:
        policy: Policy = factory(env)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{group}: {factory.func.__qualname__} cannot be made: {failure_line(error)}") from error
    return policy


def find_class(target: str, group: str) -> Any:
    """What `target` names, looked for in the working folder too. Raises InputError telling why it cannot be had."""
    module_name, _, name = target.rpartition(".")
    if not module_name:
        raise InputError(f"{group}._target_={target}: expected module.Class")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{group}._target_={target}: {module_name} needs {error.name}, not installed") from None
        raise InputError(
            f"{group}._target_={target}: no module {error.name} in the working folder or among the installed packages"
        ) from None
    except Exception as error:
        raise InputError(f"{group}._target_={target}: importing {module_name}: {failure_line(error)}") from error
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        hint = near_or_all(name, own) if own else did_you_mean(name, vars(module))
        raise InputError(f"{group}._target_={target}: {module_name} has no {name}{hint}")
    return getattr(module, name)


def instantiate_one(config: DictConfig, group: str, **extra: Any) -> Any:
    """Hydra's `instantiate`, its errors told in one line; the values of a data class are checked against its types."""
    cls = find_class(str(config.get("_target_")), group)
    values = _plain_values(config)
    if holds_data := is_dataclass(cls):
        _check_types(cls, config if values is None else values, group)
    if values is None or extra or not holds_data:
        return _instantiated(config, group, extra)
    try:
        return cls(**values)
    except InputError:
        raise
    except Exception as error:
        raise _cannot_be_made(config, group, error) from None


def _instantiated(config: DictConfig, group: str, extra: Mapping[str, Any]) -> Any:
    try:
        return instantiate(config, **extra)
    except InstantiationException as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        if isinstance(cause, InputError):
            raise cause from None
        raise _cannot_be_made(config, group, cause) from None


def _cannot_be_made(config: DictConfig, group: str, cause: BaseException) -> InputError:
    reason = next(line.strip() for line in str(cause).splitlines() if line.strip())
    return InputError(f"{group}._target_={config.get('_target_')}: {reason}")


def _plain_values(config: DictConfig) -> dict[str, Any] | None:
    """The parameters of a class, if all are numbers, words, true, false or null, as Hydra's `instantiate` would hand
    them over, 2 ms later. None where there is more for it to do: blocks, lists, interpolations, keys that are its own.
    """
    written = OmegaConf.to_container(config, resolve=False)
    assert isinstance(written, dict)
    values = {str(key): value for key, value in written.items() if key != "_target_"}
    is_plain = all(not key.startswith("_") and _is_plain(value) for key, value in values.items())
    return values if is_plain else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return "${" not in value and value != "???"
    return value is None or isinstance(value, bool | int | float)


def _check_types(cls: Any, values: Mapping[Any, Any], group: str) -> None:
    hints = _type_hints(cls)
    for key in map(str, values):
        if key not in hints and not key.startswith("_"):
            raise InputError(no_such_key(f"{group}.{key}", [f"{group}.{name}" for name in hints]))
    for name, hint in hints.items():
        allowed = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
        plain = [each for each in allowed if each in _PLAIN_WORDS]
        if len(plain) < len(allowed) or name not in values or type(value := values.get(name)) in plain:
            continue
        if not (float in plain and type(value) is int):
            expected = " or ".join(_PLAIN_WORDS[each] for each in plain)
            raise InputError(f"{group}.{name}={value}: expected {expected}")


@cache
def _type_hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)
