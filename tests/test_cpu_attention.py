"""The CPU's attention equals the reference kernels: many groups and tiles, ragged lengths, windows, garbage around."""

import pytest
import torch
from torch import Tensor

from kernels import cpu_attention, reference
from kernels.cpu_attention import CpuAttention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SHAPES = [  # head_dim, num_kv_heads, query heads per KV head, block_size
    (64, 3, 3, 16),
    (80, 1, 7, 3),
    (48, 2, 1, 1),
]
LENGTHS = [1, 2, 15, 16, 17, 300, 41, 160, 7]


class Paged:
    """Sequences of LENGTHS in shuffled blocks; every slot without a token, and all padding, is NaN."""

    def __init__(self, head_dim: int, num_kv_heads: int, group: int, block_size: int, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(head_dim)
        num_blocks = [-(-num // block_size) for num in LENGTHS]
        order = torch.randperm(sum(num_blocks) + 1, generator=draw)
        self.block_tables = torch.full((len(LENGTHS), max(num_blocks)), int(order[-1]))
        cache = torch.full((2, len(order), block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype)
        for row, (blocks, num) in enumerate(zip(order[:-1].split(num_blocks), LENGTHS, strict=True)):
            self.block_tables[row, : len(blocks)] = blocks
            slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:num]
            kv = torch.randn(2, num, num_kv_heads, head_dim, generator=draw).to(dtype)
            reference.write_kv(kv[0], kv[1], cache[0], cache[1], slots)
        self.caches = (cache[0], cache[1])
        self.num_kv_tokens = torch.tensor(LENGTHS)
        self.scale = head_dim**-0.5
        self.query_shape = (num_kv_heads * group, head_dim)
        self._draw, self._dtype = draw, dtype

    def queries(self, num_rows: int) -> Tensor:
        return torch.randn(num_rows, *self.query_shape, generator=self._draw).to(self._dtype)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """So small that a step of these sizes has several groups, and its prompts several tiles."""
    monkeypatch.setattr(cpu_attention, "_GROUP_BYTES", 1 << 16)
    monkeypatch.setattr(cpu_attention, "_TILE_QUERIES", 32)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_decodes_equal_the_reference(shape, window, dtype):
    paged = Paged(*shape, dtype)
    rest = (*paged.caches, paged.block_tables, paged.num_kv_tokens, paged.scale, window)
    kernels, query = CpuAttention(), paged.queries(len(LENGTHS))

    mixed = kernels.decode_attention(query, *rest)

    assert (mixed - reference.decode_attention(query, *rest)).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 20, 100])
@pytest.mark.parametrize("share", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_equal_the_reference(shape, share, window, dtype):
    paged = Paged(*shape, dtype)
    num_queries = [-(-num // share) for num in LENGTHS]
    query_start = torch.tensor([0, *num_queries]).cumsum(0)
    rest = (*paged.caches, paged.block_tables, query_start, paged.num_kv_tokens, paged.scale, window)
    query = paged.queries(sum(num_queries))

    mixed = CpuAttention().prefill_attention(query, *rest)

    assert (mixed - reference.prefill_attention(query, *rest)).abs().max() < TOLERANCE[dtype]


def test_the_next_step_and_another_window_are_looked_at_afresh():
    paged, kernels = Paged(64, 3, 3, 16, torch.float32), CpuAttention()
    query = paged.queries(len(LENGTHS))
    for num_kv_tokens in (paged.num_kv_tokens, (paged.num_kv_tokens - 5).clamp(min=1)):
        for window in (None, 20, None):
            for layer in (paged.caches, tuple(cache * 2 for cache in paged.caches)):
                rest = (*layer, paged.block_tables, num_kv_tokens, paged.scale, window)
                expected = reference.decode_attention(query, *rest)
                assert (kernels.decode_attention(query, *rest) - expected).abs().max() < 1e-5
