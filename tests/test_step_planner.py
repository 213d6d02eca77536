"""Rows that follow from those of the step before are those that would be read anew."""

from __future__ import annotations

import numpy as np
from engine_world import TINY, EngineSetup, run_trace
from world import Settings, trace_of

from engine.model import Decoder
from engine.step_planner import StepPlanner
from engine.weights import random_weights


def test_rows_that_follow_are_those_read_anew(monkeypatch):
    """Requests that start late, end early, are preempted and recomputed: most steps follow, the others are read."""
    followed = []

    def checked(self, plan, next_rows=StepPlanner._next):
        rows = next_rows(self, plan)
        followed.append(rows is not None)
        if rows is not None:
            anew = self._anew(plan)
            assert rows.sequences == anew.sequences
            assert rows.tokens == anew.tokens
            for column in ("start", "num_new", "wants_logits", "table_rows"):
                assert np.array_equal(getattr(rows, column), getattr(anew, column)), column
        return rows

    monkeypatch.setattr(StepPlanner, "_next", checked)
    trace = trace_of([0.0, 0.0, 0.0, 1e-6], [9, 14, 5, 30], [25, 9, 30, 20])
    weights = random_weights(TINY, seed=3)
    run = run_trace(
        trace, EngineSetup(Settings(num_blocks=20, block_size=4, budget=64), decoder=lambda: Decoder(TINY, weights))
    )

    assert [len(run.outputs()[request][0]) for request in range(4)] == [25, 9, 30, 20]
    assert sum(followed) > len(followed) / 2
    assert not all(followed)
