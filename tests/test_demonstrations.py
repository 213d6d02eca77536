"""The demonstrations: outputs identical, bytes exact, and what the texts say of the KV cache, checked."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from command import Kvtwin, in_folder, refusals
from torch.nn.functional import scaled_dot_product_attention

from core.errors import InputError
from kvtwin.demonstrations import cached, cached_model, growth, intensity, operations, reads, saturation
from kvtwin.demonstrations.demonstration import fitted_line, window_quartiles
from kvtwin.demonstrations.shapes import hardware_of, model_shape
from kvtwin.demonstrations.timing import timed_in_turns
from kvtwin.verbs.demo import DEMONSTRATIONS

LLAMA = model_shape("llama3_8b")


def test_the_toy_says_the_same_with_and_without_a_cache() -> None:
    """60 tokens: 60 projections with a cache, 60 x 61 / 2 without; the outputs are equal bit for bit."""
    shown = cached.measure(Namespace(steps=60, width=32, repeats=2, seed=1))
    figures = shown.figures
    assert figures["is_output_identical"]
    assert figures["num_projections"] == {"cached": 60, "uncached": 1830}
    assert len(figures["uncached_s"]) == len(figures["cached_s"]) == 60
    assert figures["speed_up"] == pytest.approx(figures["uncached_total_s"] / figures["cached_total_s"])


def test_a_toy_that_forgets_to_append_says_something_else() -> None:
    """The comparison can fail: a cache that is written one place too far is found out."""
    layer = cached.Layer.random(16, seed=0)
    right, wrong = cached.Generation(layer, 4), cached.Generation(layer, 4)
    for step in range(4):
        right.step_with_cache()
        wrong.step_with_cache()
        if step == 1:
            wrong._keys[0] = 0
    assert not np.array_equal(np.array(right.hidden), np.array(wrong.hidden))


def test_a_line_is_told_from_a_curve() -> None:
    x = np.arange(50.0)
    line = fitted_line(x, 3 * x + 2)
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((3, 2, 1))
    assert fitted_line(x, x**4).r_squared < 0.9
    places, values = window_quartiles(np.array([1.0, 1, 1, 90, 2, 2, 2, 80]), 2)
    assert (places.tolist(), values.tolist()) == ([1.5, 5.5], [1, 2])


def test_the_text_of_a_model_is_the_same() -> None:
    """The tiny shape, random weights: every token, computed anew from the whole text, is the one with the cache."""
    figures = cached_model.measure(Namespace(model="tiny", steps=24, points=24, rounds=1)).figures
    assert figures["num_same_tokens"] == len(figures["positions"]) == 24
    assert figures["positions"] == list(range(16, 40))


def test_bytes_of_an_append() -> None:
    """A layer of Llama-3-8B: 4,096 bytes a token. cat reads and writes all 1,024 tokens, and holds both for a while."""
    assert LLAMA.kv_elements_per_layer_token * 2 == 4096
    assert growth.moved_bytes(1024, 4096) == {"torch.cat": 2 * 1025 * 4096, "preallocated": 8192, "paged": 8192}
    held = growth.allocated_bytes(1024, 16384, 4096)
    assert held == {"torch.cat": 2049 * 4096, "preallocated": 16385 * 4096, "paged": 65 * 16 * 4096}


def test_every_append_leaves_the_same_cache() -> None:
    appends = growth._appends(20, 64, (2, 8))
    keys, values = appends["torch.cat"]()
    assert keys.shape == values.shape == (21, 2, 8)
    assert keys[20].eq(1).all()
    assert not keys[:20].any()


def test_bytes_of_the_four_operations() -> None:
    """SmolLM2-135M: 23,040 bytes a token; 100 tokens are 7 blocks of 16."""
    figures = operations.operation_bytes(model_shape("smollm2_135m"), 100)
    assert figures == {"allocate": 7 * 16 * 23040, "write": 23040, "read": 100 * 23040, "free": 7 * 16 * 23040}


def test_what_a_decode_step_reads() -> None:
    """The text's example: 32 sequences of 8,192 tokens read 34.36 GB of KV beside 16.06 GB of weights."""
    assert 32 * LLAMA.kv_bytes(8192) == 34_359_738_368
    assert LLAMA.weight_bytes_read(32) == 16_060_522_496
    assert reads.crossover_tokens(LLAMA, 1) == 122_533
    assert reads.crossover_tokens(LLAMA, 32) == 3_830
    for batch in (1, 7, 32):
        tokens = reads.crossover_tokens(LLAMA, batch)
        assert tokens is not None
        assert LLAMA.kv_bytes(tokens - 1) * batch < LLAMA.weight_bytes_read(batch) <= LLAMA.kv_bytes(tokens) * batch


def test_windows_alone_never_reach_the_weights() -> None:
    assert reads.crossover_tokens(model_shape("mistral_7b_v01"), 1) is None


def test_intensity_of_prefill_and_decode() -> None:
    """Weights bring about a FLOP a byte and sequence; KV brings 1 under multi-head attention, and as many as query
    heads share a KV head otherwise, whatever the batch.
    """
    assert hardware_of("h100_80gb").ridge_flop_per_byte == pytest.approx(295, abs=1)
    assert intensity.kv_intensity(model_shape("llama2_7b")) == 1
    assert intensity.kv_intensity(LLAMA) == 4
    one, many = (intensity.decode_intensity(LLAMA, batch, 0) for batch in (1, 64))
    assert many == pytest.approx(64 * one, rel=1e-9)
    assert intensity.decode_intensity(LLAMA, 1 << 20, 1 << 24) == pytest.approx(4, rel=0.01)
    assert intensity.prefill_intensity(LLAMA, 512) > 295 > intensity.prefill_intensity(LLAMA, 256)


def test_attention_of_decode_is_what_causal_attention_grows_by() -> None:
    """The two formulas of FLOP agree: a prompt of n tokens is n queries, of which each sees those before it."""
    summed = sum(intensity.decode_attention_flops(LLAMA, tokens) for tokens in range(1, 401))
    assert summed == pytest.approx(LLAMA.causal_attention_flops(400), rel=0.003)


def test_a_full_pool_makes_requests_wait() -> None:
    options = Namespace(trace="chat_sample", num_blocks=700, rates=[0.2, 20.0], limit=40)
    slow, fast = saturation.measure(options).figures["by_rate"]
    assert fast["offered_rps"] == pytest.approx(100 * slow["offered_rps"])
    assert (slow["num_preemptions"], slow["num_rejected"], fast["num_rejected"]) == (0, 0, 0)
    assert fast["kv_peak_ratio"] > 0.95 > slow["kv_peak_ratio"]
    assert fast["ttft_p99_s"] > 10 * slow["ttft_p99_s"]


def test_things_are_timed_in_turns() -> None:
    calls: list[str] = []
    spent = timed_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, num_warm_calls=1)
    assert calls == ["a", "a", "b", "b"] * 3
    assert spent.keys() == {"a", "b"}


# ---- the mask of the second text ------------------------------------------------------------------------------------


def attention_of_the_text(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """As the second text has it: causal whenever there is more than one new token."""
    return scaled_dot_product_attention(query, key, value, is_causal=query.shape[-2] > 1)


def test_is_causal_is_right_for_a_prompt_and_for_a_token_but_wrong_for_a_chunk_over_a_cache() -> None:
    """torch aligns the mask with the first key: query i of a chunk sees keys 0 to i, not the cached ones and i more.

    Here 5 new tokens over 11 cached ones. A prompt and a single token come out right, which hides it.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn((2, 16, 8), generator=generator, dtype=torch.float64) for _ in range(3))
    causal = torch.ones((16, 16), dtype=torch.bool).tril()
    right = scaled_dot_product_attention(query, key, value, attn_mask=causal)
    assert torch.allclose(attention_of_the_text(query, key, value), right)
    assert torch.allclose(attention_of_the_text(query[:, 15:], key, value), right[:, 15:])
    chunk = attention_of_the_text(query[:, 11:], key, value)
    for place in range(5):
        seen = slice(place + 1)
        blind = scaled_dot_product_attention(query[:, 11 + place : 12 + place], key[:, seen], value[:, seen])
        assert torch.allclose(chunk[:, place : place + 1], blind), "it sees the beginning of the text and no more"
    assert (chunk - right[:, 11:]).abs().max() > 0.5
    offset = scaled_dot_product_attention(query[:, 11:], key, value, attn_mask=causal[11:])
    assert torch.allclose(offset, right[:, 11:]), "the mask has to be offset by the cached tokens"


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def kvtwin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_the_command_shows_a_table_figures_and_a_page(kvtwin: Kvtwin) -> None:
    shown = kvtwin("demo", "reads", "--html", "reads.html")
    assert (shown.status, shown.errors) == (0, [])
    assert "122,533" in shown.out
    page = Path("reads.html").read_text()
    assert "KV reads equal weight reads" in page
    assert '"ticktext":["1","2","4","8",' in page, "each batch, not one power of ten"
    figures = json.loads(kvtwin("demo", "intensity", "--model", "llama2_7b", "--json").out)
    assert figures["kv_flop_per_byte"] == 1
    assert all(name in kvtwin("demo").out for name in DEMONSTRATIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["red"], "no demonstration 'red'; did you mean reads?"),
        (["reads", "--model", "llama9"], "llama9"),
        (["cached_model", "--steps", "9000"], "--steps 9000: with a prompt of 16, smollm2_135m has 8192 positions"),
        (["cached_model", "--model", "gemma3_1b"], "--model gemma3_1b: has several KV groups"),
        (["reads", "--context", "0"], "0; expected a whole number of at least 1"),
        (["saturation", "--rates", "1,x"], "1,x; expected positive numbers with commas between them"),
    ],
)
def test_what_the_command_refuses(words: list[str], message: str, kvtwin: Kvtwin) -> None:
    assert message in refusals(kvtwin)("demo", *words)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (cached, {"steps": 1}, "--steps 1: no line goes through one point; expected at least 2"),
        (cached_model, {"steps": 9, "points": 1}, "--steps 9 --points 1: expected at least 2 of both"),
        (saturation, {"limit": 1}, "--limit 1: one request has no rate; expected at least 2"),
        (growth, {"model": "deepseek_v2_lite"}, "--model deepseek_v2_lite: caches latents"),
        (operations, {"model": "mistral_7b_v01"}, "--model mistral_7b_v01: caches latents or windows"),
    ],
)
def test_what_cannot_be_shown_is_refused(module: ModuleType, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        module.measure(Namespace(**options))


def test_the_guide_names_every_demonstration() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "demonstrations.md").read_text()
    for name in DEMONSTRATIONS:
        assert f"kvtwin demo {name}" in guide
