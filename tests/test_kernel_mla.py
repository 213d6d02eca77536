"""Latent attention (MLA, absorbed) in Triton equals fp64 torch, decode in splits and prefill in chunks.

It runs in Triton's interpreter (tests/conftest.py): a few programs a case.
"""

import pytest
import torch
from paged_batch import CONTEXTS, TOLERANCE, PagedBatch, uninitialised_memory_is_nan
from pairwise import pairwise
from torch import Tensor

from kernels import reference
from kernels.mla_attention import (
    mla_config,
    mla_decode_attention,
    mla_decode_attention_in_splits,
    mla_prefill_attention,
)
from kernels.splits import SplitPlan

SHAPES = {
    "dims": [(512, 64), (256, 32), (96, 24), (40, 16)],  # latent_dim, rope_dim
    "num_heads": [1, 16, 18],
    "block_size": [1, 8, 48, 64],
    "context": list(CONTEXTS),
    "window": [None, 1, 30],
    "dtype": [torch.float16, torch.bfloat16],
}
DECODE_CASES = pairwise(SHAPES | {"num_splits": [1, 3], "table_dtype": [torch.int64, torch.int32]})
PREFILL_CASES = pairwise(SHAPES | {"num_heads": [1, 3, 18], "num_queries": [1, 4, 9]})
SCALE = 0.1  # of the width that keys had before they were compressed: not to be seen here


def test_the_reference_is_attention_over_the_latents():
    batch = PagedBatch([21], 8, (40,), torch.float32, num_caches=1)
    query = batch.uniform(1, 3, 40)
    latents = batch.caches[0, batch.block_tables[0, :3]].flatten(0, 1)[:21]

    mixed = reference.mla_decode_attention(query, batch.caches[0], batch.block_tables, batch.num_kv_tokens, 32, SCALE)

    weights = torch.softmax(SCALE * (query[0] @ latents.T), dim=-1)
    assert torch.allclose(mixed[0], weights @ latents[:, :32], atol=1e-6)


def case_id(case: dict) -> str:
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("case", DECODE_CASES, ids=case_id)
def test_decode_equals_fp64(case):
    (latent_dim, rope_dim), window, dtype = case["dims"], case["window"], case["dtype"]
    context = CONTEXTS[case["context"]](case["block_size"])
    batch = PagedBatch([context, -(-context // 3)], case["block_size"], (latent_dim + rope_dim,), dtype, num_caches=1)
    query = batch.uniform(2, case["num_heads"], latent_dim + rope_dim)
    right = reference.mla_decode_attention(
        query.double(),
        batch.caches[0].double(),
        batch.block_tables,
        batch.num_kv_tokens,
        latent_dim,
        SCALE,
        window,
    )
    if window is not None:
        batch.forget_before((batch.num_kv_tokens - window).tolist())
    splits = SplitPlan(case["num_splits"], -(-context // case["num_splits"]))

    with uninitialised_memory_is_nan():
        mixed = mla_decode_attention_in_splits(
            query,
            batch.caches[0],
            batch.block_tables.to(case["table_dtype"]),
            batch.num_kv_tokens,
            latent_dim,
            SCALE,
            window,
            splits,
        )

    assert_near(mixed, right, dtype)


@pytest.mark.parametrize("case", PREFILL_CASES, ids=case_id)
def test_prefill_equals_fp64(case):
    (latent_dim, rope_dim), window, dtype = case["dims"], case["window"], case["dtype"]
    context = CONTEXTS[case["context"]](case["block_size"])
    num_queries = [min(context, case["num_queries"]), 0, 1]
    query_start = torch.tensor([0, *num_queries]).cumsum(0)
    batch = PagedBatch([context, 2, 4], case["block_size"], (latent_dim + rope_dim,), dtype, num_caches=1)
    query = batch.uniform(sum(num_queries), case["num_heads"], latent_dim + rope_dim)
    right = reference.mla_prefill_attention(
        query.double(),
        batch.caches[0].double(),
        batch.block_tables,
        query_start,
        batch.num_kv_tokens,
        latent_dim,
        SCALE,
        window,
    )
    if window is not None:
        batch.forget_before((batch.num_kv_tokens - torch.tensor(num_queries) - window + 1).tolist())

    with uninitialised_memory_is_nan():
        mixed = mla_prefill_attention(
            query,
            batch.caches[0],
            batch.block_tables,
            query_start,
            batch.num_kv_tokens,
            latent_dim,
            SCALE,
            window,
        )

    assert_near(mixed, right, dtype)


def assert_near(mixed: Tensor, right: Tensor, dtype: torch.dtype) -> None:
    assert mixed.dtype == dtype
    assert mixed.shape == right.shape
    assert (mixed.double() - right).abs().max() < TOLERANCE[dtype]


def test_fp32_takes_the_smallest_tiles():
    batch = PagedBatch([19, 0, 5], 4, (40,), torch.float32, num_caches=1)
    query, cache = batch.uniform(3, 20, 40), batch.caches[0]
    right = reference.mla_decode_attention(
        query.double(), cache.double(), batch.block_tables, batch.num_kv_tokens.clamp(min=1), 32, SCALE
    )
    right[1] = 0  # no tokens: a row of a CUDA graph that no sequence fills

    mixed = mla_decode_attention(query, cache, batch.block_tables, batch.num_kv_tokens, 32, SCALE)

    assert mla_config(32, 8, 20, 4, element_bytes=4).constexprs["TILE_ROWS"] == 16
    assert_near(mixed, right, torch.float32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": torch.zeros(1, 4, 32)}, r"query is \[1, 4, 32\]; expected \[rows, num_heads, 40\] by the cache"),
        ({"latent_dim": 600}, "latent_dim is 600; expected at least 1, at most 512"),
        ({"latent_dim": 40}, "the cache is 0 wider than latent_dim; expected a rope_dim of at least 1, at most 64"),
        (
            {"latent_cache": torch.zeros(3, 8, 1, 40)},
            r"latent_cache is \[3, 8, 1, 40\]; expected \[num_blocks, block_s",
        ),
        (
            {"latent_cache": torch.zeros(3, 8, 40).half()},
            "latent_cache is torch.float16; expected that of query, torch.f",
        ),
        ({"window": -1}, "window is -1; expected None, or 1 and more"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, said):
    arguments = {
        "query": torch.zeros(1, 4, 40),
        "latent_cache": torch.zeros(3, 8, 40),
        "block_tables": torch.zeros(1, 3).long(),
        "num_kv_tokens": torch.tensor([3]),
        "latent_dim": 32,
        "scale": SCALE,
    }

    with pytest.raises(ValueError, match=said):
        mla_decode_attention(**arguments | change)
