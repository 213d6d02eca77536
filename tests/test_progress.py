"""Progress where there is no terminal: few lines, the later the fewer, and none of what is soon over."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from kvtwin import progress
from kvtwin.progress import progress_bar


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that have passed, to be set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def run_for(clock: list[float], num_s: int) -> None:
    """A run of `num_s` requests, one a second."""
    with progress_bar("engine", num_s) as shown:
        for num_done in range(num_s):
            clock[0] += 1
            shown.show(num_done + 1)


def test_a_log_of_a_long_run_has_few_lines_and_never_looks_dead(clock, capsys):
    run_for(clock, 14)
    assert capsys.readouterr().err == ""
    run_for(clock, 3600)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["engine: 15 of 3,600 requests done after 15 s", "engine: 30 of 3,600 requests done after 30 s"]
    at_s = [int(line.split()[-2]) for line in lines]
    assert at_s == [15, 30, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360]


def test_what_is_collected_to_be_shown_later_is_spared_the_lines(clock):
    with redirect_stderr(io.StringIO()) as collected:  # as of a sweep's jobs
        run_for(clock, 100)
    assert collected.getvalue() == ""
