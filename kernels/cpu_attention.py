"""Paged attention on a CPU: whole blocks are gathered a cache's worth at a time, KV heads are not repeated.

The signatures are those of `kernels.reference`, which says what is computed. What a step's block tables imply (which
slots are seen, the masks) is found once and serves every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels import reference

_GROUP_BYTES = 1 << 20
"""Keys and values gathered at a time: they should still be in the core's own cache when they are used."""

_TILE_QUERIES = 128
"""Queries of a prompt that attend together: keys after the last of them are not read."""


class CpuAttention:
    """The kernels of `kernels.reference` for the CPU, in any dtype that it has.

    Remembers what it found out about the last block tables of each window: layers that are given the same tensors
    share it. Tensors of one step must therefore not be changed in place afterwards.
    """

    write_kv = staticmethod(reference.write_kv)
    rope_kv_write = staticmethod(reference.rope_kv_write)
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    swiglu = staticmethod(reference.swiglu)

    def __init__(self) -> None:
        self._decodes: dict[int | None, _DecodeViews] = {}
        self._prefills: dict[int | None, _PrefillViews] = {}

    def decode_attention(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        num_kv_tokens: Tensor,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Attention of one query per sequence, the newest token, over its cached tokens. See `kernels.reference`."""
        views = self._decodes.get(window)
        if views is None or views.block_tables is not block_tables or views.num_kv_tokens is not num_kv_tokens:
            views = self._decodes[window] = _decode_views(block_tables, num_kv_tokens, k_cache, window)
        num_seqs, num_heads, head_dim = query.shape
        num_kv_heads = k_cache.shape[2]
        # The query heads of one KV head are rows of one small matrix: no repeated keys.
        grouped = query.reshape(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
        parts = [
            scaled_dot_product_attention(
                grouped[view.rows],
                view.read(k_cache).transpose(1, 2),
                view.read(v_cache).transpose(1, 2),
                attn_mask=view.mask,
                scale=scale,
            )
            for view in views.groups
        ]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return mixed.reshape(num_seqs, num_heads, head_dim)

    def prefill_attention(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        num_kv_tokens: Tensor,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Causal attention of chunks of queries over their prefix and themselves. See `kernels.reference`."""
        views = self._prefills.get(window)
        if views is None or views.block_tables is not block_tables or views.query_start is not query_start:
            views = self._prefills[window] = _prefill_views(
                block_tables, query_start, num_kv_tokens, k_cache.shape[1], window, query.dtype
            )
        mixed = torch.empty_like(query)
        for chunk in views.chunks:
            key, value = (
                cache.index_select(0, chunk.blocks).flatten(0, 1).transpose(0, 1) for cache in (k_cache, v_cache)
            )
            for tile in chunk.tiles:
                attended = scaled_dot_product_attention(
                    query[tile.rows].transpose(0, 1).unsqueeze(0),
                    key[:, tile.keys].unsqueeze(0),
                    value[:, tile.keys].unsqueeze(0),
                    attn_mask=tile.mask,
                    scale=scale,
                    enable_gqa=True,
                )
                mixed[tile.rows] = attended[0].transpose(0, 1)
        return mixed

    def mla_decode_attention(
        self,
        query: Tensor,
        latent_cache: Tensor,
        block_tables: Tensor,
        num_kv_tokens: Tensor,
        latent_dim: int,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """All heads over the one latent a token, as keys and as values. See `kernels.reference`."""
        cache = latent_cache.unsqueeze(2)
        mixed = self.decode_attention(query, cache, cache, block_tables, num_kv_tokens, scale, window)
        return mixed[..., :latent_dim]

    def mla_prefill_attention(
        self,
        query: Tensor,
        latent_cache: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        num_kv_tokens: Tensor,
        latent_dim: int,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """The same for chunks of queries. See `kernels.reference`."""
        cache = latent_cache.unsqueeze(2)
        mixed = self.prefill_attention(query, cache, cache, block_tables, query_start, num_kv_tokens, scale, window)
        return mixed[..., :latent_dim]


@dataclass(frozen=True, slots=True)
class _GroupView:
    """Decodes that are gathered together: blocks, slots of them that no query may see, and the mask that says so."""

    rows: slice
    blocks: Tensor  # int64 [num_rows * num_columns], one row's after another's
    hidden: Tensor  # int64 [num_hidden], among the gathered slots
    mask: Tensor  # [num_rows, 1, 1, num_columns * block_size]: 0 or -inf

    def read(self, cache: Tensor) -> Tensor:
        """[num_rows, num_slots, num_kv_heads, head_dim]; hidden slots are zero, whatever lies in memory."""
        slots = cache.index_select(0, self.blocks).flatten(0, 1)
        if len(self.hidden):
            slots.index_fill_(0, self.hidden, 0)
        return slots.unflatten(0, (len(self.mask), -1))


class _DecodeViews(NamedTuple):
    block_tables: Tensor
    num_kv_tokens: Tensor
    groups: list[_GroupView]


def _decode_views(block_tables: Tensor, num_kv_tokens: Tensor, cache: Tensor, window: int | None) -> _DecodeViews:
    """Groups of neighbouring sequences whose keys and values take at most _GROUP_BYTES, or of one sequence."""
    block_size = cache.shape[1]
    end = num_kv_tokens[:, None]
    first_visible = torch.zeros_like(end) if window is None else (end - window).clamp(min=0)
    first_block = first_visible // block_size
    num_columns = int((-(-end // block_size) - first_block).max())
    bytes_per_seq = 2 * num_columns * cache[0].numel() * cache.element_size()
    group_size = max(1, _GROUP_BYTES // bytes_per_seq)

    groups = []
    for start in range(0, len(end), group_size):
        rows = slice(start, min(start + group_size, len(end)))
        last_block = (end[rows] - 1) // block_size
        width = int((last_block - first_block[rows]).max()) + 1
        columns = first_block[rows] + torch.arange(width)
        blocks = block_tables[rows].gather(1, columns.minimum(last_block))
        positions = (columns[:, :, None] * block_size + torch.arange(block_size)).flatten(1)
        is_hidden = (positions >= end[rows]) | (positions < first_visible[rows])
        mask = torch.zeros(is_hidden.shape, dtype=cache.dtype).masked_fill_(is_hidden, -torch.inf)
        hidden = torch.nonzero(is_hidden.flatten()).flatten()
        groups.append(_GroupView(rows, blocks.flatten(), hidden, mask[:, None, None, :]))
    return _DecodeViews(block_tables, num_kv_tokens, groups)


class _Tile(NamedTuple):
    """Neighbouring queries, the keys that any of them sees, and which sees which: 0 or -inf [num_queries, num_keys]."""

    rows: slice
    keys: slice
    mask: Tensor


class _ChunkView(NamedTuple):
    blocks: Tensor  # int64, those that hold the chunk's keys
    tiles: list[_Tile]


class _PrefillViews(NamedTuple):
    block_tables: Tensor
    query_start: Tensor
    chunks: list[_ChunkView]


def _prefill_views(
    block_tables: Tensor,
    query_start: Tensor,
    num_kv_tokens: Tensor,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> _PrefillViews:
    starts, chunks = query_start.tolist(), []
    for seq, num_kv in enumerate(num_kv_tokens.tolist()):
        first_row, end_row = starts[seq], starts[seq + 1]
        first_position = num_kv - (end_row - first_row)
        first_key = 0 if window is None else max(0, first_position - window + 1)
        first_block = first_key // block_size
        blocks = block_tables[seq, first_block : -(-num_kv // block_size)]
        num_back = num_kv if window is None else window - 1  # keys that a tile's first query may see before itself
        staircase = _staircase(min(_TILE_QUERIES, end_row - first_row), num_back, window, dtype)
        tiles = []
        for row in range(first_row, end_row, _TILE_QUERIES):
            num_queries = min(_TILE_QUERIES, end_row - row)
            position = first_position + row - first_row
            back = min(num_back, position)
            first = position - back - first_block * block_size
            keys = slice(first, first + back + num_queries)
            mask = staircase[:num_queries, num_back - back : num_back + num_queries]
            tiles.append(_Tile(slice(row, row + num_queries), keys, mask))
        chunks.append(_ChunkView(blocks, tiles))
    return _PrefillViews(block_tables, query_start, chunks)


def _staircase(num_queries: int, num_back: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[num_queries, num_back + num_queries]: query i sees the key `num_back + i` and those before it, in its window."""
    keys = torch.arange(num_back + num_queries)
    newest = num_back + torch.arange(num_queries)[:, None]
    is_hidden = keys > newest
    if window is not None:
        is_hidden |= keys <= newest - window
    return torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf)
