"""Rows that follow from those of the step before are those that would be read anew, and so is what is made of them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from engine_world import TINY, EngineSetup, run_trace
from world import Settings, trace_of

from engine.draws import Draws
from engine.executor import TorchExecutor
from engine.model import Decoder
from engine.packed_rows import PackedRows
from engine.step_inputs import StepPacker
from engine.step_planner import StepPlanner
from engine.weights import random_weights


def assert_equal(found, expected):
    """Objects of one dataclass, field by field."""
    for field in fields(expected):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name


def test_rows_that_follow_are_those_read_anew(monkeypatch):
    """Requests that start late, end early, are preempted and recomputed: most steps follow, the others are read."""
    followed = []

    def checked(self, plan, next_rows=StepPlanner._next):
        rows = next_rows(self, plan)
        followed.append(rows is not None)
        if rows is not None:
            assert_equal(rows, self._anew(plan))
        return rows

    def packed(self, rows, packed_rows=StepPacker._packed):
        found = packed_rows(self, rows)
        wanted = np.flatnonzero(rows.wants_logits)
        assert_equal(found, PackedRows.of(rows.num_new, rows.start, wanted, self._block_size))
        return found

    def drawn(self, rows, draws_of=TorchExecutor._draws):
        found = draws_of(self, rows)
        assert_equal(found, Draws.of(rows, self.tokens, self._sampling))
        return found

    monkeypatch.setattr(StepPlanner, "_next", checked)
    monkeypatch.setattr(StepPacker, "_packed", packed)
    monkeypatch.setattr(TorchExecutor, "_draws", drawn)
    trace = trace_of([0.0, 0.0, 0.0, 1e-6], [9, 14, 5, 30], [25, 9, 30, 20])
    weights = random_weights(TINY, seed=3)
    run = run_trace(
        trace, EngineSetup(Settings(num_blocks=20, block_size=4, budget=64), decoder=lambda: Decoder(TINY, weights))
    )

    assert [len(run.outputs()[request][0]) for request in range(4)] == [25, 9, 30, 20]
    assert sum(followed) > len(followed) / 2
    assert not all(followed)
