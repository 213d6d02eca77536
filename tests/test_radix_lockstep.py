"""The engine on the radix tree: block tables change under it, decisions equal the simulator's, every tag is clean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_world import EngineSetup, assert_lockstep, run_trace
from test_lockstep import SAMPLES, text_trace
from test_shadow import StaleTable, crowded_trace
from world import Settings

from core.decision_log import Event
from engine.shadow import ShadowError
from kvtwin.parity.radix import RANKINGS
from policies.eviction.radix import RadixLRU
from traces.replay import Arrivals

TIGHT = Settings(24, block_size=4, full_prompt=False, prefix_index="radix", eviction=RadixLRU)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples(name):
    trace = SAMPLES[name].trace()
    hashed = SAMPLES[name].setup(trace, "recompute")
    chosen = replace(hashed.settings, prefix_index="radix", eviction=RadixLRU, host_blocks=0)
    setup = replace(hashed, settings=chosen)
    engine = run_trace(trace, setup)
    assert engine.num_of(Event.EVICT) > 0
    assert engine.num_of(Event.PREEMPT) > 0
    assert_lockstep(trace, setup, engine)


@pytest.mark.parametrize("policy", RANKINGS)
def test_every_strategy(policy):
    """Prompts that begin alike, samples among them; some are computed twice, and then kept once."""
    setup = EngineSetup(replace(TIGHT, num_blocks=30, eviction=RANKINGS[policy]))
    trace = crowded_trace()
    engine = run_trace(trace, setup)
    assert min(engine.num_of(event) for event in (Event.EVICT, Event.TOUCH, Event.COPY, Event.PREEMPT)) > 0
    assert engine.shadow.num_checked["hit"] > 0
    assert_lockstep(trace, setup, engine)


def test_cancellations():
    trace = text_trace(cancel_after_ps=[-1 if row % 2 else (3 + 2 * row) * 10**9 for row in range(14)])
    setup = EngineSetup(TIGHT)
    engine = run_trace(trace, setup)
    assert engine.num_of(Event.CANCEL) >= 5
    assert_lockstep(trace, setup, engine)


def test_answers_do_not_depend_on_the_form_of_the_index():
    """Greedy decoding in ample memory: who shares whose blocks changes no token."""
    forms = (Settings(200, block_size=4), replace(TIGHT, num_blocks=200))
    hashed, tree = (run_trace(text_trace(), EngineSetup(form)) for form in forms)
    assert tree.outputs() == hashed.outputs()
    assert tree.num_of(Event.TOUCH) > 0


def test_an_engine_that_keeps_the_ids_of_freed_duplicates_is_caught():
    """The negative control. In ample memory a table changes only where a publication found the same content there."""
    ample = EngineSetup(replace(TIGHT, num_blocks=200), arrivals=Arrivals.ALL_AT_ONCE, executor=StaleTable)
    with pytest.raises(ShadowError):
        run_trace(text_trace(), ample)
    run_trace(text_trace(), replace(ample, settings=Settings(200, block_size=4)))
