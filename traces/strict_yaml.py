"""YAML in which a key stands once: of two, YAML's readers take the last and say nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from core.errors import InputError


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML tells no types
    """PyYAML's reads YAML 1.1, where 1e3 is a text; in JSON and YAML 1.2 it is a number, and here."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _Repeated(NamedTuple):
    """A key that its mapping had already; lines count from 1."""

    key: str
    line: int
    first_line: int


def load_strict(path: Path, expected: str) -> Any:
    """The document of a file. Raises InputError, saying what was `expected`, for one that cannot be read, and, naming
    the lines, for a key that stands twice in a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text, _Loader)
        repeated = next(_repeated_keys(yaml.compose(text, _Loader)), None)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); expected {expected}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}{_told(error)}; expected {expected}") from error
    if repeated is not None:
        key, line, first_line = repeated
        raise InputError(f"{path}, line {line}, key {key}: it stands in line {first_line} already; expected it once")
    return document


def _told(error: Exception) -> str:
    """Where and what, without the picture of the text that YAML's own message draws."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f": {' '.join(str(error).split())}"
    return f", line {mark.line + 1}: {getattr(error, 'problem', 'cannot be read')}"


def _repeated_keys(root: Any) -> Iterator[_Repeated]:
    """Keys that stand twice, anywhere below a node; a node that aliases refer to is looked at once."""
    seen, left = set(), [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            yield from _repeated_in(node)
            left += [value for _, value in node.value]


def _repeated_in(mapping: Any) -> Iterator[_Repeated]:
    first_lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in first_lines:
                yield _Repeated(key.value, line, first_lines[name])
            first_lines.setdefault(name, line)
