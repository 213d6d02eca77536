"""Reports: one offline file that says what ran, draws it, and holds the numbers behind each drawing."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from synthetic_runs import request_arrays, step_arrays, synthetic_run

from core.errors import InputError
from kvtwin.comparison import Lockstep, compare_runs, is_saturated
from kvtwin.report import write_report, write_run_report
from kvtwin.report.series import MAX_POINTS, cdf_points, extreme_rows, step_times_s
from kvtwin.store import Run, write_run

plotly = pytest.importorskip("plotly", reason="reports need the extra kvtwin[report]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Run, list[Run]]:
    folder = tmp_path_factory.mktemp("runs")
    sim = synthetic_run(folder / "sim", "sim", seed=1)
    engines = [synthetic_run(folder / f"engine{seed}", "engine", seed=seed, slowness=1.04) for seed in (2, 3, 4)]
    return sim, engines


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> str:
    """The report without Plotly's own source: what kvtwin wrote."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    comparison = compare_runs(*runs, Lockstep(num_decisions=4321))
    write_report(path, *runs, comparison, notices=["random weights: no network"])
    return without_plotly(path.read_text())


def without_plotly(page: str) -> str:
    source = plotly.offline.get_plotlyjs()
    assert page.count(source) == 1, "Plotly is inlined exactly once"
    return page.replace(source, "")


def test_the_headline_says_what_ran_and_whether_decisions_are_identical(page):
    (headline,) = re.findall(r"<h1>(.*?)</h1>", page)
    text = re.sub(r"<[^>]+>", "", headline)
    assert "chat_sample, 80 requests, lru, smollm2_135m" in text
    assert "lockstep identical: 4,321 decisions" in text
    assert "random weights: no network" in text


def test_the_file_needs_no_network_and_offers_no_upload(page):
    assert not re.search(r"https?://", page)
    assert not re.search(r"<(link|img|iframe|script)[^>]+(src|href)=|@import|url\(", page)
    assert "default-src 'none'" in page, "the browser refuses what a script might still ask for"
    assert page.count("<script") == 1
    config = json.loads(re.search(r"const config = (\{.*?\});", page).group(1))
    assert "sendChartToCloud" in config["modeBarButtonsToRemove"]
    assert config["plotlyServerURL"] == ""
    assert config["displaylogo"] is False


def test_every_chart_has_a_place_a_legend_a_table_and_units_on_its_axes(page):
    figures = json.loads(re.search(r"const figures = (\{.*?\});\nconst config", page).group(1))
    latencies = [f"{kind}-{name}" for kind in ("cdf", "scatter") for name in ("ttft_s", "tpot_s", "e2e_s")]
    assert list(figures) == [*latencies, "kv-use", "load"]
    for key, figure in figures.items():
        assert f'id="{key}"' in page
        shown = {
            int(n)
            for traces in re.findall(rf'data-chart="{key}" data-traces="([\d,]+)"', page)
            for n in traces.split(",")
        }
        assert shown == set(range(len(figure["data"]))), "each trace can be shown and hidden"
        assert all("title" in axis for name, axis in figure["layout"].items() if re.match("[xy]axis", name))
        assert figure["layout"]["showlegend"] is False
    assert page.count("<details><summary>Data</summary>") == len(figures)
    assert [trace["name"] for trace in figures["kv-use"]["data"]] == [
        f"{side}, {state}" for side in ("simulated", "measured") for state in ("referenced", "cached", "free")
    ]
    assert len(figures["cdf-ttft_s"]["data"]) == 4, "one simulated line, three repeats"


def test_the_error_table_has_the_engines_spread(page, runs):
    comparison = compare_runs(*runs)
    spread = comparison["metrics"]["ttft_s.p90"]["engine_spread_ratio"]
    assert "engine&#x27;s spread" in page
    assert f"<td>{spread * 100:.1f} %</td>" in page


def test_tables_too_wide_for_a_telephone_name_the_column_in_each_cell(runs, tmp_path):
    write_run_report(tmp_path / "run.html", runs[0])
    page = without_plotly((tmp_path / "run.html").read_text())
    (latency,) = re.findall(r"<table class=wide>.*?</table>", page)
    assert re.findall(r'data-column="(\w+)"', latency)[:8] == [
        "latency",
        "mean",
        "p50",
        "p90",
        "p95",
        "p99",
        "max",
        "n",
    ]
    assert len(re.findall("<td data-column=", page)) == 5 * 7


def test_tables_too_wide_for_the_narrowest_know_how_many_cells_go_below_a_name(page):
    """Errors have four beside a metric's name, those by request five; the data of charts fit, or are wide."""
    tables = re.findall(r'<table class=medium style="--num-cells: (\d)">.*?</table>', page)
    assert tables[0] == "4"
    assert "5" in tables


def test_a_difference_in_lockstep_heads_the_report(runs, tmp_path):
    difference = "step 3: simulator evicts block 4 </script>, engine evicts block 9\nrunning: 1 2"
    write_report(tmp_path / "r.html", *runs, compare_runs(*runs, Lockstep(10, difference)))
    page = without_plotly((tmp_path / "r.html").read_text())
    (headline,) = re.findall(r"<h1>(.*?)</h1>", page)
    assert "lockstep differs: step 3: simulator evicts block 4" in headline
    assert "running: 1 2" in page
    assert page.count("</script>") == 1, "text of a run never ends the script"


def test_a_report_of_one_run_has_the_same_charts_with_one_side(runs, tmp_path):
    write_run_report(tmp_path / "run.html", runs[0])
    page = without_plotly((tmp_path / "run.html").read_text())
    figures = json.loads(re.search(r"const figures = (\{.*?\});\nconst config", page).group(1))
    assert list(figures) == ["cdf-ttft_s", "cdf-tpot_s", "cdf-e2e_s", "kv-use", "load"]
    assert "80 of 80 requests finished" in page
    assert "measured" not in "".join(figures)
    assert "900 steps in 300 plans · runs" in page


def test_a_report_counts_the_steps_that_no_span_could_hold(runs, tmp_path):
    cost = {**runs[0].summary["cost"], "num_refused_spans": 250}
    write_run_report(tmp_path / "run.html", replace(runs[0], summary={**runs[0].summary, "cost": cost}))
    told = "900 steps in 300 plans, 250 of them single steps that no span could hold"
    assert told in without_plotly((tmp_path / "run.html").read_text())


def test_a_report_says_how_many_met_a_service_level_where_one_was_set(runs, tmp_path):
    def tiles_of(**figures):
        run = replace(runs[0], summary={**runs[0].summary, "metrics": {**runs[0].summary["metrics"], **figures}})
        write_run_report(tmp_path / "run.html", run)
        return without_plotly((tmp_path / "run.html").read_text())

    assert "SLO attainment" not in tiles_of(goodput_rps=None, slo_attainment_ratio=None)
    page = tiles_of(goodput_rps=1.5, slo_attainment_ratio=0.625)
    assert "SLO attainment" in page
    assert "62.5 %" in page


def test_a_run_that_was_interrupted_counts_time_from_the_first_who_came(runs, tmp_path):
    requests = {**runs[0].requests, "arrival_s": runs[0].requests["arrival_s"].copy()}
    requests["arrival_s"][50:] = np.nan
    run = replace(runs[0], requests=requests)
    assert step_times_s(run)[0] == step_times_s(runs[0])[0]
    assert is_saturated(run.request_columns()) is False
    write_run_report(tmp_path / "run.html", run)


def test_a_run_in_which_nothing_ran_still_has_a_report(runs, tmp_path):
    sim = runs[0]
    empty = {"gap_s": np.array([]), "multiplicity": np.array([], dtype=np.int64)}
    metrics = json.loads(json.dumps(sim.summary["metrics"]))
    requests = request_arrays([0.0, 1.0], outcome=np.array([1, 1], dtype=np.int8))
    run = write_run(
        tmp_path / "run",
        {**sim.summary, "metrics": metrics, "interrupted": True},
        requests=requests,
        steps=step_arrays([], []),
        gaps=empty,
    )
    write_run_report(tmp_path / "run.html", run)
    assert "interrupted" in (tmp_path / "run.html").read_text()


def test_long_series_are_cut_down_without_losing_a_peak_and_say_so(runs, tmp_path):
    num_steps = 50_000
    column = np.zeros(num_steps, dtype=np.int64)
    column[31_337] = 399
    rows = extreme_rows(column)
    assert rows.size <= MAX_POINTS
    assert 31_337 in rows
    assert (rows[0], rows[-1] > num_steps - 100) == (0, True)
    x, y = cdf_points(np.arange(1e5))
    assert x.size <= MAX_POINTS
    assert (x[0], x[-1], y[-1]) == (0.0, 99_999.0, 1.0)

    start_s = np.arange(num_steps) * 0.01
    steps = step_arrays(start_s, np.full(num_steps, 0.01), num_referenced_blocks=column)
    run = write_run(tmp_path / "run", runs[0].summary, requests=runs[0].requests, steps=steps, gaps=runs[0].gaps)
    write_run_report(tmp_path / "run.html", run)
    assert "of 50,000 steps" in (tmp_path / "run.html").read_text()


def test_waste_is_drawn_where_it_was_counted_and_a_caption_says_once_what_is_left_out(runs, tmp_path):
    num_steps = 5_000
    counts = {
        "reserved": np.arange(num_steps),
        "internal": np.arange(num_steps) % 7,
        "external": np.arange(num_steps) % 2,
    }
    steps = step_arrays(np.arange(num_steps) * 0.01, np.full(num_steps, 0.01), num_running=np.arange(num_steps) % 5)
    steps |= {f"num_{kind}_tokens": column for kind, column in counts.items()}
    run = write_run(tmp_path / "run", runs[0].summary, requests=runs[0].requests, steps=steps, gaps=runs[0].gaps)
    write_run_report(tmp_path / "run.html", run)
    page = without_plotly((tmp_path / "run.html").read_text())

    figures = json.loads(re.search(r"const figures = (\{.*?\});\nconst config", page).group(1))
    assert list(figures)[-3:] == ["kv-use", "waste", "load"]
    stack = figures["waste"]["data"]
    assert [area["name"] for area in stack] == [f"simulated, {kind}" for kind in counts]
    assert {area["stackgroup"] for area in stack} == {"0"}, "the three add up to all that is wasted"
    peak = max(map(sum, zip(*(area["y"] for area in stack), strict=True)))
    assert peak == 4_997 + 6 + 1, "the step in which most is wasted is drawn"
    notes = re.findall(r'<p class="note">([^<]*)</p>', page)
    assert len(notes) == 3, "one caption a chart"
    assert notes[-1].startswith("Draws at most "), "waiting, running and preemptions differ in what is left out"
    assert all(note.count("5,000") == 1 for note in notes)


def test_without_plotly_the_message_says_what_to_install(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(InputError, match=r"pip install 'kvtwin\[report\]'"):
        write_run_report(tmp_path / "run.html", runs[0])
    assert not list(tmp_path.iterdir())
