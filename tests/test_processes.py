"""Processes that take jobs: what goes wrong with one answer is told, and nobody waits for ever."""

from __future__ import annotations

import multiprocessing

import pytest

from engine.interrupt import DeferredInterrupt
from kvtwin.processes import JobProcesses


class Unreadable:
    """Can be sent, and not received."""

    def __reduce__(self):
        return refuse, ()


def refuse() -> None:
    raise ValueError("nobody can read this")


def answer(job: int) -> object:
    return Unreadable() if job == 1 else job


def test_an_answer_that_cannot_be_read_is_an_error_and_no_process_is_left():
    processes = JobProcesses(answer, [0, 1, 2, 3], 2, DeferredInterrupt())
    with pytest.raises(ValueError, match="nobody can read this"), processes:
        list(processes.results(lambda num_ended: None))
    assert multiprocessing.active_children() == []
