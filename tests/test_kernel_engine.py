"""The engine computes with Triton's kernels what it computes with the reference (tests/conftest.py: interpreted)."""

from dataclasses import replace
from inspect import signature

import pytest
import torch
from architectures import ARCHITECTURES, GQA, MLA
from engine_world import TINY, EngineSetup, run_trace
from world import Settings, trace_of

from core.errors import InputError
from engine import kernel_sets
from engine.batch import BatchItem, build_batch
from engine.kernel_sets import KERNEL_SETS, kernels_for
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.weights import random_weights
from kernels import fast, reference
from kernels.cpu_attention import CpuAttention
from kvtwin.settings import RULES

CPU, FP32 = torch.device("cpu"), torch.float32


def test_greedy_tokens_are_those_of_the_reference():
    """Two requests that share a prefix, in chunks and decodes; memory is full of NaN to begin with, and tagged."""
    trace = trace_of([0.0, 0.0], [6, 9], [3, 2], segments=[[(500, 4), (3000, 2)], [(500, 4), (3100, 5)]])
    weights = random_weights(TINY, seed=11)

    outputs = [
        run_trace(
            trace,
            EngineSetup(
                Settings(num_blocks=20, block_size=4, budget=8),
                decoder=lambda name=name: Decoder(TINY, weights, kernels_for(name, TINY, CPU, FP32)),
            ),
        ).outputs()
        for name in ("triton", "reference")
    ]

    assert outputs[0] == outputs[1]
    assert [len(outputs[0][request][0]) for request in (0, 1)] == [3, 2]


@pytest.mark.parametrize("name", ["deepseek_v2_lite", "mistral"])
def test_logits_are_those_of_the_reference(name):
    """A chunk that follows another, beside a decode. On a CPU experts are looped over, else all computed at once."""
    shape = ARCHITECTURES[name]
    weights = random_weights(shape, seed=5)
    logits = []
    for kernels in (fast, reference, CpuAttention()):
        decoder, kv = Decoder(shape, weights, kernels), allocate_kv(shape, 12, 4, torch.float32, "cpu")
        for tensor in kv.tensors:
            tensor.fill_(torch.nan)
        tables = [[5, 2, 9]], [[4, 7]]
        for items in (
            [BatchItem(range(20, 28), 0, tables[0], False), BatchItem(range(60, 65), 0, tables[1], False)],
            [BatchItem(range(28, 31), 8, tables[0], True), BatchItem([65], 5, tables[1], True)],
        ):
            out = decoder.forward(build_batch(items, 4, "cpu"), kv)
        logits.append(out)

    assert (logits[0] - logits[2]).abs().max() < 1e-4
    assert (logits[1] - logits[2]).abs().max() < 1e-4


@pytest.mark.parametrize("name", fast.__all__)
def test_every_kernel_has_a_reference_of_the_same_signature(name):
    assert signature(getattr(fast, name)) == signature(getattr(reference, name))


def test_the_set_is_chosen_by_name_and_device(monkeypatch):
    assert RULES["engine.kernels"].expected == f"one of {', '.join(KERNEL_SETS)}"
    assert kernels_for("reference", TINY, CPU, FP32) is reference
    assert isinstance(kernels_for("auto", TINY, CPU, FP32), CpuAttention)
    assert kernels_for("triton", TINY, CPU, FP32) is fast
    assert kernels_for("auto", TINY, torch.device("cuda"), FP32) is fast
    wide = replace(GQA, head_dim=512)
    assert kernels_for("auto", wide, torch.device("cuda"), FP32) is reference
    monkeypatch.setattr(kernel_sets, "find_spec", lambda name: None)
    assert kernels_for("auto", TINY, torch.device("cuda"), FP32) is reference


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (replace(GQA, hidden=16_385), "hidden states of 16385, it has kernels for up to 16384"),
        (replace(GQA, head_dim=512), "heads of 512, it has kernels for up to 256; expected reference or auto"),
        (
            replace(MLA, latent=replace(MLA.latent, latent_dim=1024)),
            "latents of 1024 with rotated keys of 4, it has kernels for up to 512 and 64",
        ),
    ],
)
def test_a_model_that_triton_cannot_serve_is_refused(shape, said):
    with pytest.raises(InputError, match=f"engine.kernels=triton: {said}"):
        kernels_for("triton", shape, CPU, FP32)


def test_triton_on_a_cpu_is_refused_unless_it_interprets(monkeypatch):
    monkeypatch.setattr("kernels.interpreter.INTERPRETED", False)

    with pytest.raises(InputError, match="interprets on a CPU only with TRITON_INTERPRET=1 in the environment"):
        kernels_for("triton", TINY, CPU, FP32)
