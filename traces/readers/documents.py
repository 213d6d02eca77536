"""Traces that are one JSON document rather than a row a line."""

from __future__ import annotations

import json
import re
from typing import Any

from core.errors import InputError
from traces.readers.bad_rows import BadRow, shown
from traces.readers.json_text import parse_json
from traces.readers.source import Head, Source


def names(head: Head, opening: str, *keys: str) -> bool:
    """Whether a file starts with this bracket and has all these keys near its start."""
    start = head.bytes.decode("utf-8-sig", "replace").lstrip()
    return start.startswith(opening) and all(re.search(rf'"{key}"\s*:', start) for key in keys)


def json_document(source: Source) -> Any:
    """The document; numbers with a point come as Decimal, so that times stay exact. Raises InputError."""
    text = source.read_text()
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        where = f"{source.path}, line {error.lineno}, character {error.colno}"
        raise InputError(f"{where}: {error.msg}; expected one JSON document") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source.path}: {error}; expected one JSON document") from error


def list_under(source: Source, document: Any, key: str) -> list[Any]:
    """The list under a key of the document. Raises InputError where there is none."""
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, list):
        raise InputError(f"{source.path}, key {key}: {shown(value)}; expected a list")
    return value


def object_at(place: str, value: object) -> dict[str, Any]:
    """An item of a list, which must be an object. Raises BadRow."""
    if not isinstance(value, dict):
        raise BadRow("malformed_row", place, value, "an object")
    return value
