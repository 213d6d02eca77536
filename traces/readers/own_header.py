"""What kvtwin's own formats say of a trace as a whole: first line of a JSON-lines file, metadata of a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from traces.readers.bad_rows import BadRow
from traces.readers.fields import json_object, whole_number
from traces.schema import Trace

SCHEMA = "trace/1"
NO_NOTES: Mapping[str, Any] = MappingProxyType({})


class Header(NamedTuple):
    name: str
    licence: str
    hash_block_tokens: int | None
    category_names: tuple[str, ...]
    recipe: dict[str, Any] | None


def parse_header(text: str) -> Header:
    """Raises BadRow for a schema that is not this one, and for values that are not what they should be."""
    values = json_object(text)
    if values.get("kvtwin") != SCHEMA:
        raise BadRow("header", "kvtwin", values.get("kvtwin"), repr(SCHEMA))
    for key in ("name", "licence"):
        if not isinstance(values.get(key, ""), str):
            raise BadRow("header", key, values[key], "a text")
    names = values.get("category_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRow("header", "category_names", names, "a list of texts")
    block = values.get("hash_block_tokens")
    hash_block_tokens = None if block is None else whole_number("hash_block_tokens", block, least=1)
    recipe = json.loads(text).get("recipe")  # again: a recipe's numbers are plain ones
    if not isinstance(recipe, dict | None):
        raise BadRow("header", "recipe", recipe, "an object")
    return Header(values.get("name", ""), values.get("licence", ""), hash_block_tokens, tuple(names), recipe)


def header_of(trace: Trace, notes: Mapping[str, Any] = NO_NOTES) -> dict[str, Any]:
    """The header that a trace is written with; `notes` are not read back."""
    header: dict[str, Any] = {"kvtwin": SCHEMA, "name": trace.name, "licence": trace.licence}
    if trace.hash_block_tokens is not None:
        header["hash_block_tokens"] = trace.hash_block_tokens
    if trace.category_names:
        header["category_names"] = list(trace.category_names)
    if trace.recipe is not None:
        header["recipe"] = trace.recipe
    if notes:
        header["notes"] = dict(notes)
    return header
