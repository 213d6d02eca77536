"""Cost models: what a step costs, and that a span costs, to the picosecond, what its steps cost one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import bundled, hardware, model
from world import Settings, simulate, trace_of

from core.errors import InputError
from core.units import PS_PER_S
from sim.cost_model import CostModel, StepWork
from sim.linear_cost import LinearCost
from sim.recorded_cost import RecordedCost
from sim.roofline_cost import RooflineCost

LLAMA, MIXTRAL, H100 = "llama3_8b", "mixtral_8x7b", "h100_80gb"
PS = 1e-12  # seconds


def roofline(name: str = LLAMA, **knobs: float) -> RooflineCost:
    return RooflineCost(model(name), hardware(H100), 16, **{"overhead_s": 0.0, **knobs})


def decodes(num_seqs: int, context_tokens: int) -> StepWork:
    """One decode step of `num_seqs` sequences, each of which reads `context_tokens`."""
    return StepWork(0, num_decodes=num_seqs, decode_context_tokens=num_seqs * context_tokens)


def prefill(num_tokens: int, num_computed: int = 0) -> StepWork:
    return StepWork(0, chunks=((num_tokens, num_computed),))


# ---- linear --------------------------------------------------------------------------------------------------------


def test_every_term_of_the_linear_model_is_counted_once() -> None:
    """Coefficients are powers of ten, so that each digit of the price is one count."""
    cost = LinearCost(1 * PS, 10 * PS, 1000 * PS, 1e6 * PS, 1e7 * PS, 1e10 * PS, 1e11 * PS)
    work = StepWork(0, ((3, 0), (2, 4)), 4, 321, num_swapped_blocks=6, num_copied_blocks=7)
    assert work.num_prefill_tokens == 5
    assert work.prefill_pairs == (1 + 2 + 3) + (5 + 6), "a token attends to all before it and to itself"
    assert cost.step_ps(work) == 1 + 10 * 5 + 1000 * 17 + 10**6 * 4 + 10**7 * 321 + 10**10 * 6 + 10**11 * 7


@pytest.mark.parametrize(("num_tokens", "extra_ps"), [(8, 0), (9, 2), (16, 16), (18, 20 + 2 * 5)])
def test_knots_bend_the_price_of_new_tokens(num_tokens: int, extra_ps: int) -> None:
    """2 ps for every token beyond the eighth, 5 ps more beyond the sixteenth; prompt tokens and decodes alike."""
    cost = LinearCost(100 * PS, 10 * PS, decode_sequence_s=10 * PS, knots=[(8, 2 * PS), (16, 5 * PS)])
    for num_decodes in (0, 1, num_tokens):
        work = StepWork(0, ((num_tokens - num_decodes, 0),), num_decodes)
        assert cost.step_ps(work) == 100 + 10 * num_tokens + extra_ps


def test_time_always_goes_on() -> None:
    assert LinearCost(0.0).step_ps(decodes(1, 1)) == 1


# ---- recorded ------------------------------------------------------------------------------------------------------


def test_recorded_steps_cost_what_was_measured() -> None:
    cost = RecordedCost([50, 40, 30, 20, 10])
    assert cost.step_ps(StepWork(1)) == 40
    assert list(cost.decode_span_ps(StepWork(1), 3)) == [40, 30, 20]
    assert list(cost.decode_span_ps(StepWork(3), 100)) == [20, 10], "a span ends where the record does"


def test_a_record_that_runs_out_says_so() -> None:
    cost = RecordedCost([50, 40])
    for price in (cost.step_ps, lambda work: cost.decode_span_ps(work, 9)):
        with pytest.raises(InputError, match="step 2 was not recorded: the record holds 2 steps"):
            price(StepWork(2))


def test_a_run_on_recorded_times_ends_with_its_record() -> None:
    trace = trace_of([0], [16], [5])
    durations_ps = [7, 6, 5, 4, 3]
    run = simulate(trace, Settings(num_blocks=10), RecordedCost(durations_ps))
    assert list(run.scheduler.recorder.step_duration_ps) == durations_ps
    assert run.request(0).finish_ps == sum(durations_ps)
    with pytest.raises(InputError, match="step 3 was not recorded"):
        simulate(trace, Settings(num_blocks=10), RecordedCost(durations_ps[:3]))


# ---- roofline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mbu", "alone_s", "batch_s"), [(1.0, 0.004794, 0.01505), (0.8, 0.00599, 0.01881)])
def test_decode_floor_of_llama3_8b_on_h100(mbu: float, alone_s: float, batch_s: float) -> None:
    """Weights once (16.06 GB), and 32 x 8192 tokens of 131,072 bytes, at 3.35 TB/s (check values 45 and 46)."""
    cost = roofline(mbu=mbu)
    assert cost.step_ps(decodes(1, 0)) / PS_PER_S == pytest.approx(alone_s, rel=6e-4)
    assert cost.step_ps(decodes(32, 8192)) / PS_PER_S == pytest.approx(batch_s, rel=6e-4)


def test_prefill_of_8192_tokens_of_llama3_8b_on_h100() -> None:
    """1.2296e14 FLOP in linear layers and 1.7592e13 in attention, at half of 989 TFLOP/s (check values 48 and 49)."""
    assert model(LLAMA).linear_flops(8192) == pytest.approx(1.2296e14, rel=1e-4)
    assert model(LLAMA).causal_attention_flops(8192) == pytest.approx(1.7592e13, rel=1e-4)
    assert roofline(mfu=0.5).step_ps(prefill(8192)) / PS_PER_S == pytest.approx(0.284, abs=0.0006)


def test_a_cached_prefix_saves_its_linear_part_but_not_its_reads() -> None:
    """1000 tokens after 10,000 cached ones: no FLOP in linear layers for those, but every query attends to them."""
    cost = roofline(mfu=1.0, mbu=1.0)
    pairs = 1000 * 10_000 + 1000 * 1001 // 2
    pair_flops = 4 * 32 * 32 * 128
    saved_ps = cost.step_ps(prefill(11_000)) - cost.step_ps(prefill(1000, 10_000))
    linear_ps = model(LLAMA).linear_flops(10_000) / 989.4e12 * PS_PER_S
    attention_ps = (11_000 * 11_001 // 2 - pairs) * pair_flops / 989.4e12 * PS_PER_S
    writes_ps = 10_000 * 131_072 / 3.35e12 * PS_PER_S
    assert saved_ps == pytest.approx(linear_ps + attention_ps + writes_ps, rel=1e-3)


@pytest.mark.parametrize(("num_tokens", "read_bytes"), [(1, 25_759_850_496), (10_000, 93_405_585_408)])
def test_a_mixture_of_experts_reads_the_experts_that_its_tokens_choose(num_tokens: int, read_bytes: int) -> None:
    """Mixtral 8x7B: one token meets 2 of 8 experts (the 12.9 G active parameters), many meet them all (46.7 G)."""
    cost = roofline(MIXTRAL, mfu=1e6, mbu=1.0)  # arithmetic that costs nothing
    kv_ps = 2 * 131_072 * num_tokens / 3.35e12 * PS_PER_S  # written, and read by the tokens themselves
    assert cost.step_ps(decodes(num_tokens, 1)) == pytest.approx(read_bytes / 3.35e12 * PS_PER_S + kv_ps, rel=1e-5)


def test_two_tokens_may_choose_the_same_experts() -> None:
    """8 (1 - (3/4)^2) = 3.5 of 8 experts, not 4."""
    cost = roofline(MIXTRAL, mbu=1.0)
    expert_bytes = 2 * 32 * 3 * 4096 * 14336  # of one expert in all layers
    per_token_ps = 2 * 131_072 / 3.35e12 * PS_PER_S
    one, two = (cost.step_ps(decodes(num_seqs, 1)) for num_seqs in (1, 2))
    assert two - one == pytest.approx(1.5 * expert_bytes / 3.35e12 * PS_PER_S + per_token_ps, rel=1e-5)


def test_overhead_swaps_and_copies_add_up() -> None:
    """A block of 16 tokens has 2 MiB: once over the host link of 64 GB/s, read and written in HBM."""
    base_ps = roofline().step_ps(decodes(1, 100))
    assert roofline(overhead_s=0.0005).step_ps(decodes(1, 100)) == base_ps + 500_000_000
    swaps = replace(decodes(1, 100), num_swapped_blocks=3)
    copies = replace(decodes(1, 100), num_copied_blocks=5)
    assert roofline().step_ps(swaps) - base_ps == 3 * round(2**21 / 64e9 * PS_PER_S)
    assert roofline().step_ps(copies) - base_ps == 5 * round(2 * 2**21 / (3.35e12 * 0.8) * PS_PER_S)


@pytest.mark.parametrize("name", [name for name in bundled("model") if not model(name).num_window_layers])
def test_simulator_and_sizing_count_the_same_prefill(name: str) -> None:
    """Where only arithmetic costs, a prompt takes the FLOP that `kvtwin size` tells (but for the causal diagonal)."""
    shape = model(name)
    cost = roofline(name, mfu=1e-3, mbu=1.0)
    flops = shape.linear_flops(8192) + shape.causal_attention_flops(8192)
    assert cost.step_ps(prefill(8192)) / PS_PER_S == pytest.approx(flops / 989.4e9, rel=2e-3)


@pytest.mark.parametrize("name", ["mistral_7b_v01", "gemma3_27b"])
def test_sliding_windows_are_not_priced_as_full_attention(name: str) -> None:
    """A window of 4096 tokens does not read 32,768. The model promises InputError for what it cannot price."""
    with pytest.raises(InputError, match="window"):
        roofline(name)


# ---- spans ---------------------------------------------------------------------------------------------------------

SPANNING = {
    "a context that costs": LinearCost(0.01, decode_sequence_s=1e-4, context_token_s=2e-8),
    "a context that costs nothing": LinearCost(0.01, decode_sequence_s=1e-4),
    "knots": LinearCost(0.01, context_token_s=2e-8, knots=[(2, 1e-3), (100, 1e-2)]),
    "roofline, dense": roofline(),
    "roofline, experts": roofline(MIXTRAL, overhead_s=0.0005),
    "roofline, latent attention": roofline("deepseek_v2_lite"),
}


@pytest.mark.parametrize("num_seqs", [1, 7, 200])
@pytest.mark.parametrize("cost", SPANNING.values(), ids=SPANNING)
def test_a_span_costs_what_its_steps_cost(cost: CostModel, num_seqs: int) -> None:
    """Step by step the context grows by one token a sequence."""
    first = decodes(num_seqs, 1000)
    steps = [replace(first, step=i, decode_context_tokens=num_seqs * (1000 + i)) for i in range(500)]
    span_ps = cost.decode_span_ps(first, 500)
    assert list(span_ps) == [cost.step_ps(step) for step in steps]
    assert sum(span_ps) == sum(map(cost.step_ps, steps))


@pytest.mark.parametrize("cost", SPANNING.values(), ids=SPANNING)
def test_a_run_takes_as_long_with_spans_as_without(cost: CostModel) -> None:
    trace = trace_of([0, 0.003, 0.1, 0.1], [100, 300, 30, 65], [400, 35, 1, 90])
    spans, steps = (simulate(trace, Settings(num_blocks=40, spans=spans), cost) for spans in (True, False))
    assert spans.num_plans < steps.num_plans / 3
    assert spans.scheduler.recorder.step_duration_ps == steps.scheduler.recorder.step_duration_ps
    assert [r.finish_ps for r in spans.requests()] == [r.finish_ps for r in steps.requests()]


def test_a_model_that_knows_no_closed_form_goes_step_by_step() -> None:
    class Plain(CostModel):
        def step_ps(self, work: StepWork) -> int:
            return 10 + work.decode_context_tokens % 7

    assert list(Plain().decode_span_ps(decodes(1, 3), 50)) == [13]
    run = simulate(trace_of([0], [16], [20]), Settings(num_blocks=10), Plain())
    assert list(run.scheduler.recorder.step_duration_ps) == [10, *(10 + context % 7 for context in range(17, 36))]
