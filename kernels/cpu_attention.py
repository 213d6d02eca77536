"""Paged attention on a CPU: whole blocks of keys are gathered, values are read where they lie, no head is repeated.

The signatures are those of `kernels.reference`, which says what is computed. What a step's block tables imply (which
slots are seen, the masks) is found once and serves every layer.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad, scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary

from kernels import reference
from kernels.cascade_reference import Part, merged
from kernels.cpu_cascade import attend_shared
from kernels.shared_runs import DecodeRuns, decode_by_runs

_GROUP_BYTES = 4 << 20
"""Keys gathered at a time by decodes: less was slower, more not faster. A group is padded to its longest sequence."""

_WIDTH_MULTIPLE = 32
"""Rows that are multiplied are padded to it: oneDNN's bf16 product reads on into the next row otherwise, where a NaN
spoils the sum although its weight is zero (2.13.0, AMX)."""

_TILE_QUERIES = 128
"""Queries of a prompt that attend together: keys after the last of them are not read."""


class CpuAttention:
    """The kernels of `kernels.reference` for the CPU, in any dtype that it has.

    Remembers what it found out about the last block tables of each window: layers that are given the same tensors
    share it. Tensors of one step must therefore not be changed in place afterwards.
    """

    write_kv = staticmethod(reference.write_kv)
    write_latents = staticmethod(reference.write_latents)
    rope_kv_write = staticmethod(reference.rope_kv_write)
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    swiglu = staticmethod(reference.swiglu)
    expert_product = staticmethod(reference.expert_product)
    copy_blocks = staticmethod(reference.copy_blocks)
    gather_blocks = staticmethod(reference.gather_blocks)
    scatter_blocks = staticmethod(reference.scatter_blocks)

    def __init__(self) -> None:
        # By block tables, then by window and shared blocks; what a step's tables imply goes with them.
        self._decodes: MutableMapping[Tensor, dict[tuple[int | None, int], _DecodeViews]] = WeakTensorKeyDictionary()
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
        if num_kv_tokens.dim() == 2:
            return reference.decode_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, scale, window)
        views = self._decode_views(query, k_cache, block_tables, num_kv_tokens, window, 0)
        spread = _spread(query, views.own)
        parts = [
            _mix(_scores(spread[view.rows], k_cache, view, scale).softmax(dim=-1), v_cache, view)
            for view in views.groups
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view_as(query)

    def cascade_decode_attention(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        num_kv_tokens: Tensor,
        runs: DecodeRuns,
        scale: float,
    ) -> Tensor:
        """Decode attention in which what a run shares is read once. See `kernels.reference`."""
        return decode_by_runs(self._decode_run, self.decode_attention, query, k_cache, v_cache, runs, scale)

    def _decode_run(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        num_kv_tokens: Tensor,
        num_shared_blocks: int,
        scale: float,
    ) -> Tensor:
        """Of sequences that share their first blocks, and each see more."""
        shared = attend_shared(query, k_cache, v_cache, block_tables[0, :num_shared_blocks], scale)
        views = self._decode_views(query, k_cache, block_tables, num_kv_tokens, None, num_shared_blocks)
        spread, mixes, log_sums = _spread(query, views.own), [], []
        for view in views.groups:
            scores = _scores(spread[view.rows], k_cache, view, scale)
            mixes.append(_mix(scores.softmax(dim=-1), v_cache, view))
            log_sums.append(scores.logsumexp(dim=-1))
        own = Part(torch.cat(mixes).view_as(query), torch.cat(log_sums))
        return merged([shared, own]).to(query.dtype)

    def _decode_views(
        self,
        query: Tensor,
        cache: Tensor,
        block_tables: Tensor,
        num_kv_tokens: Tensor,
        window: int | None,
        num_shared_blocks: int,
    ) -> _DecodeViews:
        """What the tables imply beyond their shared blocks, found out once for all layers of a step."""
        known = self._decodes.setdefault(block_tables, {})
        views = known.get((window, num_shared_blocks))
        if views is None or views.num_kv_tokens is not num_kv_tokens:
            num_own = num_kv_tokens - num_shared_blocks * cache.shape[1]
            groups = _group_views(query, cache, block_tables[:, num_shared_blocks:], num_own, window)
            own = torch.eye(cache.shape[2], dtype=query.dtype).view(cache.shape[2], 1, cache.shape[2], 1)
            views = known[window, num_shared_blocks] = _DecodeViews(num_kv_tokens, groups, own)
        return views

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
        if num_kv_tokens.dim() == 2:
            caches = k_cache, v_cache
            return reference.prefill_attention(query, *caches, block_tables, query_start, num_kv_tokens, scale, window)
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


class _GroupView(NamedTuple):
    """Decodes that are served together.

    blocks: int64 [num_rows * num_columns], one row's after another's; a row's slots are those of its columns
    first_hidden: all rows see the slots before this one
    is_hidden: bool [num_rows, 1, num_slots - first_hidden], slots from there on that the row's query does not see
    value_rows: int64 [num_rows * num_heads * num_slots], in the cache as rows of one head each; what is hidden reads
    a visible slot. value_starts: int64 [num_rows * num_heads], where each head's begin.
    """

    rows: slice
    blocks: Tensor
    first_hidden: int
    is_hidden: Tensor
    value_rows: Tensor
    value_starts: Tensor


class _DecodeViews(NamedTuple):
    """What one step's tables imply. own: [num_kv_heads, 1, num_kv_heads, 1], 1 where both are the same head."""

    num_kv_tokens: Tensor
    groups: list[_GroupView]
    own: Tensor


def _group_views(
    query: Tensor, cache: Tensor, block_tables: Tensor, num_kv_tokens: Tensor, window: int | None
) -> list[_GroupView]:
    """Neighbouring sequences whose keys take at most _GROUP_BYTES each time, at least one."""
    first = torch.zeros_like(num_kv_tokens) if window is None else (num_kv_tokens - window).clamp(min=0)
    most_blocks = int((num_kv_tokens - first).max()) // cache.shape[1] + 2
    num_together = max(1, _GROUP_BYTES // (most_blocks * cache[0].numel() * cache.element_size()))
    groups = []
    for start in range(0, len(block_tables), num_together):
        rows = slice(start, min(start + num_together, len(block_tables)))
        groups.append(_group_view(rows, block_tables[rows], first[rows, None], num_kv_tokens[rows, None], query, cache))
    return groups


def _group_view(
    rows: slice, block_tables: Tensor, first: Tensor, end: Tensor, query: Tensor, cache: Tensor
) -> _GroupView:
    """Each row sees the positions first … end - 1 (both int64 [num_rows, 1])."""
    _, block_size, num_kv_heads, _ = cache.shape
    first_block, last_block = first // block_size, (end - 1) // block_size
    columns = first_block + torch.arange(int((last_block - first_block).max()) + 1)
    blocks = block_tables.gather(1, columns.minimum(last_block))
    offsets = torch.arange(block_size)
    positions = (columns.unsqueeze(2) * block_size + offsets).flatten(1)
    is_hidden = (positions < first) | (positions >= end)

    slots = (blocks.unsqueeze(2) * block_size + offsets).flatten(1)
    visible = (first % block_size).expand_as(slots)  # the column of one that is
    slots = torch.where(is_hidden, slots.gather(1, visible), slots)
    by_head = slots.unsqueeze(1) * num_kv_heads + torch.arange(num_kv_heads).unsqueeze(1)
    value_rows = by_head.repeat_interleave(query.shape[1] // num_kv_heads, dim=1)
    value_starts = torch.arange(0, value_rows.numel(), slots.shape[1])
    first_hidden = int((~is_hidden.any(dim=0)).cumprod(dim=0).sum())
    hidden_part = is_hidden[:, first_hidden:].unsqueeze(1)
    return _GroupView(rows, blocks.flatten(), first_hidden, hidden_part, value_rows.flatten(), value_starts)


def _spread(query: Tensor, own: Tensor) -> Tensor:
    """[num_seqs, num_heads, num_kv_heads * head_dim]: each head in the columns of its KV head, zero elsewhere.

    So one product with a token's keys of all heads, as they lie in memory, gives the scores of all heads. That is
    num_kv_heads times the multiplications, and was faster than to sort the keys by head at 1 to 32 KV heads.
    """
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = len(own)
    grouped = query.reshape(num_seqs, num_kv_heads, num_heads // num_kv_heads, 1, head_dim)
    return _padded((grouped * own).view(num_seqs, num_heads, -1))


def _scores(spread: Tensor, k_cache: Tensor, view: _GroupView, scale: float) -> Tensor:
    """fp32 [num_rows, num_heads, num_slots]; -inf for what is hidden."""
    key = _padded(k_cache.index_select(0, view.blocks).flatten(2)).view(len(spread), -1, spread.shape[2])
    scores = torch.bmm(key, spread.transpose(1, 2)).transpose(1, 2).float().mul_(scale)
    # Hidden slots may hold anything, NaN too: their scores are overwritten.
    scores[..., view.first_hidden :].masked_fill_(view.is_hidden, -torch.inf)
    return scores


def _mix(share: Tensor, v_cache: Tensor, view: _GroupView) -> Tensor:
    """[num_rows * num_heads, head_dim]"""
    mixed: Tensor = embedding_bag(
        view.value_rows,
        v_cache.flatten(0, 2),
        view.value_starts,
        mode="sum",
        per_sample_weights=share.to(v_cache.dtype).flatten(),
    )
    return mixed


def _padded(rows: Tensor) -> Tensor:
    num_missing = -rows.shape[-1] % _WIDTH_MULTIPLE
    return pad(rows, (0, num_missing)) if num_missing else rows


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
