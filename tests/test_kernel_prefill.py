"""Paged prefill attention in Triton equals fp64 torch: chunks of any length over any cached prefix, causal, windowed.

It runs in Triton's interpreter (tests/conftest.py): a few programs a case.
"""

import pytest
import torch
from paged_batch import CONTEXTS, TOLERANCE, PagedBatch, uninitialised_memory_is_nan
from pairwise import pairwise
from torch import Tensor

from kernels import reference
from kernels.prefill_attention import prefill_attention, prefill_config

CHUNKS = {  # queries, by tokens in the sequence
    "whole": lambda num_kv: min(num_kv, 18),
    "tail": lambda num_kv: -(-min(num_kv, 36) // 3),
    "one token": lambda num_kv: 1,
}
CASES = pairwise(
    {
        "head_dim": [64, 80, 96, 128, 192, 256],
        "block_size": [1, 8, 16, 48, 256],
        "context": list(CONTEXTS),
        "group": [1, 4, 7],
        "chunk": list(CHUNKS),
        "window": [None, 1, 100],
        "dtype": [torch.float16, torch.bfloat16],
        "num_kv_heads": [1, 2],
        "table_dtype": [torch.int64, torch.int32],
    }
)
SMALL_TILE_CASES = pairwise(
    {
        "head_dim": [64, 80],
        "block_size": [1, 3, 16],
        "context": ["B", "3 B + 5"],
        "group": [3, 18],
        "chunk": ["whole", "tail"],
        "window": [None, 17],
        "dtype": [torch.float32],
        "num_kv_heads": [1],
        "table_dtype": [torch.int64],
    }
)


def expected(query: Tensor, batch: PagedBatch, query_start: Tensor, window: int | None) -> Tensor:
    tables, lengths = batch.block_tables.long(), batch.num_kv_tokens
    scale = query.shape[-1] ** -0.5
    return reference.prefill_attention(
        query.double(), *batch.caches.double(), tables, query_start, lengths, scale, window
    )


@pytest.mark.parametrize("case", CASES + SMALL_TILE_CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_prefill_equals_fp64(case):
    head_dim, block_size, window, dtype = case["head_dim"], case["block_size"], case["window"], case["dtype"]
    context = CONTEXTS[case["context"]](block_size)
    num_kv_tokens = [context, 3, -(-context // 3)]
    num_queries = [CHUNKS[case["chunk"]](context), 0, -(-context // 9)]  # an empty chunk between two others
    query_start = torch.tensor([0, *num_queries]).cumsum(0)
    batch = PagedBatch(num_kv_tokens, block_size, (case["num_kv_heads"], head_dim), dtype)
    query = batch.uniform(sum(num_queries), case["num_kv_heads"] * case["group"], head_dim) * 4
    right = expected(query, batch, query_start, window)
    if window is not None:
        batch.forget_before((batch.num_kv_tokens - torch.tensor(num_queries) - window + 1).tolist())

    with uninitialised_memory_is_nan():
        mixed = prefill_attention(
            query,
            *batch.caches,
            batch.block_tables.to(case["table_dtype"]),
            query_start,
            batch.num_kv_tokens,
            head_dim**-0.5,
            window,
        )

    assert mixed.dtype == dtype
    assert (mixed.double() - right).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [None, 7])
def test_kv_heads_may_have_tables_and_lengths_of_their_own(window):
    """Chunks of 4 and 3 over what each of two heads has kept: as two models of one KV head each would see it."""
    batch = PagedBatch([37, 4, 9, 20], 8, (2, 16), torch.float32)
    tables, lengths = batch.by_heads(2)
    query, starts = batch.uniform(7, 4, 16), torch.tensor([0, 4, 7])
    right = [
        reference.prefill_attention(
            query[:, 2 * head : 2 * head + 2],
            *batch.caches[:, :, :, head : head + 1],
            tables[:, head],
            starts,
            lengths[:, head],
            0.25,
            window,
        )
        for head in range(2)
    ]

    with uninitialised_memory_is_nan():
        mixed = prefill_attention(query, *batch.caches, tables, starts, lengths, 0.25, window)

    assert (mixed - torch.cat(right, dim=1)).abs().max() < 1e-5


@pytest.mark.parametrize("num_queries", [[1], [22, 1, 1, 9], [0, 0, 5, 0], [1] * 7, [16, 16]])
def test_every_chunk_gets_its_tiles(num_queries):
    """Values that name their sequence: a tile of the wrong one, or none, shows."""
    query_start = torch.tensor([0, *num_queries]).cumsum(0)
    batch = PagedBatch([num + 2 for num in num_queries], 8, (1, 16), torch.float32)
    batch.caches[0] = 0
    for seq, num in enumerate(num_queries):
        batch.caches[1, batch.block_tables[seq, : -(-(num + 2) // 8)]] = seq

    with uninitialised_memory_is_nan():
        mixed = prefill_attention(
            torch.ones(sum(num_queries), 3, 16), *batch.caches, batch.block_tables, query_start, batch.num_kv_tokens, 1
        )

    owner = torch.arange(len(num_queries)).repeat_interleave(torch.tensor(num_queries))
    assert (mixed - owner[:, None, None]).abs().max() < 1e-5


@pytest.mark.parametrize("window", [1, 20])
def test_late_rows_of_a_tile_see_nothing_of_its_first_keys(window):
    """70 queries in one tile, keys 32 at a time: a row's maximum is still -inf after tiles that others see."""
    batch = PagedBatch([70], 16, (1, 128), torch.float16)
    query, query_start = batch.uniform(70, 1, 128), torch.tensor([0, 70])

    mixed = prefill_attention(
        query, *batch.caches, batch.block_tables, query_start, batch.num_kv_tokens, 128**-0.5, window
    )

    assert (mixed.double() - expected(query, batch, query_start, window)).abs().max() < TOLERANCE[torch.float16]


def test_no_tokens_give_no_rows():
    batch = PagedBatch([3], 8, (1, 64), torch.float32)
    nothing = torch.zeros(0, 2, 64)

    mixed = prefill_attention(
        nothing, *batch.caches, batch.block_tables, torch.tensor([0, 0]), batch.num_kv_tokens, 1.0
    )

    assert mixed.shape == (0, 2, 64)


def test_tiles_follow_from_the_shape():
    assert prefill_config(128, 4, 16).constexprs["TILE_ROWS"] == 128
    assert prefill_config(256, 8, 16).constexprs["TILE_ROWS"] == 64
    assert prefill_config(128, 4, 16, element_bytes=4).constexprs["TILE_ROWS"] == 16
    assert prefill_config(128, 4, 16, aligned=False).constexprs["TILE_ROWS"] == 16


def test_starts_that_do_not_fit_the_sequences_are_refused():
    batch = PagedBatch([3], 8, (1, 64), torch.float32)

    with pytest.raises(ValueError, match=r"query_start is \[1\]; expected \[2\], one more than sequences"):
        prefill_attention(
            batch.uniform(3, 1, 64), *batch.caches, batch.block_tables, torch.tensor([0]), batch.num_kv_tokens, 1.0
        )
