"""The PagedAttention experiments, with fewer requests, and what prints a sweep beside published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Kvtwin, in_folder, summary_of

from core.errors import InputError
from kvtwin.paper_figures import crossing, paper_figures
from traces.generate import generate
from traces.recipe import load_recipe


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_the_lengths_are_those_of_the_paper() -> None:
    trace = generate(load_recipe("sharegpt_like")[0])
    assert trace.num_requests == 1500
    assert float(trace.num_prompt_tokens.mean()) == pytest.approx(161.31, rel=0.005)
    assert float(trace.num_output_tokens.mean()) == pytest.approx(337.99, rel=0.005)
    final = trace.num_prompt_tokens + trace.num_output_tokens
    assert final.max() <= 2048
    in_residence = np.average(final, weights=trace.num_output_tokens)
    assert in_residence == pytest.approx(758, rel=0.03), "the paper's figure 2: longer ones stay longer"


def test_figure_2_holds(kvtwin: Kvtwin) -> None:
    """A quarter of the requests: the same bands. Seven slots of 2,048 in 15,728 leave 8.85 %."""
    finished = kvtwin("sim", "+experiment=pagedattention_fig2", "trace.num_requests=400")
    assert finished.status == 0, finished.errors
    jobs = [summary_of(folder) for folder in Path("runs/pagedattention_fig2").iterdir()]
    metrics = {summary["labels"]["allocation"]: summary["metrics"] for summary in jobs}
    shares = {name: figures["saturated_share_ratio"] for name, figures in metrics.items()}
    bands = {"contiguous_max": (20.4, 3), "orca_pow2": (26.8, 5), "orca_oracle": (38.2, 5), "paged": (96.3, 2)}
    for name, (paper, reach) in bands.items():
        assert shares[name]["token"] * 100 == pytest.approx(paper, abs=reach), name
        assert sum(shares[name].values()) == pytest.approx(1)
    assert [shares[name]["token"] for name in bands] == sorted(shares[name]["token"] for name in bands)
    assert shares["contiguous_max"]["external"] == pytest.approx(1392 / 15_728)
    assert metrics["contiguous_max"]["saturated_num_running"] == pytest.approx(7)
    assert shares["orca_oracle"]["internal"] < 0.01, "only what is left over of the last block"
    lines = [line for line in finished.out.splitlines() if "±" in line]
    assert len(lines) == 6
    assert all(line.rstrip().endswith(" holds") for line in lines), finished.out


def test_throughput_at_one_latency_is_printed_beside_the_paper(kvtwin: Kvtwin) -> None:
    few = ("trace.num_requests=60", "trace.rate_scale=1,20", "allocation=orca_oracle,paged")
    finished = kvtwin("sim", "+experiment=paged_throughput", *few)
    assert finished.status == 0, finished.errors
    lines = finished.out[finished.out.index("Beside PagedAttention") :].splitlines()
    assert [line.split()[0] for line in lines if " / " in line] == ["rate"] * 3


# ---- the block itself -----------------------------------------------------------------------------------------------


def summaries(**figures: Any) -> list[dict[str, Any]]:
    return [
        {"labels": {"allocation": name, "rate": rate}, "metrics": {"kv_ratio": {"token": value}}}
        for name, points in figures.items()
        for rate, value in points
    ]


def rows(checks: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    figures = paper_figures({"paper": {"source": "a paper", "along": "allocation", "checks": checks}})
    assert figures is not None
    return [row[1:] for row in figures.rows(jobs)]


def test_a_figure_holds_within_its_reach() -> None:
    jobs = summaries(paged=[(1, 0.9)], max=[(1, 0.3)])
    figure = {"metric": "kv_ratio.token", "row": "paged"}
    assert rows(
        [
            {**figure, "paper": 0.95, "within": 0.06},
            {**figure, "paper": 0.95, "within": 0.04},
            {**figure, "paper": 0.95},
            {**figure, "over": "max", "paper": 4, "within_ratio": 0.25},
            {**figure, "over": "max", "paper": [3.5, 8]},
            {**figure, "row": "absent", "paper": 0.95, "within": 0.1},
        ],
        jobs,
    ) == [
        ("95.0 % ± 6.0 %", "90.0 %", "holds"),
        ("95.0 % ± 4.0 %", "90.0 %", "does not hold"),
        ("95.0 %", "90.0 %", ""),
        ("4.00x ± 1.00x", "3.00x", "holds"),
        ("3.50x to 8.00x", "3.00x", "does not hold"),
        ("95.0 % ± 10.0 %", "–", "not measured"),
    ]


def test_rates_are_compared_where_their_curves_cross_a_level() -> None:
    jobs = summaries(paged=[(4, 0.9), (1, 0.1), (3, 0.1)], max=[(1, 0.1), (2, 0.9)])
    check = {"metric": "kv_ratio.token", "row": "paged", "over": "max", "by": "rate", "level": 0.3, "paper": [2, 4]}
    assert rows([check], jobs) == [("2.00x to 4.00x", "2.33x", "holds")], "3.5 over 1.5: half way in the logarithm"
    assert crossing([(1, 0.1), (2, 0.2)], 0.3) is None
    assert crossing([(1, 0.4), (2, 0.9)], 0.3) is None


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"source": "a"}, "paper: expected the keys source, along and checks"),
        ([1], "paper: expected the keys"),
        ({"checks": [{"metric": "x"}]}, "expected metric, row and paper"),
        ({"checks": [{"metric": "x", "row": "y", "paper": 1, "withn": 2}]}, "withn"),
        ({"checks": [{"metric": "x", "row": "y", "paper": "much"}]}, "expected a number, or two for a range"),
        ({"checks": [{"metric": "x", "row": "y", "paper": 1, "level": 2}]}, "expected both level and by"),
    ],
)
def test_a_wrong_block_is_refused(block: Any, message: str) -> None:
    if isinstance(block, dict) and "checks" in block:
        block = {"source": "a", "along": "b", **block}
    with pytest.raises(InputError, match=message):
        paper_figures({"paper": block})


def test_a_figure_that_there_is_not_is_named() -> None:
    with pytest.raises(InputError, match=r"metric=kv_ratio\.tokens: no such figure"):
        rows([{"metric": "kv_ratio.tokens", "row": "paged", "paper": 1}], summaries(paged=[(1, 0.9)]))


def test_a_wrong_block_is_told_before_anything_runs(kvtwin: Kvtwin) -> None:
    finished = kvtwin("sim", "+paper.source=x", "trace.limit=3")
    assert finished.status == 2
    assert finished.errors == ["kvtwin: paper: expected the keys source, along and checks"]
    assert not Path("runs").exists()
