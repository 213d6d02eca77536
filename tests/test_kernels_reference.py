"""The paged kernels equal dense attention in fp64, whatever the shapes, tables and garbage in unused memory."""

import pytest
import torch
from dense_reference import dense_attention
from torch import Tensor

from kernels.reference import (
    copy_blocks,
    decode_attention,
    gather_blocks,
    prefill_attention,
    scatter_blocks,
    write_kv,
)

SHAPES = [  # head_dim, num_kv_heads, query heads per KV head, block_size
    (64, 3, 3, 16),
    (80, 2, 1, 3),
    (96, 1, 7, 1),
    (64, 1, 7, 3),
    (80, 3, 3, 1),
    (96, 2, 1, 16),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


class PagedSequences:
    """Sequences with the awkward context lengths, written through shuffled block tables into NaN-filled caches."""

    def __init__(self, head_dim: int, num_kv_heads: int, block_size: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(head_dim * 1000 + block_size)
        self.num_kv_tokens = [1, max(1, block_size - 1), block_size, block_size + 1, 3 * block_size + 5]
        num_blocks = [-(-num // block_size) for num in self.num_kv_tokens]
        order = torch.randperm(sum(num_blocks) + 4, generator=generator)
        self.tables = order[: sum(num_blocks)].split(num_blocks)
        # Padding points at blocks that hold nothing but NaN.
        self.block_tables = torch.full((len(num_blocks), max(num_blocks)), int(order[-1]))
        self.k_cache, self.v_cache = torch.full(
            (2, len(order), block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype
        )
        self.keys, self.values = [], []
        for row, (table, num) in enumerate(zip(self.tables, self.num_kv_tokens, strict=True)):
            self.block_tables[row, : len(table)] = table
            key, value = torch.randn(2, num, num_kv_heads, head_dim, generator=generator).to(dtype)
            positions = torch.arange(num)
            slots = table[positions // block_size] * block_size + positions % block_size
            write_kv(key, value, self.k_cache, self.v_cache, slots)
            self.keys.append(key)
            self.values.append(value)

    def expected(self, row: int, query: Tensor, window: int | None) -> Tensor:
        """Dense fp64 attention of queries at the last positions of sequence `row`."""
        num = self.num_kv_tokens[row]
        position = torch.arange(num - len(query), num)[:, None]
        distance = position - torch.arange(num)
        visible = (distance >= 0) & (distance < (window or num))
        return dense_attention(query.double(), self.keys[row].double(), self.values[row].double(), visible)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 4, 1000])
@pytest.mark.parametrize(("head_dim", "num_kv_heads", "group", "block_size"), SHAPES)
def test_decode_equals_dense_attention(head_dim, num_kv_heads, group, block_size, window, dtype):
    paged = PagedSequences(head_dim, num_kv_heads, block_size, dtype)
    num_seqs = len(paged.num_kv_tokens)
    query = torch.randn(num_seqs, num_kv_heads * group, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)

    mixed = decode_attention(
        query,
        paged.k_cache,
        paged.v_cache,
        paged.block_tables,
        torch.tensor(paged.num_kv_tokens),
        head_dim**-0.5,
        window,
    )

    for row in range(num_seqs):
        expected = paged.expected(row, query[row : row + 1], window)
        assert (mixed[row : row + 1].double() - expected).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("chunk", ["whole", "tail"])
@pytest.mark.parametrize(("head_dim", "num_kv_heads", "group", "block_size"), SHAPES)
def test_prefill_equals_dense_attention(head_dim, num_kv_heads, group, block_size, chunk, window, dtype):
    paged = PagedSequences(head_dim, num_kv_heads, block_size, dtype)
    num_queries = [num if chunk == "whole" else -(-num // 3) for num in paged.num_kv_tokens]
    query_start = torch.tensor([0, *num_queries]).cumsum(0)
    query = torch.randn(sum(num_queries), num_kv_heads * group, head_dim, generator=torch.Generator().manual_seed(2))
    query = query.to(dtype)

    mixed = prefill_attention(
        query,
        paged.k_cache,
        paged.v_cache,
        paged.block_tables,
        query_start,
        torch.tensor(paged.num_kv_tokens),
        head_dim**-0.5,
        window,
    )

    for row, (part, result) in enumerate(zip(query.split(num_queries), mixed.split(num_queries), strict=True)):
        assert (result.double() - paged.expected(row, part, window)).abs().max() < TOLERANCE[dtype]


def test_write_touches_its_slots_only():
    k_cache, v_cache = torch.zeros(2, 4, 3, 2, 8)
    key, value = torch.ones(2, 5, 2, 8) * torch.arange(1, 6)[:, None, None]
    slots = torch.tensor([11, 0, 4, 3, 7])

    write_kv(key, -value, k_cache, v_cache, slots)

    flat = k_cache.flatten(0, 1)[:, 0, 0]
    assert flat.tolist() == [2, 0, 0, 4, 3, 0, 0, 5, 0, 0, 0, 1]
    assert torch.equal(v_cache, -k_cache)


def test_copy_reads_every_source_before_it_writes():
    cache = torch.arange(4.0).reshape(1, 4, 1, 1, 1).repeat(2, 1, 3, 1, 1)

    copy_blocks(cache, torch.tensor([0, 1]), torch.tensor([1, 2]))  # a chain: 1 must get 0, 2 must get the old 1

    assert cache[:, :, 0, 0, 0].tolist() == [[0, 0, 1, 3]] * 2


def test_blocks_survive_the_way_out_and_back():
    device_pool, host_pool = torch.randn(2, 6, 3, 2, 4), torch.zeros(2, 5, 3, 2, 4)
    before = device_pool.clone()

    scatter_blocks(host_pool, torch.tensor([4, 0]), gather_blocks(device_pool, torch.tensor([5, 2])))
    device_pool[:, [5, 2]] = torch.nan
    scatter_blocks(device_pool, torch.tensor([2, 5]), gather_blocks(host_pool, torch.tensor([0, 4])))

    assert torch.equal(device_pool, before)
    assert host_pool[:, 1:4].eq(0).all()
