"""How near the kernels come to what the device can do: its own copy and matrix product are measured first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.attention_rivals import decode_rivals, prefill_rivals
from benchmarks.gpu.paged import Paged
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.stage import Findings, Row, Setting
from benchmarks.gpu.timing import median_s
from kernels.block_copy import copy_blocks
from kernels.decode_attention import decode_attention, decode_attention_in_splits
from kernels.expert_product import expert_product
from kernels.kv_write import write_kv
from kernels.prefill_attention import prefill_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.splits import SplitPlan
from kernels.swap import gather_blocks, scatter_blocks
from kernels.swiglu import swiglu

ASKED_COPY_SHARE = 0.85  # where one call reads at least a GiB
ASKED_MATMUL_SHARE = 0.60
GIB = 2**30
BLOCK_SIZE = 16
DTYPE = torch.bfloat16


class Ceiling(NamedTuple):
    """What the device reached here: bytes read and written by a copy, and bf16 FLOPs of a matrix product."""

    bytes_per_s: float
    flops_per_s: float


class Call(NamedTuple):
    """A call to time, judged by the copy's rate or, where `by_flops`, by the matrix product's.

    `asked_ratio` of that is asked for; 0: nothing is.
    """

    name: str
    work: str
    run: Callable[[], Any]
    num_bytes: int
    flops: int = 0
    by_flops: bool = False
    asked_ratio: float = 0.0


def run(setting: Setting) -> Findings:
    findings = Findings()
    ceiling = measure_ceiling(setting)
    findings.rows.append({"name": "device", "work": "copy and matrix product", **ceiling._asdict()})
    for calls in (_copy_calls, _element_calls, _expert_calls, _decode_calls, _split_calls, _prefill_calls):
        for call in calls(setting):
            row = timed_row(call, ceiling, setting)
            findings.rows.append(row)
            if setting.is_gpu and call.asked_ratio:
                findings.ask(f"{call.name}, {call.work}", row["share"], call.asked_ratio)
        if setting.is_gpu:
            torch.cuda.empty_cache()
    return findings


def measure_ceiling(setting: Setting) -> Ceiling:
    sizes, device = setting.sizes, setting.device
    source = torch.zeros(sizes.copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = median_s(lambda: target.copy_(source), device, sizes.num_runs)
    a, b = (torch.randn(sizes.matmul_size, sizes.matmul_size, device=device).to(DTYPE) for _ in range(2))
    matmul_s = median_s(lambda: a @ b, device, sizes.num_runs)
    return Ceiling(2 * sizes.copied_bytes / copy_s, 2 * sizes.matmul_size**3 / matmul_s)


def timed_row(call: Call, ceiling: Ceiling, setting: Setting) -> Row:
    """The figures of one call; one that fails on this machine says so in its row."""
    row: Row = {"name": call.name, "work": call.work, "num_bytes": call.num_bytes, "flops": call.flops}
    try:
        seconds = median_s(call.run, setting.device, setting.sizes.num_runs)
    except Exception as error:  # of a rival's version that has another interface, say
        return row | {"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}", "share": 0.0}
    share = (
        call.flops / seconds / ceiling.flops_per_s if call.by_flops else call.num_bytes / seconds / ceiling.bytes_per_s
    )
    return row | {"seconds": seconds, "share": share, "share_of": "matrix product" if call.by_flops else "copy"}


def _asked(num_bytes_read: int) -> float:
    return ASKED_COPY_SHARE if num_bytes_read >= GIB else 0.0


# ---- what is timed --------------------------------------------------------------------------------------------------


def _copy_calls(setting: Setting) -> Iterator[Call]:
    """Blocks inside a pool, out of it and back, and new tokens into it: each reads `copied_bytes`."""
    shape, size, device = setting.sizes.shape, setting.sizes.copied_bytes, setting.device
    block = (BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    block_bytes = shape.num_layers * BLOCK_SIZE * shape.num_kv_heads * shape.head_dim * DTYPE.itemsize
    num_copies = max(1, size // block_bytes)
    pool = torch.randn(shape.num_layers, 3 * num_copies, *block, dtype=DTYPE, device=device)
    order = torch.randperm(3 * num_copies)
    sources, targets = order[:num_copies], order[num_copies : 2 * num_copies]
    staging = gather_blocks(pool, sources)
    moved, work = 2 * staging.nbytes, f"{num_copies:,} blocks of {shape.num_layers} layers"
    asked = _asked(staging.nbytes)
    yield Call("copy_blocks", work, lambda: copy_blocks(pool, sources, targets), moved, asked_ratio=asked)
    yield Call("gather_blocks", work, lambda: gather_blocks(pool, sources), moved, asked_ratio=asked)
    yield Call("scatter_blocks", work, lambda: scatter_blocks(pool, targets, staging), moved, asked_ratio=asked)

    layer = pool.flatten(0, 1)
    num_tokens = max(1, size // 2 // (block_bytes // shape.num_layers // BLOCK_SIZE))
    num_tokens = min(num_tokens, layer.shape[0] * BLOCK_SIZE)
    new = torch.randn(2, num_tokens, *block[1:], dtype=DTYPE, device=device)
    k_cache, v_cache = layer, torch.empty_like(layer)
    slots = torch.randperm(layer.shape[0] * BLOCK_SIZE, device=device)[:num_tokens]
    yield Call(
        "write_kv",
        f"{num_tokens:,} tokens",
        lambda: write_kv(new[0], new[1], k_cache, v_cache, slots),
        2 * new.nbytes,
        asked_ratio=_asked(new.nbytes),
    )


def _element_calls(setting: Setting) -> Iterator[Call]:
    """Norms, gate and rotation, at as many tokens as make the gate, the widest, read `copied_bytes`."""
    shape, device = setting.sizes.shape, setting.device
    num_tokens = max(2, setting.sizes.copied_bytes // (2 * shape.intermediate * DTYPE.itemsize))
    work = f"{num_tokens:,} tokens"
    x, residual = torch.randn(2, num_tokens, shape.hidden, device=device).to(DTYPE)
    weight = torch.ones(shape.hidden, dtype=DTYPE, device=device)
    yield Call("rms_norm", work, lambda: rms_norm(x, weight, 1e-5), 2 * x.nbytes)
    yield Call("add_rms_norm", work, lambda: add_rms_norm(x, residual, weight, 1e-5), 4 * x.nbytes)
    gate_up = torch.randn(num_tokens, 2 * shape.intermediate, device=device).to(DTYPE)
    yield Call("swiglu", work, lambda: swiglu(gate_up), gate_up.nbytes * 3 // 2)
    columns = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv = torch.randn(num_tokens, columns, device=device).to(DTYPE)
    angles = torch.rand(num_tokens, shape.head_dim // 2, device=device)
    cos, sin, slots = angles.cos(), angles.sin(), torch.randperm(num_tokens, device=device)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    caches = torch.zeros(2, num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim, dtype=DTYPE, device=device)
    yield Call(
        "rope_kv_write",
        work,
        lambda: rope_kv_write(qkv, cos, sin, caches[0], caches[1], slots),
        2 * qkv.nbytes + cos.nbytes + sin.nbytes,
    )


def _expert_calls(setting: Setting) -> Iterator[Call]:
    """Gate and up of a mixture, for a decode step and for a prompt: every token takes experts at random."""
    num_experts, num_active, hidden, width = setting.sizes.experts
    device = setting.device
    weights = torch.randn(num_experts, 2 * width, hidden, dtype=DTYPE, device=device)
    for num_tokens in setting.sizes.expert_tokens:
        x = torch.randn(num_tokens, hidden, dtype=DTYPE, device=device)
        chosen = torch.rand(num_tokens, num_experts, device=device).topk(num_active).indices
        by_expert, pairs = chosen.flatten().sort(stable=True)
        starts = torch.searchsorted(by_expert, torch.arange(num_experts + 1, device=device))
        num_bytes = len(by_expert.unique()) * weights[0].nbytes + x.nbytes + len(pairs) * 2 * width * DTYPE.itemsize
        yield Call(
            "expert_product",
            f"{num_tokens:,} tokens, {num_active} of {num_experts} experts each",
            lambda x=x, rows=pairs // num_active, starts=starts: expert_product(x, weights, rows, starts),
            num_bytes,
            4 * len(pairs) * width * hidden,
            by_flops=num_tokens == max(setting.sizes.expert_tokens),
        )


def _decode_calls(setting: Setting) -> Iterator[Call]:
    """One layer's decode attention, ours and the rivals'."""
    for num_seqs, length in setting.sizes.decode_batches:
        paged, query = _attention_inputs(setting.sizes, num_seqs, length, num_seqs, setting.device)
        scale = query.shape[2] ** -0.5
        num_bytes = 2 * num_seqs * length * paged.k_cache[0, 0].nbytes
        flops, work = 4 * length * query.numel(), f"{num_seqs} sequences of {length:,} tokens"
        yield Call(
            "decode_attention",
            work,
            lambda p=paged, q=query, s=scale: decode_attention(q, *p, s),
            num_bytes,
            flops,
            asked_ratio=_asked(num_bytes),
        )
        with_flex = setting.is_gpu and (num_seqs, length) == setting.sizes.flex_batch
        for name, rival in decode_rivals(paged, query, length, with_flex):
            yield Call(f"decode by {name}", work, rival, num_bytes, flops)


def _split_calls(setting: Setting) -> Iterator[Call]:
    """The longest single sequence, its context not split: what splitting gains."""
    length = max(length for num_seqs, length in setting.sizes.decode_batches if num_seqs == 1)
    paged, query = _attention_inputs(setting.sizes, 1, length, 1, setting.device)
    unsplit, scale = SplitPlan(1, length), query.shape[2] ** -0.5
    yield Call(
        "decode_attention, unsplit",
        f"1 sequence of {length:,} tokens",
        lambda: decode_attention_in_splits(query, *paged, scale, None, unsplit),
        2 * length * paged.k_cache[0, 0].nbytes,
    )


def _prefill_calls(setting: Setting) -> Iterator[Call]:
    """One prompt from its start."""
    length = setting.sizes.prefill_tokens
    paged, query = _attention_inputs(setting.sizes, 1, length, length, setting.device)
    start = torch.tensor([0, length], device=setting.device)
    flops = 4 * length * (length + 1) // 2 * query.shape[1] * query.shape[2]
    num_bytes = 2 * query.nbytes + 2 * length * paged.k_cache[0, 0].nbytes
    scale, work = query.shape[2] ** -0.5, f"a prompt of {length:,} tokens"
    k_cache, v_cache, tables, num_kv = paged
    yield Call(
        "prefill_attention",
        work,
        lambda: prefill_attention(query, k_cache, v_cache, tables, start, num_kv, scale),
        num_bytes,
        flops,
        by_flops=True,
        asked_ratio=ASKED_MATMUL_SHARE,
    )
    for name, rival in prefill_rivals(paged, query, with_flex=setting.is_gpu):
        yield Call(f"prefill by {name}", work, rival, num_bytes, flops, by_flops=True)


def _attention_inputs(
    sizes: Sizes, num_seqs: int, length: int, num_queries: int, device: torch.device
) -> tuple[Paged, torch.Tensor]:
    """Sequences of equal length in shuffled blocks, without padding: large ones are made fast."""
    shape = sizes.shape
    blocks_each = -(-length // BLOCK_SIZE)
    pool = (num_seqs * blocks_each, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    k_cache, v_cache = (torch.randn(pool, dtype=DTYPE, device=device) for _ in range(2))
    tables = torch.randperm(pool[0], device=device).view(num_seqs, blocks_each)
    query = torch.randn(num_queries, shape.num_heads, shape.head_dim, dtype=DTYPE, device=device)
    return Paged(k_cache, v_cache, tables, torch.full((num_seqs,), length, device=device)), query
