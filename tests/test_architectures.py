"""Every architecture on KV groups: logits of the dense forward, its greedy tokens under pressure, lockstep, bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from architectures import ARCHITECTURES, decoder, dense
from dense_architectures import dense_logits, greedy_tokens
from engine_world import EngineResult, EngineSetup, assert_lockstep, corpus_bytes, run_trace
from world import Settings, trace_of

from core.decision_log import Event
from engine.batch import BatchItem, build_batch
from engine.executor import NEAR_TIE_LOGITS
from engine.kv_cache import allocate_kv
from kvtwin.prompt_tokens import TraceTokens
from traces.schema import Trace

BLOCK_SIZE = 4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_random_steps_of_mixed_sequences_equal_the_dense_model(name):
    """Shuffled tables, one a group, random chunks; blocks that left a window are taken away; memory full of NaN."""
    shape, draw = ARCHITECTURES[name], random.Random(name)
    sequences = [[draw.randrange(300) for _ in range(length)] for length in (1, 4, 9, 17, 30)]
    expected = [dense_logits(dense(name), tokens) for tokens in sequences]
    blocks = draw.sample(range(1, 250), 249)
    tables = [[[blocks.pop() for _ in range(8)] for _ in shape.kv_groups()] for _ in sequences]
    kv = allocate_kv(shape, 250, BLOCK_SIZE, torch.float32, "cpu")
    for tensor in kv.tensors:
        tensor.fill_(torch.nan)
    computed = [0] * len(sequences)
    while any(done < len(tokens) for done, tokens in zip(computed, sequences, strict=True)):
        unfinished = [i for i, tokens in enumerate(sequences) if computed[i] < len(tokens)]
        items, wanted = [], []
        for i in draw.sample(unfinished, draw.randint(1, len(unfinished))):
            start = computed[i]
            computed[i] = min(len(sequences[i]), start + draw.choice((1, 1, 2, 6, 11)))
            for group, table in zip(shape.kv_groups(), tables[i], strict=True):
                num_expired = group.num_expired_blocks(start, BLOCK_SIZE)
                table[:num_expired] = [0] * num_expired  # a block full of NaN
            items.append(BatchItem(sequences[i][start : computed[i]], start, tables[i], True))
            wanted.append(expected[i][computed[i] - 1])
        logits = decoder(name).forward(build_batch(items, BLOCK_SIZE, "cpu"), kv)
        assert (logits - torch.stack(wanted)).abs().max() < 1e-4


# ---- under the scheduler --------------------------------------------------------------------------------------------


def shared_prefix_trace(num_requests: int = 6) -> Trace:
    """Prompts of 13 to 28 tokens that begin with the same twelve, a crowd that outgrows the pool."""
    return trace_of(
        [row * 0.002 for row in range(num_requests)],
        [13 + 3 * row for row in range(num_requests)],
        [8 + (row * 5) % 9 for row in range(num_requests)],
        segments=[[(500, 12), (3000 + 97 * row, 1 + row * 3)] for row in range(num_requests)],
    )


@cache
def dense_outputs(name: str) -> dict[int, list[list[int]]]:
    """What the dense model says to each prompt, none of its choices a near-tie."""
    trace = shared_prefix_trace()
    prompts = TraceTokens(trace, corpus_bytes(), ARCHITECTURES[name].vocab_size)
    outputs = {}
    for row, num_outputs in enumerate(trace.num_output_tokens.tolist()):
        tokens, margin = greedy_tokens(dense(name), prompts.prompt_tokens(row).tolist(), num_outputs)
        assert margin > NEAR_TIE_LOGITS
        outputs[row] = [tokens]
    return outputs


def run_architecture(name: str, settings: Settings) -> tuple[EngineSetup, EngineResult]:
    setup = EngineSetup(replace(settings, groups=ARCHITECTURES[name].kv_groups()), decoder=lambda: decoder(name))
    return setup, run_trace(shared_prefix_trace(), setup)


def pool_for(name: str) -> int:
    """Blocks for two of the longest requests, where all groups were of full attention: too few for six."""
    return 22 * len(ARCHITECTURES[name].kv_groups())


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_tokens_are_the_dense_models_and_the_simulator_decides_the_same(name, mode):
    """Cached, chunked, preempted; each slot tagged and checked."""
    settings = Settings(
        pool_for(name) // 2, block_size=BLOCK_SIZE, budget=17, mode=mode, host_blocks=200, full_prompt=False
    )
    setup, run = run_architecture(name, settings)
    assert run.outputs() == dense_outputs(name)
    assert run.shadow.num_checked["hit"] > 0
    assert run.num_of(Event.PREEMPT) > 0
    assert (run.num_of(Event.SWAP_IN) > 0) == (mode == "swap")
    assert_lockstep(shared_prefix_trace(), setup, run)
