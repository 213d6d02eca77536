"""Fewer requests of a trace: a window of time, a sample of whole conversations, those of some lengths or users."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from core.errors import InputError
from traces.schema import IntArray, Trace
from traces.statistics import PS_PER_S, conversations

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Range:
    """Whole numbers from `least` to `most`, both included."""

    least: float = 1
    most: float = inf

    def holds(self, values: IntArray) -> Bools:
        held: Bools = (values >= self.least) & (values <= self.most)
        return held


@dataclass(frozen=True)
class Criteria:
    """Which requests to keep; None: any."""

    prompt_tokens: Range = Range()
    output_tokens: Range = Range()
    tenants: Collection[int] | None = None
    sessions: Collection[int] | None = None
    priorities: Collection[int] | None = None
    categories: Collection[str] | None = None  # by name


def window(trace: Trace, start_s: Fraction | str | float = 0, end_s: Fraction | str | float | None = None) -> Trace:
    """Requests that arrive from `start_s` on and before `end_s` (None: the end), by the trace's clock, which then
    starts at `start_s`. A turn whose turn before is left out becomes a root.
    """
    start_ps = _time_ps("window", start_s)
    end_ps = None if end_s is None else _time_ps("window", end_s)
    if end_ps is not None and end_ps <= start_ps:
        raise InputError(f"window {start_s}:{end_s} is empty; expected an end after its start, in seconds")
    inside = trace.arrival_ps >= start_ps
    if end_ps is not None:
        inside &= trace.arrival_ps < end_ps
    kept = _kept(trace, inside, f"arrives from {start_s} s to {'the end' if end_s is None else f'{end_s} s'}")
    return replace(kept, arrival_ps=kept.arrival_ps - start_ps)


def sample(
    trace: Trace, *, num_requests: int | None = None, fraction: Fraction | str | float | None = None, seed: int = 0
) -> Trace:
    """Whole conversations in random order until at least `num_requests` (or `fraction` of all) are in.

    The requests keep their times and order; one seed takes the same ones on every machine. Without sessions exactly
    the number asked for.
    """
    wanted = _num_wanted(trace, num_requests, fraction)
    conversation = conversations(trace)
    sizes = np.bincount(conversation)
    order = list(range(len(sizes)))
    random.Random(seed).shuffle(order)
    num_needed = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
    return trace.take(np.flatnonzero(np.isin(conversation, order[:num_needed])))


def select(trace: Trace, criteria: Criteria) -> Trace:
    """The requests that meet all criteria; a turn whose turn before is left out becomes a root."""
    meets = criteria.prompt_tokens.holds(trace.num_prompt_tokens)
    meets &= criteria.output_tokens.holds(trace.num_output_tokens)
    meets &= _is_in("tenant", trace.tenant, criteria.tenants, trace)
    meets &= _is_in("session_id", trace.session_id, criteria.sessions, trace)
    meets &= _is_in("priority", trace.priority, criteria.priorities, trace)
    meets &= _is_in("category", trace.category, _category_codes(trace, criteria.categories), trace)
    return _kept(trace, meets, "meets the criteria")


def _category_codes(trace: Trace, names: Collection[str] | None) -> list[int] | None:
    if names is None:
        return None
    unknown = sorted(set(names) - set(trace.category_names))
    if unknown and trace.category is not None:
        known = ", ".join(trace.category_names)
        raise InputError(f"trace {trace.name!r} has no category {unknown[0]!r}; expected one of {known}")
    return [code for code, name in enumerate(trace.category_names) if name in names]


def _is_in(name: str, column: IntArray | None, wanted: Collection[int] | None, trace: Trace) -> Bools:
    if wanted is None:
        return np.ones(trace.num_requests, dtype=np.bool_)
    if column is None:
        raise InputError(f"trace {trace.name!r} has no {name}; expected a trace with one to select by")
    return np.isin(column, list(wanted))


def _kept(trace: Trace, rows: Bools, what: str) -> Trace:
    if not rows.any():
        last_s = float(trace.arrival_ps[-1]) / PS_PER_S
        raise InputError(
            f"trace {trace.name!r}: none of its {trace.num_requests} requests (the last at {last_s:g} s) {what}"
        )
    return trace.take(np.flatnonzero(rows))


def _num_wanted(trace: Trace, num_requests: int | None, fraction: Fraction | str | float | None) -> int:
    if (num_requests is None) == (fraction is None):
        raise InputError("sample: expected a number of requests or a fraction, and not both")
    if fraction is not None:
        share = _number("fraction", fraction)
        if not 0 < share <= 1:
            raise InputError(f"fraction={fraction}; expected more than 0 and at most 1")
        return ceil(share * trace.num_requests)
    assert num_requests is not None
    if not 1 <= num_requests <= trace.num_requests:
        raise InputError(f"num_requests={num_requests}; expected 1 to {trace.num_requests}, as many as the trace has")
    return num_requests


def _time_ps(key: str, seconds: Fraction | str | float) -> int:
    time_ps = _number(key, seconds) * PS_PER_S
    if not 0 <= time_ps < 2**63:
        raise InputError(f"{key}={seconds}; expected seconds from 0 on")
    return int(time_ps)


def _number(key: str, value: Fraction | str | float) -> Fraction:
    try:
        return Fraction(str(value))  # str() first: 0.1 means one tenth, not the float nearest to it
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"{key}={value}; expected a number such as 30, 0.5 or 1/3") from error
