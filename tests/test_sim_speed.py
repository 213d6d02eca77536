"""The benchmark beside other simulators: both replay the same requests, and unequal work is told."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from speed.cases import REPLAYS
from speed.chart import svg
from speed.contender import COMPILED, DYNAMO, OURS
from speed.screen import markdown
from speed.workloads import AzureShaped

from kvtwin.composition import compose_config
from kvtwin.settings import check_settings
from traces.reading import read_trace

RESULTS = {
    OURS: {
        "cpu_s": 0.25,
        "process_cpu_s": 1.0,
        "peak_rss_bytes": 200_000_000,
        "num_requests": 10_000,
        "num_steps": 150_000,
        "num_preemptions": 0,
        "output_tokens": 2_100_248,
        "hit_ratio": None,
        "digest": "1f9348f5",
    },
    DYNAMO: {
        "cpu_s": 1.0,
        "process_cpu_s": 1.1,
        "peak_rss_bytes": 100_000_000,
        "num_requests": 10_000,
        "num_steps": 150_015,
        "num_preemptions": 0,
        "output_tokens": 2_100_248,
        "hit_ratio": 0.0,
    },
}


def test_both_replay_the_same_requests(tmp_path):
    files = AzureShaped(300).files(tmp_path, tmp_path)
    ours, theirs = read_trace(files.ours), read_trace(files.mooncake)
    for column in ("arrival_ps", "num_prompt_tokens", "num_output_tokens"):
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
    assert not np.any(ours.arrival_ps % 10**9), "whole milliseconds, which Mooncake's files have"
    assert len(np.unique(theirs.hash_ids.values)) == len(theirs.hash_ids.values), "nothing is shared"


def test_everybody_arrives_at_once_where_the_case_says_so(tmp_path):
    files = AzureShaped(50, all_at_once=True).files(tmp_path, tmp_path)
    assert read_trace(files.mooncake).arrival_ps.tolist() == [0] * 50


@pytest.mark.parametrize("name", ["pressure", "mooncake_16_gdsf", "replicas_64_least"])
def test_the_settings_of_the_cases_are_valid(name):
    (case,) = (case for case in REPLAYS if case.name == name)
    config = compose_config("sim", case.overrides(Path("trace.csv")))
    check_settings(config)
    assert config.cost.constant_s > 0.005, "fitted to Dynamo's steps"
    assert config.pool.num_blocks == case.num_blocks


@pytest.mark.parametrize(
    ("change", "complaints"),
    [
        ({}, []),
        ({"num_steps": 136_000}, []),
        ({"num_steps": 135_000}, ["135,000 steps, Dynamo 150,015"]),
        ({"output_tokens": 2_100_247}, ["2,100,247 output tokens, Dynamo 2,100,248"]),
    ],
)
def test_unequal_work_is_told(change, complaints):
    assert REPLAYS[0].complaints(RESULTS | {OURS: RESULTS[OURS] | change}) == complaints


def test_machine_code_that_decides_otherwise_is_told():
    assert REPLAYS[0].complaints(RESULTS | {COMPILED: RESULTS[OURS]}) == []
    other = RESULTS[OURS] | {"digest": "87a695f6"}
    assert REPLAYS[0].complaints(RESULTS | {COMPILED: other}) == ["the machine code decides otherwise than the source"]


def test_the_table_and_the_chart_show_the_ratio():
    compiled = RESULTS[OURS] | {"cpu_s": 0.125}
    results = {OURS: RESULTS[OURS], COMPILED: compiled, DYNAMO: RESULTS[DYNAMO]}
    header, _, ours, machine_code, theirs = markdown({"light": results}).splitlines()
    assert ours == "| light | kvtwin | 0.250 | 0.25x | 1.00 | 200 | 40,000 | 150,000 | 0 | 2,100,248 |  |"
    assert machine_code.startswith("|  | kvtwin compiled | 0.125 | 0.12x |")
    assert theirs.startswith("|  | dynamo | 1.000 |  | 1.10 | 100 | 10,000 |")
    assert header.count("|") == ours.count("|")
    bars = [bar for bar in ElementTree.fromstring(svg({"light": results})) if "rx" in bar.attrib]
    assert [float(bar.attrib["width"]) for bar in bars] == [85.0, 42.5, 340.0]
