"""Paged decode attention in Triton equals fp64 torch, whatever the shapes, splits, tables and garbage in unused memory.

It runs in Triton's interpreter (tests/conftest.py): a few programs a case.
"""

import pytest
import torch
from paged_batch import CONTEXTS, TOLERANCE, PagedBatch, uninitialised_memory_is_nan
from pairwise import pairwise
from torch import Tensor

from kernels import reference
from kernels.cpu_attention import CpuAttention
from kernels.decode_attention import decode_attention, decode_attention_in_splits, decode_config
from kernels.splits import SplitBuffers, SplitPlan, merge_splits, plan_splits

CASES = pairwise(
    {
        "head_dim": [64, 80, 96, 128, 192, 256],
        "block_size": [1, 8, 16, 48, 256],
        "context": list(CONTEXTS),
        "group": [1, 4, 7],
        "num_splits": [1, 3],
        "window": [None, 1, 20],
        "dtype": list(TOLERANCE),
        "num_kv_heads": [1, 2],
        "table_dtype": [torch.int64, torch.int32],
    }
)


def expected(query: Tensor, batch: PagedBatch, window: int | None) -> Tensor:
    caches = batch.caches.double()
    tables, lengths = batch.block_tables.long(), batch.num_kv_tokens
    return reference.decode_attention(query.double(), *caches, tables, lengths, query.shape[-1] ** -0.5, window)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_decode_equals_fp64(case):
    head_dim, block_size, window, dtype = case["head_dim"], case["block_size"], case["window"], case["dtype"]
    context = CONTEXTS[case["context"]](block_size)
    batch = PagedBatch([context, -(-context // 3)], block_size, (case["num_kv_heads"], head_dim), dtype)
    query = batch.uniform(2, case["num_kv_heads"] * case["group"], head_dim) * 4
    right = expected(query, batch, window)
    if window is not None:
        batch.forget_before((batch.num_kv_tokens - window).tolist())
    batch.block_tables = batch.block_tables.to(case["table_dtype"])
    splits = SplitPlan(case["num_splits"], -(-context // case["num_splits"]))

    with uninitialised_memory_is_nan():
        mixed = decode_attention_in_splits(
            query, *batch.caches, batch.block_tables, batch.num_kv_tokens, head_dim**-0.5, window, splits
        )

    assert mixed.dtype == dtype
    assert (mixed.double() - right).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [None, 9])
def test_kv_heads_may_have_tables_and_lengths_of_their_own(window):
    """What each of two heads has kept of two sequences: 37 and 1 tokens, 16 and 8."""
    batch = PagedBatch([37, 1, 16, 8], 8, (2, 64), torch.float32)
    tables, lengths = batch.by_heads(2)
    query, right = batch.uniform(2, 6, 64), torch.empty(2, 6, 64)
    for seq, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        num_kv = int(lengths[seq, head])
        positions = torch.arange(max(0, num_kv - (window or num_kv)), num_kv)
        keys, values = (cache[tables[seq, head, positions // 8], positions % 8, head] for cache in batch.caches)
        own = slice(3 * head, 3 * head + 3)
        right[seq, own] = (query[seq, own] @ keys.T / 8).softmax(dim=-1) @ values

    with uninitialised_memory_is_nan():
        mixed = decode_attention_in_splits(query, *batch.caches, tables, lengths, 1 / 8, window, SplitPlan(2, 20))

    assert (mixed - right).abs().max() < 1e-5
    for kernels in (reference, CpuAttention()):
        assert (
            kernels.decode_attention(query, *batch.caches, tables, lengths, 1 / 8, window) - right
        ).abs().max() < 1e-5


def test_short_sequences_leave_splits_empty_and_padding_rows_get_zeros():
    batch = PagedBatch([37, 1, 16], 16, (1, 64), torch.float32)
    query = batch.uniform(3, 2, 64)
    right = expected(query, batch, None)
    batch.num_kv_tokens[1] = 0  # a row of a CUDA graph that no sequence fills

    with uninitialised_memory_is_nan():
        mixed = decode_attention_in_splits(
            query, *batch.caches, batch.block_tables, batch.num_kv_tokens, 64**-0.5, None, SplitPlan(5, 16)
        )

    right[1] = 0
    assert (mixed - right).abs().max() < 1e-5


def test_splits_are_weighed_by_their_scores():
    mixes = torch.tensor([[1.0, 10.0], [4.0, 20.0], [torch.nan, torch.nan]])[:, None, None]  # 3 splits, 2 values
    log_sums = torch.tensor([1.0, 0.0, -torch.inf])[:, None, None]  # weights 2, 1, 0

    merged = merge_splits(SplitBuffers(mixes, log_sums), torch.float32)

    assert merged.flatten().tolist() == pytest.approx([(2 * 1 + 4) / 3, (2 * 10 + 20) / 3])


def test_addresses_past_two_to_the_31_are_reached(monkeypatch):
    block_size, head_dim = 16, 64
    num_blocks = 2**31 // (block_size * head_dim) + 40
    try:
        cache = torch.empty(num_blocks, block_size, 1, head_dim, dtype=torch.float16)  # 4 GiB, of which pages are used
    except RuntimeError:
        pytest.skip("the machine does not give 4 GiB of address space")
    # The interpreter copies arguments back in full, even onto themselves.
    monkeypatch.setattr(torch.UntypedStorage, "copy_", lambda self, source, non_blocking=False: self)
    batch = PagedBatch([40], block_size, (1, head_dim), torch.float16, num_caches=1)
    far = num_blocks - len(batch.caches[0])
    cache[far:] = batch.caches[0]
    tables = (batch.block_tables + far).int()
    query = batch.uniform(1, 2, head_dim)

    mixed = decode_attention(query, cache, cache, tables, batch.num_kv_tokens, head_dim**-0.5)

    batch.caches = batch.caches.expand(2, -1, -1, -1, -1)
    assert (mixed.double() - expected(query, batch, None)).abs().max() < TOLERANCE[torch.float16]


def test_caches_and_queries_may_be_views():
    batch = PagedBatch([21], 8, (2, 64), torch.float32)
    packed = batch.caches.movedim(0, 2).contiguous()  # keys and values of a slot side by side
    query = batch.uniform(1, 9, 64)[:, 3:7]

    mixed = decode_attention(query, *packed.unbind(2), batch.block_tables, batch.num_kv_tokens, 64**-0.5)

    assert (mixed - expected(query, batch, None)).abs().max() < 1e-5


def test_plan_fills_the_device_with_splits_of_bounded_length():
    # 132 processors want 528 programs.
    assert plan_splits(max_tokens=32_768, num_unsplit_programs=8, num_processors=132) == SplitPlan(64, 512)
    assert plan_splits(max_tokens=4_096, num_unsplit_programs=512, num_processors=132) == SplitPlan(2, 2_048)
    assert plan_splits(max_tokens=32_768, num_unsplit_programs=4_096, num_processors=132) == SplitPlan(8, 4_096)
    assert plan_splits(max_tokens=200, num_unsplit_programs=8, num_processors=132) == SplitPlan(1, 256)
    assert plan_splits(max_tokens=0, num_unsplit_programs=0, num_processors=1) == SplitPlan(1, 256)


@pytest.mark.parametrize(
    ("head_dim", "group_size", "element_bytes", "aligned", "tile"),
    [  # TILE_ROWS, TILE_DIM, TILE_KEYS
        (64, 3, 2, True, (16, 64, 64)),
        (80, 7, 2, True, (16, 128, 64)),
        (256, 71, 2, True, (32, 256, 32)),
        (128, 71, 2, True, (64, 128, 64)),
        (128, 71, 4, True, (16, 128, 16)),
        (128, 71, 2, False, (16, 128, 16)),
        (8, 1, 2, True, (16, 16, 64)),
    ],
)
def test_tiles_follow_from_the_shape(head_dim, group_size, element_bytes, aligned, tile):
    constexprs = decode_config(head_dim, group_size, 16, element_bytes, aligned).constexprs

    assert tuple(constexprs[name] for name in ("TILE_ROWS", "TILE_DIM", "TILE_KEYS")) == tile


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": torch.zeros(1, 4, 32)}, r"query is \[1, 4, 32\]; expected \[rows, num_heads, 64\] by the caches"),
        ({"query": torch.zeros(1, 5, 64)}, "query has 5 heads; expected a multiple of the caches' 2 KV heads"),
        ({"query": torch.zeros(2, 4, 64)}, r"query has 2 rows; expected one for each of 1 sequences"),
        ({"query": torch.zeros(1, 4, 64).half()}, "k_cache is torch.float32; expected that of query, torch.float16"),
        ({"query": torch.zeros(1, 4, 128)[..., ::2]}, "query has stride 2 in its last dimension; expected 1"),
        (
            {"v_cache": torch.zeros(3, 8, 2, 32)},
            r"v_cache is \[3, 8, 2, 32\]; expected that of k_cache, \[3, 8, 2, 64\]",
        ),
        ({"k_cache": torch.zeros(3, 8, 128)}, r"k_cache is \[3, 8, 128\]; expected \[num_blocks, block_size, num_kv_h"),
        ({"block_tables": torch.zeros(2, 3).long()}, r"block_tables is \[2, 3\]; expected \[1, max_blocks\]"),
        ({"block_tables": torch.zeros(1, 3)}, "block_tables is torch.float32; expected int64 or int32"),
        ({"num_kv_tokens": torch.tensor([[3]])}, r"num_kv_tokens is \[1, 1\]; expected \[num_seqs\], or with 2 heads"),
        (
            {"num_kv_tokens": torch.tensor([[3, 3]])},
            r"block_tables is \[1, 3\]; expected \[1, 2, max_blocks\] by num_kv",
        ),
        ({"window": 0}, "window is 0; expected None, or 1 and more: the token itself"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, said):
    arguments = {
        "query": torch.zeros(1, 4, 64),
        "k_cache": torch.zeros(3, 8, 2, 64),
        "v_cache": torch.zeros(3, 8, 2, 64),
        "block_tables": torch.zeros(1, 3).long(),
        "num_kv_tokens": torch.tensor([3]),
        "scale": 0.125,
    }

    with pytest.raises(ValueError, match=said):
        decode_attention(**arguments | change)


def test_heads_too_wide_are_refused():
    query, cache = torch.zeros(1, 1, 257), torch.zeros(1, 8, 1, 257)

    with pytest.raises(ValueError, match="head_dim is 257; expected at most 256"):
        decode_attention(query, cache, cache, torch.zeros(1, 1).long(), torch.tensor([3]), 1.0)
