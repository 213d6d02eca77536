"""The options among a command's words: those that Hydra knows, with their values, apart from the settings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from core.errors import InputError
from kvtwin.naming import did_you_mean

SWEEP_FLAGS = ("-m", "--multirun")
HELP_FLAGS = ("-h", "--help", "--hydra-help")
SHOWING_FLAGS = ("-c", "--cfg", "-i", "--info")  # of one configuration, which does not run
_SHOWN = ("job", "hydra", "all")
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # it may have none, too
_CHOICES: Mapping[str, Sequence[str]] = {  # values of options that take one; none listed: any
    **dict.fromkeys(("-c", "--cfg"), _SHOWN),
    **dict.fromkeys(("-i", "--info"), _INFO),
    **dict.fromkeys(("-p", "--package", "-cd", "--config-dir", "-cn", "--config-name", "-cp", "--config-path"), ()),
}
FLAGS = (*SWEEP_FLAGS, *HELP_FLAGS, *_CHOICES, "--resolve", "-r", "--run", "-sc", "--shell-completion")


def split_flags(args: Iterable[str]) -> tuple[list[str], list[str]]:
    """(options, each followed by its value if it takes one; settings), wherever they stood.

    Raises InputError for an option that there is not, for its value, or for a sweep of which one configuration is to
    be shown.
    """
    flags: list[str] = []
    settings: list[str] = []
    rest = deque(args)
    while rest:
        word = rest.popleft()
        if word.startswith("-"):
            flags += _option(word, rest)
        else:
            settings.append(word)
    showing = [flag for flag in flags if flag in SHOWING_FLAGS]
    if showing and any(flag in SWEEP_FLAGS for flag in flags):
        raise InputError(f"{showing[0]} shows one configuration, a sweep has many; expected it without -m")
    return flags, settings


def _option(word: str, rest: deque[str]) -> list[str]:
    """The option and its value, which stands behind `=` or is the next word: it is taken from `rest`."""
    name, equals, value = word.partition("=")
    if name not in FLAGS:
        raise InputError(f"no option {word}{did_you_mean(word, FLAGS)}; settings are written key=value")
    if name not in _CHOICES:
        if equals:
            raise InputError(f"{word}: {name} takes no value")
        return [name]
    choices = _CHOICES[name]
    if choices is _INFO and not equals and (not rest or rest[0] not in choices):
        return [name]
    if not equals:
        value = rest.popleft() if rest else ""
    if not value or (choices and value not in choices):
        raise InputError(f"{f'{name} {value}'.rstrip()}: expected {name} {' or '.join(choices) or 'VALUE'}")
    return [name, value]
