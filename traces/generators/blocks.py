"""A recipe's blocks as data classes: each key has a reader that checks its value, or names file and key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from math import inf
from typing import Any, TypeVar

from core.errors import InputError


@dataclass(frozen=True)
class Place:
    """Where a value stands: its file (or what else it came from), and its key from the top."""

    file: str
    key: str = ""

    def of(self, name: object) -> Place:
        """The place of one key of the block that stands here."""
        return Place(self.file, f"{self.key}.{name}" if self.key else str(name))

    def refusal(self, value: object, expected: str) -> InputError:
        """What to raise for a value that is wrong."""
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        where = f"{self.file}, key {self.key}" if self.key else self.file
        return InputError(f"{where}: {shown}; expected {expected}")


LARGEST = 1e300
Reader = Callable[[Any, Place], Any]


class Block:
    """A block of a recipe: a data class whose fields are made by `key`."""

    def check(self, place: Place) -> None:
        """Raises InputError where keys that are right by themselves do not go together."""


AnyBlock = TypeVar("AnyBlock", bound=Block)


def key(read: Reader, default: Any = MISSING) -> Any:
    """A field of a block: how its value is read, and what it is where the recipe lacks it."""
    return dataclasses.field(default=default, metadata={"read": read})


def read_block(block: type[AnyBlock], values: Any, place: Place, also: tuple[str, ...] = ()) -> AnyBlock:
    """The block that a mapping describes; `also` are further keys that it may have.

    Raises InputError for a key that does not exist (with a near one), that is missing, or whose value is wrong.
    """
    fields = {field.name: field for field in dataclasses.fields(block)}  # type: ignore[arg-type]  # blocks are such
    mapping = _mapping(values, place, fields)
    for name in mapping:
        if name not in fields and name not in also:
            near = get_close_matches(str(name), fields, n=1) or sorted(fields)
            raise place.of(name).refusal(mapping[name], f"a known key, such as {', '.join(near)}")
    for name, field in fields.items():
        if name not in mapping and field.default is MISSING:
            raise InputError(f"{place.file}: key {place.of(name).key} is missing")
    read = {
        name: fields[name].metadata["read"](value, place.of(name)) for name, value in mapping.items() if name in fields
    }
    made = block(**read)
    made.check(place)
    return made


def one_of(kinds: Mapping[str, type[AnyBlock]]) -> Reader:
    """Reads a block whose `kind` says which of several it is."""

    def read(value: Any, place: Place) -> AnyBlock:
        mapping = _mapping(value, place, ("kind",))
        kind = mapping.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            near = get_close_matches(str(kind), kinds, n=1)
            raise place.of("kind").refusal(kind, f"{near[0]}?" if near else f"one of {', '.join(kinds)}")
        return read_block(kinds[kind], mapping, place, also=("kind",))

    return read


def block_of(kind: type[AnyBlock]) -> Reader:
    """Reads a block of one kind."""
    return lambda value, place: read_block(kind, value, place)


def optional(read: Reader) -> Reader:
    """The same, or null."""
    return lambda value, place: None if value is None else read(value, place)


def number(least: float = -inf, most: float = inf, above: float = -inf) -> Reader:
    """A number from `least` to `most` that is more than `above`."""
    bounds = [f"from {least:g}" if least > -inf else "", f"above {above:g}" if above > -inf else ""]
    bounds.append(f"to {most:g}" if most < inf else "")
    expected = " ".join(["a number", *filter(None, bounds)])

    def read(value: Any, place: Place) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (least <= value <= most and above < value < LARGEST):
            raise place.refusal(value, expected)
        return float(value)

    return read


def whole(least: int, most: int = 2**31 - 1) -> Reader:
    """A whole number between two bounds."""

    def read(value: Any, place: Place) -> int:
        if type(value) is not int or not least <= value <= most:
            raise place.refusal(value, f"a whole number from {least} to {most}")
        return value

    return read


def text(value: Any, place: Place) -> str:
    """A text."""
    if not isinstance(value, str):
        raise place.refusal(value, "a text")
    return value


def list_of(read: Reader) -> Reader:
    """A list of at least one value, each read alike."""

    def read_list(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise place.refusal(value, "a list of at least one")
        return tuple(read(entry, place.of(index)) for index, entry in enumerate(value))

    return read_list


def _mapping(value: Any, place: Place, keys: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise place.refusal(value, f"a mapping with keys such as {', '.join(list(keys)[:3])}")
    return value
