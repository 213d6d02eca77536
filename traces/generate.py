"""Make a trace from a recipe: arrivals, lengths, shared beginnings, sessions, and what else its requests have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from core.errors import InputError
from traces.generators.blocks import Place
from traces.generators.chaining import chained_ids
from traces.generators.extras import LONGEST_S, priority_column, to_ps
from traces.generators.requests import NEVER, Requests
from traces.generators.streams import Streams
from traces.recipe import Recipe, read_recipe
from traces.schema import IntArray, Ragged, Trace


def generate(
    recipe: Mapping[str, Any], num_requests: int | None = None, seed: int | None = None, file: str = "recipe"
) -> Trace:
    """The trace that a recipe describes; `num_requests` and `seed` override the recipe's.

    Prompts that share beginnings have chained hash ids, which are dense and in order of first appearance. The same
    recipe and seed give the same trace (with one version of numpy). Every part draws from a stream of its own: what one
    part draws does not change with another. `Trace.recipe` is the recipe as it was made from.

    Raises InputError, naming `file` and the key, for a recipe that cannot be. O(requests + ids).
    """
    overrides = {"num_requests": num_requests, "seed": seed}
    document = {**recipe, **{name: value for name, value in overrides.items() if value is not None}}
    parsed = read_recipe(document, Place(file))
    document = _plain(document | {"num_requests": parsed.num_requests, "seed": parsed.seed}, file)
    streams = Streams(parsed.seed)
    requests = parsed.requests(streams)
    trace = _trace(parsed, requests, streams, document)
    trace.validate()
    return replace(trace, sha256=_digest(trace))


def _plain(document: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The document as JSON holds it: YAML has dates, and keys that are no texts."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(document, default=str))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file}: {error}; expected a recipe that JSON can hold") from error
    return plain


def _trace(recipe: Recipe, requests: Requests, streams: Streams, document: dict[str, Any]) -> Trace:
    trace = Trace(
        name=recipe.name,
        arrival_ps=_arrival_ps(requests, recipe.time_quantum_s),
        num_prompt_tokens=requests.num_prompt_tokens,
        num_output_tokens=requests.num_output_tokens,
        hash_block_tokens=recipe.hash_block_tokens,
        hash_ids=None if recipe.hash_block_tokens is None else _hash_ids(requests, recipe.hash_block_tokens),
        session_id=requests.session_id,
        parent=requests.parent,
        think_time_ps=_think_time_ps(requests),
        licence=recipe.licence,
        recipe=document,
    )
    return replace(trace, **_extras(recipe, requests, streams))


def _extras(recipe: Recipe, requests: Requests, streams: Streams) -> dict[str, Any]:
    """The columns that the recipe asks for beside lengths and sessions."""
    num = len(requests.arrival_s)
    columns: dict[str, IntArray] = {}
    if recipe.tenants is not None:
        columns["tenant"] = recipe.tenants.column(requests.group, streams)
    if recipe.priorities is not None:
        columns["priority"] = priority_column(recipe.priorities, num, streams)
    if recipe.cancellations is not None:
        columns["cancel_after_ps"] = recipe.cancellations.column(num, streams)
    if recipe.deadlines is not None:
        columns["deadline_ps"] = recipe.deadlines.column(num, streams)
    return columns


def _arrival_ps(requests: Requests, time_quantum_s: float) -> IntArray:
    last_s = float(requests.arrival_s[-1])
    if last_s > LONGEST_S:
        raise InputError(f"arrivals: the last request comes after {last_s:.3g} s; expected at most {LONGEST_S}")
    if not time_quantum_s:
        return to_ps(requests.arrival_s)
    return to_ps(np.floor(requests.arrival_s / time_quantum_s) * time_quantum_s)


def _think_time_ps(requests: Requests) -> IntArray | None:
    if requests.think_time_s is None:
        return None
    return np.where(requests.think_time_s < 0, NEVER, to_ps(requests.think_time_s))


def _hash_ids(requests: Requests, block_tokens: int) -> Ragged:
    """One id a block. A block is shared if it lies within the shared tokens, or if the whole prompt does."""
    num_blocks = -(-requests.num_prompt_tokens // block_tokens)
    is_whole = requests.num_shared_tokens == requests.num_prompt_tokens
    num_shared = np.where(is_whole, num_blocks, requests.num_shared_tokens // block_tokens)
    return chained_ids(num_blocks, requests.origin, num_shared)


def _digest(trace: Trace) -> str:
    """Of the recipe and of what came of it: tells traces apart that never were a file."""
    digest = hashlib.sha256(json.dumps(trace.recipe, sort_keys=True).encode())
    for name, column in trace.columns():
        digest.update(name.encode() + column.astype("<i8").tobytes())
    if trace.hash_ids is not None:
        digest.update(trace.hash_ids.values.astype("<i8").tobytes())
    return digest.hexdigest()
