"""What a GPU's memory is spent on: arithmetic that needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from omegaconf import OmegaConf
from shapes import model

from core.errors import InputError
from engine.activations import activation_bytes
from kvtwin.decoder_shapes import decoder_shape_of
from kvtwin.device_memory import CPU_POOL_BYTES, MemoryBudget, auto_pool_bytes

GIB = 2**30
BUDGET = MemoryBudget(80 * GIB, 0.9, 15 * GIB, GIB // 2, 2 * GIB, GIB // 2)
AUTO = OmegaConf.create({"engine": {"pool_bytes": "auto"}})


def test_each_term_counts_once():
    """As scenario 35 has it: 72 - 15 - 2 - 0.5 - 0.5 = 54 GiB."""
    assert BUDGET.pool_bytes == 54 * GIB
    assert auto_pool_bytes(AUTO, BUDGET) == 54 * GIB
    assert str(BUDGET) == (
        "0.9 x 80.00 GiB, less weights 15.00, activations 2.00, graphs 0.50, others 0.50: 54.00 GiB for KV"
    )


def test_a_number_is_taken_at_its_word_and_a_cpu_has_a_gib():
    assert auto_pool_bytes(OmegaConf.create({"engine": {"pool_bytes": 12_345}}), BUDGET) == 12_345
    assert auto_pool_bytes(AUTO, None) == CPU_POOL_BYTES == GIB


def test_weights_that_leave_nothing_are_refused_with_the_sum():
    too_large = replace(BUDGET, weight_bytes=70 * GIB)
    with pytest.raises(
        InputError, match=r"^engine.memory_fraction=0.9: .* weights 70.00, .*: -1.00 GiB for KV; expected"
    ):
        auto_pool_bytes(AUTO, too_large)


@pytest.mark.parametrize(
    ("name", "num_tokens", "num_logits", "num_bytes"),
    [
        # Llama-3-8B: 2 x 4096 and gate, up, product, down: 3 x 14336 + 4096, in bf16
        ("llama3_8b", 8192, 256, 8192 * (2 * 4096 + 3 * 14336 + 4096) * 2),
        ("llama3_8b", 64, 256, 256 * 128_256 * 6),  # few tokens: the logits
        # Gemma-3-1B: 4 heads of 256: 3 x 1024 + 2 x 2 x 256 + 1152 is less than its MLP
        ("gemma3_1b", 8192, 1, 8192 * (2 * 1152 + 3 * 6912 + 1152) * 2),
        # DeepSeek-V2-Lite: six experts of 1408 and the two shared ones are wider than the dense MLP of 10944
        ("deepseek_v2_lite", 4096, 1, 4096 * (2 * 2048 + 3 * 8 * 1408 + 2048) * 2),
    ],
)
def test_activations_are_the_widest_moment_of_a_step(name, num_tokens, num_logits, num_bytes):
    assert activation_bytes(decoder_shape_of(model(name)), num_tokens, num_logits, 2) == num_bytes
