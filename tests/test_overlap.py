"""Steps overlap: a step is given to the device while the one before it runs, and nothing in it waits for the device.

No GPU is at hand. That decisions and words stay the same is shown on the CPU, which then computes a step as soon as it
begins. That nothing waits is shown on torch's "meta" device, whose tensors hold no data: who looks at a value fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from architectures import ARCHITECTURES
from engine_world import TINY, EngineSetup, assert_lockstep, run_trace, tiny_decoder
from test_host_kv import late
from torch.utils._python_dispatch import TorchDispatchMode
from world import Settings, trace_of

from core.decision_log import Event
from engine.decoder_shape import DecoderShape, ExpertShape
from engine.draws import Sampling
from engine.executor import Memory, PreparedStep, TorchExecutor
from engine.host_kv import HostKV
from engine.kv_cache import allocate_kv
from engine.mlp import LoopedExperts
from engine.model import Decoder
from engine.shared_prefixes import SharingRule, sharing_of
from engine.step_row import StepRows
from engine.weights import random_weights
from kernels import reference

ASYNC = Settings(num_blocks=24, block_size=4, full_prompt=False, asynchronous=True)
WARM = Sampling(temperature=0.8, seed=3, top_k=40, top_p=0.9)
META = torch.device("meta")


def crowded_trace(num_requests: int = 10, **columns):
    segments = [[(500, 12), (3000 + 97 * row, 1 + row)] for row in range(num_requests)]
    return trace_of(
        [row * 0.002 for row in range(num_requests)],
        [13 + row for row in range(num_requests)],
        [10 + (row * 5) % 13 for row in range(num_requests)],
        segments=segments,
        **columns,
    )


class Overlapping(TorchExecutor):
    """Counts the tokens that a step takes from the one before it, on the device. Copies to the host arrive late."""

    overlaps = True
    num_taken = 0

    def __init__(self, decoder, kv, host_kv, *others):
        super().__init__(decoder, kv, host_kv, *others)
        self._host = HostKV(host_kv, late())
        self._memory = Memory(kv, self._host)

    def _tokens_to_come(self, rows):
        coming = super()._tokens_to_come(rows)
        self.num_taken += len(coming[0])
        return coming


# ---- the same decisions, the same words ------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "sampling"), [("recompute", WARM), ("swap", Sampling())])
def test_steps_in_flight_take_their_tokens_from_the_device(mode, sampling):
    """Prefix hits, chunks, preemptions, cancellations; shadow tags name every token that was read."""
    cancel_after_ps = [-1 if row % 3 else (3 + 2 * row) * 10**9 for row in range(10)]
    trace = crowded_trace(cancel_after_ps=cancel_after_ps)
    one_by_one = EngineSetup(replace(ASYNC, mode=mode, host_blocks=50, budget=16, num_blocks=18), sampling=sampling)
    overlapped = replace(one_by_one, executor=Overlapping)
    expected, run = run_trace(trace, one_by_one), run_trace(trace, overlapped)
    assert run.executor.num_taken > 50
    assert run.num_of(Event.PREEMPT) > 0
    assert run.num_of(Event.CANCEL) > 0
    assert run.outputs() == expected.outputs()
    assert run.scheduler.log.digest() == expected.scheduler.log.digest()
    assert run.inputs == expected.inputs
    assert sorted(run.executor.near_ties) == sorted(expected.executor.near_ties)
    assert_lockstep(trace, overlapped, run)


def test_a_step_begins_before_the_one_ahead_of_it_is_waited_for():
    calls = []

    class Noting(TorchExecutor):
        overlaps = True

        def begin(self, step):
            if not step.has_begun:
                calls.append(f"begin {step.plan.step}")
            super().begin(step)

        def run(self, step):
            calls.append(f"wait {step.plan.step}")
            return super().run(step)

    run_trace(trace_of([0], [5], [4]), EngineSetup(ASYNC, executor=Noting))
    assert calls == ["begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "begin 3", "wait 2", "wait 3"]


def test_a_step_without_rows_moves_its_blocks_once():
    """Everybody was preempted; by the time the step is waited for, the next may have written into their blocks."""

    class Moving(TorchExecutor):
        overlaps = True
        num_moves = 0

        def _move_blocks(self, plan, memory):
            self.num_moves += 1

    executor = Moving(tiny_decoder(), allocate_kv(TINY, 2, 4, torch.float32, "cpu"), None, None)
    step = PreparedStep(None, StepRows.of([]), None)
    executor.begin(step)
    executor.begin(step)
    assert executor.run(step).tokens == {}
    assert executor.num_moves == 1


# ---- nothing waits ---------------------------------------------------------------------------------------------------


class Valueless(SimpleNamespace):
    """The kernels of a GPU, which look at no lengths on the host: they return tensors of the right shape."""

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        if name == "prefill_attention":
            return lambda query, *rest: torch.empty_like(query)
        if name == "expert_product":
            return lambda x, weights, rows, starts: x.new_empty(len(rows), weights.shape[1])
        if name == "mla_prefill_attention":
            return lambda query, cache, tables, starts, lengths, latent_dim, *rest: query[..., :latent_dim]
        return getattr(reference, name)


def without_data(value):
    """The same weights on a device that has no memory."""
    if isinstance(value, torch.Tensor):
        return value.to(META)
    if isinstance(value, tuple):
        return tuple(map(without_data, value))
    if is_dataclass(value):
        return replace(value, **{field.name: without_data(getattr(value, field.name)) for field in fields(value)})
    return value


def valueless_decoder(shape=TINY) -> Decoder:
    return Decoder(shape, without_data(random_weights(shape, seed=0)), Valueless())


class NeverHere:
    """A copy to the host that does not arrive: what is swapped in comes from the device."""

    def __init__(self, contents):
        pass

    def is_here(self):
        return False


class CopiesToDevice(TorchDispatchMode):
    """Counts copies from the host."""

    COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype_layout)  # the latter in inference mode
    num_copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in self.COPIES and args[0].device.type == "cpu" and result.device.type == "meta":
            self.num_copies += 1
        return result


class Watched(TorchExecutor):
    """Begins every step a second time, on the device without data; takes that part of the step's plan as done."""

    def __init__(self, decoder, kv, host_kv, tokens, sampling, shadow, twin: Decoder):
        sharing = tuple(rule and SharingRule(1, 1) for rule in sharing_of(decoder.shape, 4))
        super().__init__(decoder, kv, host_kv, tokens, sampling, shadow, sharing)
        empty = allocate_kv(twin.shape, kv.pool.shape[2], kv.block_size, torch.float32, META)
        self._twin = TorchExecutor(twin, empty, host_kv, tokens, sampling)
        self._twin._host = HostKV(host_kv, NeverHere)
        self._twin._memory = Memory(empty, self._twin._host)
        self.num_begun = 0

    def _begin(self, step):
        with CopiesToDevice() as copies:
            self._twin._begin(step)
        moves = step.plan.copies or step.plan.swap_outs or step.plan.swap_ins
        assert copies.num_copies == 1 or moves, "all of a step's integers go to the device at once"
        self.num_begun += 1
        return super()._begin(step)


def test_no_step_waits_for_the_device():
    """Prompts in chunks, decodes, both together, samples that begin and their scores, shared prefixes, copies on write,
    swaps; tokens are drawn.
    """
    executor = partial(Watched, twin=valueless_decoder())
    settings = replace(ASYNC, asynchronous=False, budget=16, mode="swap", host_blocks=50, num_blocks=15)
    trace = crowded_trace(4, num_samples=[2, 1, 1, 2])
    run = run_trace(trace, EngineSetup(settings, sampling=WARM, executor=executor))
    assert run.executor.num_begun > 15
    assert run.shadow.num_checked["copy"] > 0
    assert run.num_of(Event.SWAP_IN) > 0


def watch(shape: DecoderShape) -> None:
    """A prompt and two decodes."""
    setup = EngineSetup(
        Settings(num_blocks=8, block_size=4, groups=shape.kv_groups()),
        decoder=lambda: Decoder(shape, random_weights(shape, seed=0)),
        executor=partial(Watched, twin=valueless_decoder(shape)),
    )
    assert run_trace(trace_of([0], [6], [3]), setup).executor.num_begun == 3


@pytest.mark.parametrize("name", ["gemma3", "gpt_oss", "deepseek_v2_lite"])
def test_no_architecture_waits_for_the_device(name):
    watch(ARCHITECTURES[name])


def test_experts_that_are_looped_over_wait_and_are_caught(monkeypatch):
    """Which of them were chosen is asked in every layer."""
    monkeypatch.setattr("engine.mlp.GroupedExperts", LoopedExperts)
    with pytest.raises(NotImplementedError, match="_unique2"):
        watch(replace(TINY, experts=ExpertShape(4, 2, 16)))


@pytest.mark.parametrize(
    "peek",
    [
        lambda logits: logits.max().item(),
        lambda logits: logits.tolist(),
        lambda logits: logits.cpu(),
        lambda logits: logits[logits > 0],
        lambda logits: bool((logits > 0).any()),
        lambda logits: logits.nonzero(),
    ],
    ids=["item", "tolist", "cpu", "mask", "bool", "nonzero"],
)
def test_whoever_looks_at_a_value_within_a_step_is_caught(peek, monkeypatch):
    forward = Decoder.forward

    def peeking(self, batch, kv):
        logits = forward(self, batch, kv)
        peek(logits)
        return logits

    monkeypatch.setattr(Decoder, "forward", peeking)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"[Mm]eta"):
        watch(TINY)
