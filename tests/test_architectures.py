"""Every architecture on KV groups: logits of the dense forward, its greedy tokens under pressure, lockstep, bytes."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from architectures import ARCHITECTURES, GQA, decoder, dense
from dense_architectures import dense_logits, greedy_tokens
from engine_world import EngineResult, EngineSetup, assert_lockstep, corpus_bytes, run_trace
from shapes import model as bundled_model
from world import Settings, trace_of

from core.decision_log import Event
from core.model_shape import ModelShape
from engine.batch import BatchItem, build_batch
from engine.executor import NEAR_TIE_LOGITS
from engine.kv_cache import allocate_kv, kv_block_bytes
from engine.model import Decoder
from engine.unrotated_attention import UnrotatedAttention
from engine.weights import random_weights
from kvtwin.decoder_shapes import decoder_shape_of, model_shape_of
from kvtwin.memory_plan import SizingOptions, group_block_bytes
from kvtwin.prompt_tokens import TraceTokens
from traces.schema import Trace

BLOCK_SIZE = 4


def unrotated(name: str) -> Decoder:
    return Decoder(ARCHITECTURES[name], decoder(name).weights, heads=UnrotatedAttention)


CASES = [
    *(pytest.param(name, decoder, id=name) for name in ARCHITECTURES),
    *(pytest.param(name, unrotated, id=f"{name}, unrotated") for name in ("gqa", "gemma3", "shared")),
]


@pytest.mark.parametrize(("name", "decoder_of"), CASES)
def test_random_steps_of_mixed_sequences_equal_the_dense_model(name, decoder_of):
    """Shuffled tables, one a group, random chunks; blocks that left a window are taken away; memory full of NaN."""
    shape, draw, engine = ARCHITECTURES[name], random.Random(name), decoder_of(name)
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
        logits = engine.forward(build_batch(items, BLOCK_SIZE, "cpu"), kv)
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


@pytest.mark.parametrize("seed", range(6))
def test_any_crowd_on_windows_reads_what_is_its_own(seed):
    """Shared beginnings, samples, async scheduling or swaps, in a small pool: clean tags, the same decisions."""
    draw = random.Random(seed)
    name = draw.choice(["mistral", "gemma3", "gpt_oss", "two windows", "shared"])
    groups, num = ARCHITECTURES[name].kv_groups(), 6
    asynchronous = draw.random() < 0.4
    num_samples = [1 if asynchronous else draw.choice([1, 2]) for _ in range(num)]
    num_prompt = [12 + draw.randint(1, 18) for _ in range(num)]
    num_output = [draw.randint(1, 30) for _ in range(num)]
    trace = trace_of(
        sorted(draw.choice([0, 0.002, 0.01]) * row for row in range(num)),
        num_prompt,
        num_output,
        segments=[[(500, 12), (3000 + 97 * row, length - 12)] for row, length in enumerate(num_prompt)],
        num_samples=num_samples,
    )
    longest = max((p + o) * n for p, o, n in zip(num_prompt, num_output, num_samples, strict=True))
    setup = EngineSetup(
        Settings(
            (-(-longest // BLOCK_SIZE) + 3) * len(groups),
            block_size=BLOCK_SIZE,
            budget=draw.choice([7, 12, 40]),
            mode="recompute" if asynchronous else draw.choice(["swap", "recompute"]),
            host_blocks=300,
            full_prompt=False,
            groups=groups,
            asynchronous=asynchronous,
        ),
        decoder=lambda: decoder(name),
    )
    assert_lockstep(trace, setup, run_trace(trace, setup))


# ---- memory ---------------------------------------------------------------------------------------------------------


def num_elements(part) -> int:
    """Numbers in the tensors of a dataclass of dataclasses."""
    if isinstance(part, torch.Tensor):
        return part.numel()
    if isinstance(part, tuple):
        return sum(map(num_elements, part))
    return sum(num_elements(getattr(part, each.name)) for each in fields(part)) if part is not None else 0


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"two windows"}))
def test_kv_and_weights_take_the_bytes_that_size_says(name):
    shape = ARCHITECTURES[name]
    model = model_shape_of(name, shape)
    kv = allocate_kv(shape, 10, BLOCK_SIZE, torch.bfloat16, "cpu")
    assert kv.num_bytes == 10 * group_block_bytes(model, SizingOptions(block_size_tokens=BLOCK_SIZE))
    assert kv_block_bytes(shape, BLOCK_SIZE, torch.bfloat16) * 10 == kv.num_bytes
    assert shape.num_kv_layers * shape.kv_elements_per_layer_token * 2 == model.kv_bytes_per_token()
    weights = decoder(name).weights
    num_unused = shape.num_shared_layers * 2 * shape.num_kv_heads * shape.head_dim * shape.hidden
    in_head = shape.tied * weights.embedding.numel()
    assert num_elements(weights) - in_head == model.num_parameters() - num_unused


@pytest.mark.parametrize("name", ["gemma3_27b", "gpt_oss_120b", "mistral_7b_v01", "deepseek_v2", "qwen3_30b_a3b"])
def test_the_bundled_shapes_become_decoders_with_the_same_memory(name):
    model = replace(bundled_model(name), extra_parameters=0)
    shape = decoder_shape_of(model)
    assert shape.kv_groups() == model.kv_groups()
    assert kv_block_bytes(shape, 16, torch.bfloat16) == group_block_bytes(model, SizingOptions())
    assert model_shape_of(name, shape) == replace(model, checkpoint_bytes=0)


def test_gemma_and_gpt_oss_have_their_windows_where_their_authors_put_them():
    gemma = decoder_shape_of(bundled_model("gemma3_1b")).windows
    assert [layer for layer, window in enumerate(gemma) if window is None] == [5, 11, 17, 23]
    gpt_oss = decoder_shape_of(replace(bundled_model("gpt_oss_20b"), extra_parameters=0)).windows
    assert gpt_oss == (128, None) * 12


def test_layers_that_share_read_the_last_cache_of_their_kind():
    """Gemma 3n's 30 layers: the last ten read layer 19 where they are full, else layer 18."""
    model = ModelShape("gemma3n", 30, 2048, 8, 2, 256, 8192, 262_400, 32_768, num_shared_layers=10)
    shape = decoder_shape_of(replace(model, window_tokens=512, num_window_layers=16))
    places = shape.kv_places()
    assert [place.writes for place in places] == [True] * 20 + [False] * 10
    for layer in range(20, 30):
        assert places[layer][:3] == places[19 if layer % 5 == 4 else 18][:3]


def test_37_window_layers_keep_their_window_on_the_engine():
    """Ten full and twenty window layers, window 32, blocks of 16, 111 tokens with KV and one more: 7 + 2 + 2 blocks."""
    shape = replace(GQA, num_layers=30, hidden=16, head_dim=4, intermediate=8, layer_windows=(32, 32, None) * 10)
    setup = EngineSetup(
        Settings(40, budget=16, groups=shape.kv_groups(), caching=False),
        decoder=lambda: Decoder(shape, random_weights(shape, seed=1)),
    )
    trace = trace_of([0], [111], [4])
    run = run_trace(trace, setup)
    assert [(group.num_layers, group.window_tokens) for group in shape.kv_groups()] == [(10, None), (10, 32), (10, 32)]
    assert run.referenced_blocks()[7] == 7 + 2 + 2
    assert_lockstep(trace, setup, run)
