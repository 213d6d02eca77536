"""Fit: from a trace to a recipe that makes traces with its statistics, and how far off these are."""

from __future__ import annotations

from typing import Any, NamedTuple

from traces.block_references import block_references
from traces.fitting.arrival_fit import fit_arrivals
from traces.fitting.reuse_fit import fit_lengths, fit_lengths_and_reuse
from traces.fitting.statistics import statistics
from traces.fitting.tables import plain
from traces.generate import generate
from traces.schema import Trace

CAPACITY_RATIOS = (1 / 64, 1 / 16, 1 / 4)  # of the distinct blocks of a trace: where its hit curve is compared


class Residual(NamedTuple):
    """One statistic of a trace, and of the trace made from its recipe."""

    statistic: str
    trace: float
    recipe: float

    @property
    def error(self) -> str:
        """Points for hit ratios, the plain difference for correlations and small counts, else per cent."""
        difference = self.recipe - self.trace
        if "hit_ratio" in self.statistic:
            return f"{_signed(100 * difference)} points"
        if "correlation" in self.statistic or "blocks" in self.statistic or self.trace == 0:
            return _signed(difference)
        return f"{_signed(100 * difference / self.trace)} %"


class Fit(NamedTuple):
    """A recipe, and what a trace made from it (same number of requests) is like beside the one it was learnt from."""

    recipe: dict[str, Any]
    residuals: list[Residual]


def fit(trace: Trace, seed: int = 0, name: str | None = None) -> Fit:
    """Learn a recipe, called `name`, from a trace.

    * Arrivals: quantiles of the gaps, so that their coefficient of variation is kept; their order has the trace's rank
      autocorrelation. Times from a coarse clock (several requests a tick) are spread within the tick before, and made
      coarse again when the recipe is used.
    * Lengths: quantiles of prompt and output tokens, joined by their rank correlation.
    * Sharing, from the hash ids alone: each prompt is split into the leading blocks that an earlier one has as well and
      the rest. The latest request that has them is taken as the one continued. Blocks that nearly all prompts begin
      with become a common prefix. Requests that share more are kept apart from those that do not, with their share
      over the course of the trace, lengths, shared or new blocks by length, age and length of what they continue
      (`traces.generators.reuse`). How popular a prefix is, beyond that it was used lately, is not modelled.
    * Sessions' links, tenants, priorities, cancellations: not learnt. A closed loop becomes an open one.

    The residuals compare the trace with one made with `seed`, and are kept in the recipe under `fit`.
    O(blocks log blocks), about the cost of reading the file.
    """
    recipe = {
        "name": name or f"{trace.name}_like",
        "description": f"fitted to {trace.name}",
        "licence": f"generated; statistics of {trace.name}" + (f" ({trace.licence})" if trace.licence else ""),
        "num_requests": trace.num_requests,
        "seed": seed,
        **fit_arrivals(trace),
        **_content(trace),
    }
    residuals = compare(trace, generate(recipe, file="fitted recipe"))
    recipe["fit"] = {
        "trace": trace.name,
        "sha256": trace.sha256,
        "residuals": {name: [plain(of_trace), plain(of_recipe)] for name, of_trace, of_recipe in residuals},
        "not_learnt": not_learnt(trace),
    }
    return Fit(recipe, residuals)


def compare(trace: Trace, made: Trace) -> list[Residual]:
    """The statistics of a trace beside those of one that was made; hit curves at the same capacities."""
    capacities: tuple[int, ...] = ()
    if trace.has_prefix_information:
        num_unique = block_references(trace).num_unique
        capacities = tuple(sorted({max(1, round(num_unique * ratio)) for ratio in CAPACITY_RATIOS}))
    of_trace, of_made = statistics(trace, capacities), statistics(made, capacities)
    return [Residual(name, of_trace[name], of_made[name]) for name in of_trace if name in of_made]


def residual_table(residuals: list[Residual]) -> list[str]:
    """Lines: statistic, trace, a trace made from its recipe, error."""
    rows = [("statistic", "trace", "recipe", "error")]
    rows += [(each.statistic, _figure(each.trace), _figure(each.recipe), each.error) for each in residuals]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def not_learnt(trace: Trace) -> list[str]:
    """Columns of the trace that its recipe says nothing about."""
    learnt = ("arrival_ps", "num_prompt_tokens", "num_output_tokens")
    return [name for name, _ in trace.columns() if name not in learnt]


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0: no -0.00


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _content(trace: Trace) -> dict[str, Any]:
    if not trace.has_prefix_information:
        return fit_lengths(trace)
    return fit_lengths_and_reuse(trace, block_references(trace))
