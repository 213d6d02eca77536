"""Options of the verbs that have no configuration: argparse, with its complaints as one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from core.errors import InputError
from core.whole_file import can_be_written
from kvtwin.naming import did_you_mean

_SETTINGS = ("format", "on_error", "hash_block_tokens", "tokenizer", "limit", "rate_scale", "length_scale")
_ARGUMENTS = ("fraction", "num_requests", "window")  # of traces.selection, which no configuration has
_SETTING = re.compile(rf"\btrace\.({'|'.join(_SETTINGS)})\b(=?)|^({'|'.join(_ARGUMENTS)})(=)")
_NO_WHOLE_NUMBER = re.compile(r"invalid int value: '(.*)'")
_UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (-[^ =]+)")


class Arguments(argparse.ArgumentParser):
    """A parser of `kvtwin VERB`'s words; a word it cannot take raises InputError. Options are not abbreviated.

    After `--help` it ends with SystemExit(0), as argparse does; `kvtwin.app.main` turns that into a status.
    """

    def __init__(self, verb: str, description: str, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            f"kvtwin {verb}", description=description, allow_abbrev=False, formatter_class=formatter, **options
        )
        self._verb = verb

    def error(self, message: str) -> NoReturn:
        """Raises InputError with argparse's message; an option that does not exist gets its near ones."""
        if unknown := _UNKNOWN_OPTION.match(message):
            known = [name for name in self._option_string_actions if name.startswith("--")]
            message = f"no option {unknown[1]}{did_you_mean(unknown[1], known)}"
        message = _NO_WHOLE_NUMBER.sub(r"\1; expected a whole number", message)
        raise InputError(f"{self._verb}: {message} ({self.prog} --help tells how)")


@contextmanager
def settings_named_as_flags() -> Iterator[None]:
    """Whoever reads traces names its settings as `kvtwin sim` has them (`trace.on_error=skip`); inside, an InputError
    names the flags of these verbs instead (`--on-error skip`).
    """
    try:
        yield
    except InputError as error:
        raise InputError(_SETTING.sub(_flag, str(error))) from error


def _flag(setting: re.Match[str]) -> str:
    name, equals = setting[1] or setting[3], setting[2] or setting[4]
    return f"--{name.replace('_', '-')}{' ' if equals else ''}"


def count(text: str) -> int:
    """The type of an option that takes a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) < 2**62):
        raise argparse.ArgumentTypeError(f"{text}; expected a whole number of at least 1")
    return int(text)


def file_to_write(text: str) -> Path:
    """The type of an option that names a file to write, in a folder that is made if need be; seen before the work."""
    path = Path(text)
    if not text or not can_be_written(path):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; expected a file in a folder that can")
    return path


def seed(text: str) -> int:
    """The type of an option that takes a whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text}; expected a whole number from 0")
    return int(text)
