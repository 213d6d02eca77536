"""Command-line words on their way to Hydra, and Hydra's complaints on their way back: one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from core.errors import InputError
from kvtwin.flags import HELP_FLAGS, SHOWING_FLAGS, SWEEP_FLAGS, split_flags
from kvtwin.naming import near_or_all, no_such_key, options_of
from kvtwin.plugins import offer_plugins

CLASS_GROUPS = ("eviction", "allocation", "preemption", "batching", "queue", "admission", "routing", "cost")
FILE_KEYS = ("model.path", "trace.path", "trace.recipe", "trace.tokenizer", "cost.path", "out", "hardware_file")
OWN = "own"  # the option of a class group that holds nothing: the user's class brings its own parameters
ADDED_GROUPS = ("experiment",)  # chosen by +group=option: none is a default
REPEATABLE = ("sim", "engine")  # by `seeds=N`


def hydra_words(args: Sequence[str]) -> list[str]:
    """The words as Hydra wants them: a sweep's flag first, all settings together, and `group._target_=…` with nothing
    left of another class.

    Parameters of a class need no `+`: whether it takes them is checked when it is bound, against its own signature.
    Raises InputError for a flag that does not exist.
    """
    flags, settings = split_flags(args)
    for arg in settings:
        name, equals, choice = arg.lstrip("+").partition("=")
        if equals and not name:
            raise InputError(f"cannot read {arg!r}; expected key=value")
        if choice.isdigit() and options_of(name):
            raise InputError(f"{arg}: no such {name}{near_or_all(choice, options_of(name))}")
    chosen = {word.partition("=")[0] for word in settings}
    own = [f"{group}={OWN}" for group in CLASS_GROUPS if f"{group}._target_" in chosen and group not in chosen]
    readable = [f"++{word}" if _is_parameter(word) else _readable(word) for word in settings]
    sweep = [flag for flag in flags if flag in SWEEP_FLAGS]
    return [*sweep[:1], *own, *readable, *(flag for flag in flags if flag not in SWEEP_FLAGS)]


def with_seeds(verb: str, args: Sequence[str]) -> list[str]:
    """The words with `seeds=N` as the sweep that it stands for: over `seed`, N values from the given one on.

    Raises InputError for what is no number of seeds, where `seed` is swept already, or for a verb that repeats nothing.
    """
    if not any(arg.startswith("seeds=") for arg in args):
        return list(args)
    num, first = (_last_value(args, name, default) for name, default in (("seeds", "1"), ("seed", "0")))
    if verb not in REPEATABLE:
        raise InputError(f"seeds={num}: kvtwin {verb} does not repeat runs; expected kvtwin {' or '.join(REPEATABLE)}")
    if not (_is_number(num) and int(num) >= 1):
        raise InputError(f"seeds={num}: expected a whole number of at least 1")
    if not _is_number(first):
        raise InputError(f"seed={first}: expected the first of the seeds={num}, a whole number")
    others = [arg for arg in args if not arg.startswith(("seeds=", "seed="))]
    if any(arg.partition("=")[0] in (*SHOWING_FLAGS, *HELP_FLAGS) for arg in args):
        return [*others, f"seed={first}"]
    return ["-m", *others, f"seed=range({first},{int(first) + int(num)})"]


def _last_value(args: Sequence[str], name: str, default: str) -> str:
    return next((arg.partition("=")[2] for arg in reversed(args) if arg.startswith(f"{name}=")), default)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _is_parameter(word: str) -> bool:
    group, dot, name = word.partition("=")[0].partition(".")
    return bool(dot) and group in CLASS_GROUPS and name != "_target_"


def _readable(word: str) -> str:
    """A file's name in quotes, as Hydra's grammar wants it: names have spaces, brackets, `~` and `=` in them."""
    key, _, name = word.partition("=")
    is_plain = name not in ("", "null") and not set(name) & set(",'\"$\\")  # a sweep, quoted, an interpolation
    return f"{key}='{name}'" if key in FILE_KEYS and is_plain else word


def compose_config(verb: str, words: Sequence[str]) -> DictConfig:
    """The verb's configuration outside of the command, whatever Hydra application this may be called from.

    Raises InputError for words that it cannot take.
    """
    offer_plugins()
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(version_base="1.3", config_module="conf"):
            return compose(config_name=verb, overrides=hydra_words(words))
    except Exception as error:  # Hydra raises its own exceptions, OmegaConf's and ValueError for one and the same
        raise composition_error(error, verb) from None
    finally:
        GlobalHydra.instance().hydra = outer


def composition_error(error: Exception, verb: str, is_shown: bool = False) -> InputError:
    """The one line that tells what was wrong with the words; `is_shown`: the configuration was only to be shown."""
    if isinstance(error, InputError):
        return error
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        name = str(error.missing_cfg_file)
        group, _, option = name.rpartition("/") if name.startswith("hydra/") else name.partition("/")
        is_file = group == "trace" and Path(option).exists()
        expected = f"; expected trace=file trace.path={option}" if is_file else near_or_all(option, error.options or ())
        return InputError(f"{group}={option}: no such {group}{expected}")
    if isinstance(error, OverrideParseException):
        hint = "a value with special characters in quotes that the shell leaves alone"
        return InputError(f"cannot read {error.override!r}; expected key=value, {hint}")
    if text.startswith("Ambiguous value"):
        expected = "one, to show the settings" if is_shown else f"kvtwin {verb} -m ..."
        return InputError(f"{_first_quoted(text)}: several values are a sweep; expected {expected}")
    if text.startswith("Could not override"):
        return _unknown_key(_first_quoted(text), verb)
    return InputError(" ".join(text.split("\n\n")[0].split()))


def _unknown_key(key: str, verb: str) -> InputError:
    if key in ADDED_GROUPS:
        return InputError(f"{key}: nothing to replace, it has no default; expected +{key}=...")
    if options_of(key):
        return InputError(f"{key}: kvtwin {verb} has no such setting (kvtwin {verb} --help lists those that it has)")
    keys = _dotted(OmegaConf.to_container(compose_config(verb, ()), resolve=False))
    return InputError(no_such_key(key, keys))


def _first_quoted(text: str) -> str:
    found = re.search(r"'([^']*)'", text)
    return found[1] if found else text.splitlines()[0]


def _dotted(block: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a configuration by its dotted name, blocks included."""
    for name, value in block.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
