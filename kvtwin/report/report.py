"""Reports as one HTML file each: a comparison of simulator and engine, or a single run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin import fleet_figures
from kvtwin.agreement import is_within_spread
from kvtwin.comparison import LATENCIES
from kvtwin.formatting import (
    COMPARED,
    NOTHING,
    SLO_MET,
    counted,
    error_text,
    metric_label,
    metric_text,
    ratio_text,
    spread_text,
)
from kvtwin.report import verdict as words
from kvtwin.report.figure import MEASURED, SIMULATED, Chart, Side
from kvtwin.report.fleet_series import on_one_clock
from kvtwin.report.latency_charts import latency_cdf, latency_scatter
from kvtwin.report.page import Section, Tile, chart_grid, code, render_page, table, tiles
from kvtwin.report.series import MAX_POINTS
from kvtwin.report.time_charts import kv_use, load, waste
from kvtwin.store import Run, write_atomically

_TILES = (
    "output_tokens_per_s",
    "ttft_s.p50",
    "ttft_s.p99",
    "tpot_s.p50",
    "e2e_s.p50",
    "prefix_hit_ratio",
    "num_evictions",
    "num_preemptions",
    "kv_utilization_ratio.time_mean",
    "kv_utilization_ratio.peak",
)
_FLEET_OVER_TIME = f"All replicas together, as they stand at {MAX_POINTS:,} moments, evenly spaced."
_SLO_TILES = ("goodput_rps", SLO_MET)  # of runs that had a service level to meet
_MOST_REPLICAS = 256  # that are listed one by one
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "max")


def write_report(
    path: Path,
    sim_run: Run,
    engine_runs: Sequence[Run],
    comparison: Mapping[str, Any],
    notices: Sequence[str] = (),
) -> None:
    """Write the comparison as one offline HTML file.

    `comparison` is what compare_runs returned for the same runs; `notices` join the headline ("random weights: no
    network"). Raises InputError when plotly is not installed.
    """
    sides = [Side("simulated", SIMULATED, [sim_run]), Side("measured", MEASURED, engine_runs)]
    cdfs = [latency_cdf(name, sides) for name in LATENCIES]
    scatters = [latency_scatter(name, sim_run, engine_runs) for name in LATENCIES]
    over_time = _over_time(sides)
    verdict = words.comparison_verdict(sim_run, comparison)
    difference = comparison["first_difference"]
    sections = [
        *([Section("First difference", "", f"{code(difference, 'Both contexts')}")] if difference else []),
        Section("Key figures", "Simulated; below it the measured value and the error.", _comparison_tiles(comparison)),
        Section("Errors", f"{_error_lead(engine_runs)} {_fit_lead(comparison)}".strip(), _error_table(comparison)),
        Section(
            "Latency distributions",
            "Share of requests no slower than the time on the x axis.",
            chart_grid(cdfs),
        ),
        Section(
            "Request by request",
            _request_lead(engine_runs),
            f"{chart_grid(scatters)}{_request_table(comparison)}",
        ),
        Section("Over time", _time_lead(engine_runs), chart_grid(over_time)),
        _configuration([sim_run, engine_runs[0]]),
    ]
    page = render_page(
        f"kvtwin: {verdict.subject}",
        verdict,
        notices,
        words.timing_sentence(comparison),
        words.comparison_warnings(sim_run, engine_runs, comparison),
        sections,
        [*cdfs, *scatters, *over_time],
        _footer([sim_run, *engine_runs]),
    )
    write_page(path, page)


def write_run_report(path: Path, run: Run, notices: Sequence[str] = ()) -> None:
    """Write one run as one offline HTML file; raises InputError when plotly is not installed."""
    is_engine = run.summary.get("kind") == "engine"
    drawn = on_one_clock(run)
    side = Side("measured", MEASURED, [drawn]) if is_engine else Side("simulated", SIMULATED, [drawn])
    cdfs = [latency_cdf(name, [side]) for name in LATENCIES]
    over_time = _over_time([side])
    verdict = words.run_verdict(run)
    metrics = run.summary["metrics"]
    sections = [
        Section("Key figures", "", _run_tiles(metrics)),
        Section("Latency", "", _latency_table(metrics)),
        Section("Latency distributions", "Share of requests no slower than the time on the x axis.", chart_grid(cdfs)),
        *_fleet(run),
        Section("Over time", _FLEET_OVER_TIME if "fleet" in run.summary else "", chart_grid(over_time)),
        _configuration([run]),
    ]
    page = render_page(
        f"kvtwin: {verdict.subject}",
        verdict,
        notices,
        words.run_sentence(run),
        words.run_warnings(run),
        sections,
        [*cdfs, *over_time],
        _footer([run]),
    )
    write_page(path, page)


def write_page(path: Path, page: str) -> None:
    """Write a whole page, its folder made if need be; raises InputError where it cannot be written."""
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise InputError(f"cannot write report {path}: {error.strerror or error}") from error


def _over_time(sides: Sequence[Side]) -> list[Chart]:
    return [chart for chart in (kv_use(sides), waste(sides), load(sides)) if chart is not None]


def _run_tiles(metrics: Mapping[str, Any]) -> str:
    names = (*_TILES, *(name for name in _SLO_TILES if metrics.get(name) is not None))
    return tiles([Tile(metric_label(name), _value(metrics, name)) for name in names])


def _comparison_tiles(comparison: Mapping[str, Any]) -> str:
    rows = comparison["metrics"]
    return tiles(
        [
            Tile(
                metric_label(name),
                metric_text(name, rows[name]["simulated"]),
                f"{metric_text(name, rows[name]['measured'])} · {error_text(rows[name]['error_ratio'])}",
            )
            for name in _TILES
        ]
    )


def _error_lead(engine_runs: Sequence[Run]) -> str:
    if len(engine_runs) == 1:
        return "One engine run: its run-to-run spread is not known. Error = (simulated − measured) / measured."
    return (
        f"Measured: median of {len(engine_runs)} engine runs; spread: (max − min) / median of those runs. "
        "Error = (simulated − measured) / measured; green where it is within the spread."
    )


def _fit_lead(comparison: Mapping[str, Any]) -> str:
    """What the simulated times rest on, where the simulation was priced by a fit of the same session."""
    fit = comparison.get("calibration")
    if fit is None:
        return ""
    return (
        f"The cost model was fitted on another trace and pool ({fit['trace']}, {fit['num_blocks']} blocks, "
        f"{fit['num_steps']:,} steps; on held-out blocks of time MAPE {ratio_text(fit['held_out_mape_ratio'])}, "
        f"bias of the sum {error_text(fit['held_out_bias_ratio'])})."
    )


def _error_table(comparison: Mapping[str, Any]) -> str:
    names = [name for name in COMPARED if name in comparison["metrics"]]
    rows = [comparison["metrics"][name] for name in names]
    cells = [
        [
            metric_label(name),
            metric_text(name, row["simulated"]),
            metric_text(name, row["measured"]),
            error_text(row["error_ratio"]),
            spread_text(row["engine_spread_ratio"]),
        ]
        for name, row in zip(names, rows, strict=True)
    ]
    within = [is_within_spread(row["error_ratio"], row["engine_spread_ratio"]) for row in rows]
    marked = [index for index, is_within in enumerate(within) if is_within]
    return _panel(table(("metric", "simulated", "measured", "error", "engine's spread"), cells, marked))


def _request_table(comparison: Mapping[str, Any]) -> str:
    header = ("per request", "MAPE", "bias", "error of p50", "KS distance", "requests")
    rows = [
        [
            metric_label(name),
            ratio_text(row["mape_ratio"]),
            error_text(row["bias_ratio"]),
            error_text(row["p50_error_ratio"]),
            NOTHING if row["ks_distance"] is None else f"{row['ks_distance']:.3f}",
            f"{row['n']:,}",
        ]
        for name, row in comparison["per_request"].items()
    ]
    return _panel(table(header, rows))


def _latency_table(metrics: Mapping[str, Any]) -> str:
    names = (*LATENCIES, "itl_s", "queue_s")
    rows = [
        [
            metric_label(name),
            *(metric_text(name, metrics[name][part]) for part in _PERCENTILES),
            f"{metrics[name]['n']:,}",
        ]
        for name in names
    ]
    return _panel(table(("latency", *_PERCENTILES, "n"), rows))


def _fleet(run: Run) -> list[Section]:
    """How the work was spread, of a run of several replicas."""
    if "fleet" not in run.summary:
        return []
    fleet = run.summary["fleet"]
    spread = table((fleet_figures.heading(fleet), *fleet_figures.COLUMNS), fleet_figures.spread_rows(fleet))
    each = table(("replica", *fleet_figures.FIGURES.values()), fleet_figures.replica_rows(fleet)[:_MOST_REPLICAS])
    lead = f"Routed by {fleet['routing'].rpartition('.')[2]}. max/mean is 1 where all have the same."
    return [Section("Replicas", lead, _panel(f"{spread}{each}"))]


def _request_lead(engine_runs: Sequence[Run]) -> str:
    lead = "Above the line the simulator is too slow, below it too fast."
    if len(engine_runs) == 1:
        return lead
    return f"{lead} Measured: each request's median over {len(engine_runs)} engine runs."


def _time_lead(engine_runs: Sequence[Run]) -> str:
    return "" if len(engine_runs) == 1 else f"Measured: the first of {len(engine_runs)} engine runs."


def _panel(body: str) -> str:
    return f'<div class="panel">{body}</div>'


def _value(metrics: Mapping[str, Any], name: str) -> str:
    key, _, part = name.partition(".")
    return metric_text(name, metrics[key][part] if part else metrics[key])


def _configuration(runs: Sequence[Run]) -> Section:
    names = {"sim": "Simulator", "engine": "Engine"}
    blocks = [
        code(json.dumps(run.summary.get("config", {}), indent=2), names.get(str(run.summary.get("kind")), "Run"))
        for run in runs
    ]
    return Section("Configuration", "Resolved, as it ran.", "".join(blocks))


def _engine_text(engine: Mapping[str, Any]) -> str:
    checked = sum((engine["shadow_checked"] or {}).values())
    shadow = f", {checked:,} shadow tags checked" if checked else ""
    place = f"{engine['dtype']} on {engine['device']}, {counted(engine['threads'], 'thread')}"
    return f"engine: {engine['weights']}, {place}, {engine['clock']} clock{shadow}"


def _steps_text(cost: Mapping[str, Any]) -> str:
    num_refused = cost.get("num_refused_spans", 0)  # runs of earlier versions do not tell
    told = f"{counted(cost['num_steps'], 'step')} in {counted(cost['num_plans'], 'plan')}"
    return f"{told}, {num_refused:,} of them single steps that no span could hold" if num_refused else told


def _footer(runs: Sequence[Run]) -> str:
    first = runs[0].summary
    versions = ", ".join(f"{name} {version}" for name, version in first.get("versions", {}).items())
    parts = [
        *(_engine_text(run.summary["engine"]) for run in runs[-1:] if "engine" in run.summary),
        *(_steps_text(run.summary["cost"]) for run in runs[:1] if run.summary["kind"] == "sim"),
        f"runs {', '.join(run.path.name for run in runs if run.path)}",
        f"trace sha256 {first['trace'].get('sha256', NOTHING)}",
        f"seed {first.get('seed', NOTHING)}",
        versions,
    ]
    return " · ".join(part for part in parts if part)
