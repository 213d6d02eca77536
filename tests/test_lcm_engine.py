"""LCM pages on the engine: every layer reads and writes where its small page has it; decisions are the simulator's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from engine_world import TINY, EngineSetup, assert_lockstep, run_trace
from world import Settings, trace_of

from core.interfaces import Block
from core.kv_group import merged
from engine.executor import TorchExecutor
from engine.model import Decoder
from engine.shadow import ShadowError
from engine.weights import random_weights
from policies.allocation.lcm import LCM
from policies.allocation.paged import Paged

HYBRID = replace(TINY, num_layers=5, layer_windows=(6, 6, None, 6, None))  # groups of 2, 2 and 1 layers


@cache
def hybrid_decoder() -> Decoder:
    return Decoder(HYBRID, random_weights(HYBRID, seed=11))


def hybrid_run(allocation: Any, num_blocks: int, executor: type[TorchExecutor] = TorchExecutor):
    """Requests of all lengths that begin with one of two texts, faster than they go."""
    prompts = [3 + (row * 7) % 23 for row in range(12)]
    trace = trace_of(
        [row * 0.0015 for row in range(12)],
        prompts,
        [2 + (row * 5) % 15 for row in range(12)],
        segments=[[(100 * (row % 2), num_tokens)] for row, num_tokens in enumerate(prompts)],
    )
    groups = HYBRID.kv_groups() if allocation is Paged else merged(HYBRID.kv_groups())
    chosen = Settings(num_blocks, 4, full_prompt=False, allocation=allocation, groups=groups)
    setup = EngineSetup(chosen, decoder=hybrid_decoder, executor=executor)
    return trace, setup, run_trace(trace, setup)


def test_the_engine_reads_every_layer_where_its_small_page_has_it() -> None:
    """Pages of 6 layers: 3 blocks of the 2 full layers or 2 of the 3 windowed ones; hits, evictions, preemption."""
    trace, setup, engine = hybrid_run(LCM, 60)
    assert sum(request.num_preemptions for request in engine.scheduler.recorder.done) > 0
    assert engine.scheduler.tables.pool.num_evictions > 0
    assert engine.shadow.num_checked["hit"] > 0
    assert_lockstep(trace, setup, engine)
    assert engine.outputs() == hybrid_run(Paged, 60)[2].outputs()


class OneLayerOff(TorchExecutor):
    """Takes the windowed layers' pages to begin a layer later."""

    def _block_tables(self, sequence):
        first, *others = super()._block_tables(sequence)
        return [first, *([block and Block(block.block_id + 1) for block in t] for t in others)]


def test_pages_that_overlap_are_found() -> None:
    with pytest.raises(ShadowError, match="expected"):
        hybrid_run(LCM, 60, OneLayerOff)
