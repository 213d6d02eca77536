"""RoPE, KV write, norms and gate in Triton equal fp64 arithmetic on awkward shapes; wrong ones are refused.

They run in Triton's interpreter on the CPU (tests/conftest.py). Its stores of bf16 truncate, so results may be one
unit in the last place off; programs run one after another, so races would not show.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from engine_world import TINY
from pairwise import pairwise
from torch import Tensor

from engine.batch import BatchItem, build_batch
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.weights import random_weights
from kernels import reference
from kernels.kv_write import write_kv
from kernels.rms_norm import MAX_HIDDEN, add_rms_norm, rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.swiglu import swiglu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RELATIVE = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}


def near(result: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    return torch.allclose(result.double(), expected, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] / 4)


def randn(*shape: int, dtype: torch.dtype, seed: int = 0, row_padding: int = 0) -> Tensor:
    """Random; with `row_padding`, a view whose rows have NaN between them."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    wide = torch.full((*shape[:-1], shape[-1] + row_padding), torch.nan, dtype=dtype)
    wide[..., : shape[-1]] = torch.randn(*shape, generator=generator).to(dtype)
    return wide[..., : shape[-1]]


def nan_caches(num_tokens: int, block_size: int, *row: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Two caches of NaN with room to spare, and a shuffled slot for each token."""
    num_blocks = -(-num_tokens // block_size) + 2
    k_cache, v_cache = torch.full((2, num_blocks, block_size, *row), torch.nan, dtype=dtype)
    slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(7))[:num_tokens]
    return k_cache, v_cache, slots


def assert_only_slots_written(cache: Tensor, slots: Tensor) -> None:
    tokens = cache.flatten(0, 1).flatten(1).isnan()
    is_written = torch.zeros(len(tokens), dtype=torch.bool)
    is_written[slots] = True
    assert tokens[~is_written].all()
    assert not tokens[is_written].any()


# ---- RoPE and KV write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    pairwise(
        {
            "head_dim": [64, 80, 96, 128, 192, 256],
            "heads": [(1, 1), (7, 1), (9, 3), (32, 8)],
            "block_size": [1, 3, 16, 48],
            "dtype": DTYPES,
            "num_tokens": [1, 4],
            "row_padding": [0, 5],
        }
    ),
)
def test_rope_and_write_equal_complex_rotation(case):
    num_heads, num_kv_heads = case["heads"]
    head_dim, dtype, num_tokens = case["head_dim"], case["dtype"], case["num_tokens"]
    columns = (num_heads + 2 * num_kv_heads) * head_dim
    qkv = randn(num_tokens, columns, dtype=dtype, row_padding=case["row_padding"])
    positions = torch.tensor([8000, 0, 511, 512])[:num_tokens]
    angles = torch.outer(positions, 10_000 ** (-torch.arange(0, head_dim, 2) / head_dim))
    cos, sin = angles.cos(), angles.sin()
    k_cache, v_cache, slots = nan_caches(num_tokens, case["block_size"], num_kv_heads, head_dim, dtype=dtype)

    query = rope_kv_write(qkv, cos, sin, k_cache, v_cache, slots)

    heads = qkv.double().unflatten(1, (-1, head_dim))
    pairs = torch.complex(heads[..., : head_dim // 2], heads[..., head_dim // 2 :])
    turned = pairs * torch.complex(cos.double(), sin.double())[:, None]
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    assert near(query, expected[:, :num_heads], dtype)
    assert near(k_cache.flatten(0, 1)[slots], expected[:, num_heads : num_heads + num_kv_heads], dtype)
    assert torch.equal(v_cache.flatten(0, 1)[slots].double(), heads[:, num_heads + num_kv_heads :])
    assert_only_slots_written(k_cache, slots)
    assert_only_slots_written(v_cache, slots)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_values_pass_the_rotation_untouched_even_where_they_are_infinite():
    qkv = torch.zeros(1, 3 * 4)
    qkv[0, 8:] = torch.tensor([torch.inf, -torch.inf, 3.0, torch.inf])
    k_cache, v_cache, slots = nan_caches(1, 2, 1, 4, dtype=torch.float32)

    rope_kv_write(qkv, torch.ones(1, 2), torch.zeros(1, 2), k_cache, v_cache, slots)

    assert v_cache.flatten(0, 1)[slots].flatten().tolist() == [torch.inf, -torch.inf, 3.0, torch.inf]


@pytest.mark.parametrize(
    "case",
    pairwise(
        {
            "row": [(1, 64), (3, 80), (8, 128), (5, 576)],
            "block_size": [1, 3, 16],
            "dtype": DTYPES,
            "num_tokens": [0, 1, 5],
        }
    ),
)
def test_written_keys_and_values_are_bit_for_bit_those_given(case):
    num_tokens, row, dtype = case["num_tokens"], case["row"], case["dtype"]
    fused = randn(num_tokens, 2 * row[0] + 1, row[1], dtype=dtype)  # k and v are parts of one projection
    key, value = fused[:, : row[0]], fused[:, -row[0] :]
    k_cache, v_cache, slots = nan_caches(num_tokens, case["block_size"], *row, dtype=dtype)

    write_kv(key, value, k_cache, v_cache, slots)

    assert torch.equal(k_cache.flatten(0, 1)[slots], key)
    assert torch.equal(v_cache.flatten(0, 1)[slots], value)
    assert_only_slots_written(k_cache, slots)
    assert_only_slots_written(v_cache, slots)


def test_a_row_of_padding_is_not_cached():
    qkv = randn(3, 3 * 8, dtype=torch.float32)
    slots = torch.tensor([-1, 4, -1])
    written, rotated = (torch.full((2, 2, 3, 1, 8), torch.nan) for _ in range(2))

    write_kv(qkv[:, 8:16].unsqueeze(1), qkv[:, 16:].unsqueeze(1), *written, slots)
    query = rope_kv_write(qkv, torch.ones(3, 4), torch.zeros(3, 4), *rotated, slots)

    assert torch.equal(query.squeeze(1), qkv[:, :8])
    for caches in (written, rotated):
        assert torch.equal(caches.flatten(1, 2)[:, 4, 0], qkv[1, 8:].view(2, 8))
        assert_only_slots_written(caches[0], slots[1:2])


# ---- norms and gates ------------------------------------------------------------------------------------------------

NORM_CASES = pairwise({"hidden": [1, 63, 128, 576, 2048, 5120], "num_rows": [1, 2, 19], "dtype": DTYPES})


def dense_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * (x.square().mean(dim=-1, keepdim=True) + eps) ** -0.5 * weight.double()


@pytest.mark.parametrize("case", NORM_CASES)
def test_norm_equals_its_formula_in_fp64(case):
    x, weight = (randn(num, case["hidden"], dtype=case["dtype"]) for num in (case["num_rows"], 1))

    assert near(rms_norm(x, weight[0], 1e-5), dense_norm(x, weight[0], 1e-5), case["dtype"])


@pytest.mark.parametrize("case", NORM_CASES)
def test_fused_addition_equals_the_two_steps(case):
    dtype, shape = case["dtype"], (case["num_rows"], case["hidden"])
    x, residual, weight = (
        randn(*shape, dtype=dtype),
        randn(*shape, dtype=dtype, seed=1),
        randn(1, shape[1], dtype=dtype),
    )

    normalised, summed = add_rms_norm(x, residual, weight[0], 1e-6)

    assert near(summed, x.double() + residual.double(), dtype)
    assert near(normalised, dense_norm(summed, weight[0], 1e-6), dtype)


def test_the_norm_of_each_head_of_a_strided_projection():
    heads = randn(3, 9, 64, dtype=torch.float32)[:, 2:5]
    weight = torch.linspace(0.5, 2, 64)

    assert near(rms_norm(heads, weight, 1e-6), dense_norm(heads, weight, 1e-6), torch.float32)


@pytest.mark.parametrize(
    "case",
    pairwise({"width": [1, 5, 1024, 1025, 1536], "num_tokens": [0, 1, 3], "dtype": DTYPES, "row_padding": [0, 3]}),
)
def test_gate_equals_its_formula_in_fp64(case):
    gate_up = 4 * randn(case["num_tokens"], 2 * case["width"], dtype=case["dtype"], row_padding=case["row_padding"])

    gated = swiglu(gate_up)

    gate, up = gate_up.double().chunk(2, dim=-1)
    assert near(gated, gate * torch.sigmoid(gate) * up, case["dtype"])


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_gate_of_large_numbers_neither_overflows_nor_vanishes():
    assert swiglu(torch.tensor([[-200.0, 200.0, 3.0, 3.0]])).tolist() == [[0.0, 600.0]]


# ---- a whole decoder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_decoder_computes_and_caches_the_same_with_these_kernels(qk_norm):
    shape = replace(TINY, qk_norm=qk_norm)
    weights = random_weights(shape, seed=5)
    ours = SimpleNamespace(
        **{name: getattr(reference, name) for name in ("decode_attention", "prefill_attention")},
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        swiglu=swiglu,
        rope_kv_write=rope_kv_write,
        write_kv=write_kv,
    )
    batch = build_batch([BatchItem([7], 3, [[2]], True), BatchItem([1, 2, 3, 4, 5], 0, [[0, 3]], True)], 4, "cpu")
    memory, expected_memory = (allocate_kv(shape, 4, 4, torch.float32, "cpu") for _ in range(2))

    logits = Decoder(shape, weights, ours).forward(batch, memory)

    assert torch.allclose(logits, Decoder(shape, weights).forward(batch, expected_memory), atol=1e-4)
    for cache, expected in zip(memory.tensors, expected_memory.tensors, strict=True):
        assert torch.allclose(cache, expected, atol=1e-5)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: swiglu(torch.zeros(2, 6, dtype=torch.float64)), "gate_up is torch.float64; the kernel takes float32"),
        (lambda: swiglu(torch.zeros(2, 5)), r"gate_up is \[2, 5\]; it must be \[num_tokens, 2 width\]"),
        (lambda: swiglu(torch.zeros(6, 4).T), "with contiguous columns"),
        (lambda: rms_norm(torch.zeros(2, 8), torch.ones(7), 1e-5), r"weight is \[7\]; it must be \[8\]"),
        (
            lambda: rms_norm(torch.zeros(2, 8), torch.ones(8).half(), 1e-5),
            "weight is torch.float16, x is torch.float32",
        ),
        (
            lambda: rms_norm(torch.zeros(1, MAX_HIDDEN + 1), torch.ones(MAX_HIDDEN + 1), 1e-5),
            "hidden is 16385; the kernel takes 1 to 16,384",
        ),
        (
            lambda: add_rms_norm(torch.zeros(2, 8), torch.zeros(1, 8), torch.ones(8), 1e-5),
            r"residual is \[1, 8\]; it must be \[2, 8\]",
        ),
    ],
)
def test_a_call_that_cannot_be_right_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def rope_call(**changes: Tensor) -> Tensor:
    right = {
        "qkv": torch.zeros(2, 4 * 8),
        "cos": torch.ones(2, 4),
        "sin": torch.zeros(2, 4),
        "k_cache": torch.zeros(2, 3, 1, 8),
        "v_cache": torch.zeros(2, 3, 1, 8),
        "slot_mapping": torch.tensor([0, 1]),
    }
    return rope_kv_write(**(right | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qkv": torch.zeros(2, 30)}, "qkv has 30 columns; with 1 KV heads of 8 it must hold whole heads, more than 2"),
        ({"qkv": torch.zeros(2, 16)}, "qkv has 16 columns"),
        ({"cos": torch.ones(4, 4)}, r"cos is \[4, 4\]; it must be \[2, 4\]"),
        ({"sin": torch.ones(2, 4).double()}, "sin is torch.float64; it must be float32"),
        ({"k_cache": torch.zeros(2, 3, 1, 8).half()}, "k_cache is torch.float16, qkv is torch.float32"),
        ({"v_cache": torch.zeros(2, 4, 1, 8)}, r"v_cache is \[2, 4, 1, 8\]; it must be \[2, 3, 1, 8\]"),
        ({"k_cache": torch.zeros(2, 3, 1, 7)}, "head_dim is 7; halves are rotated, so it must be even"),
        ({"slot_mapping": torch.tensor([0])}, r"slot_mapping is \[1\]; it must be \[2\]"),
        ({"slot_mapping": torch.tensor([0, 1]).int()}, "slot_mapping is torch.int32; it must be int64"),
    ],
)
def test_rope_refuses_what_it_would_compute_wrongly(changes, message):
    assert rope_call().shape == (2, 2, 8)
    with pytest.raises(ValueError, match=message):
        rope_call(**changes)
