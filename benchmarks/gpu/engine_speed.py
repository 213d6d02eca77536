"""Steps of an 8B-shape engine with random weights: decode, prefill, both in one step; beside their bandwidth floor."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.bandwidth import measure_ceiling
from benchmarks.gpu.stage import Findings, Row, Setting
from benchmarks.gpu.timing import median_s
from engine.batch import BatchItem, build_batch, decode_runs, run_arrays
from engine.decode_graphs import CudaRecorder, GraphedDecoder, Recorder
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights, LayerWeights
from engine.kv_cache import PagedKV, allocate_kv, kv_block_bytes
from engine.model import Decoder
from engine.shared_prefixes import SharedRun
from engine.weights import random_weights
from kernels import fast

BLOCK_SIZE = 16
DTYPE = torch.bfloat16
ASKED_FLOOR_SHARE = {(64, 4096): 0.75}
LOGIT_TOLERANCE = 0.05  # bf16, whose roundings add up over the layers
MEMORY_FRACTION = 0.9  # of what is free, for KV

Batch = tuple[int, int]  # sequences, tokens of context each


def run(setting: Setting) -> Findings:
    findings, sizes = Findings(), setting.sizes
    ceiling = measure_ceiling(setting)
    decoder = new_decoder(sizes.shape, setting.device)
    weight_bytes = sum(tensor.nbytes for tensor in _read_weights(decoder.weights))
    findings.rows.append({"step": "weights", "num_bytes": weight_bytes, **ceiling._asdict()})
    kv, num_tokens = _memory(setting)
    for batch in sizes.engine_batches:
        row = _step_row(decoder, kv, batch, 0, num_tokens, setting)
        findings.rows.append(row)
        if "skipped" in row:
            continue
        floor_s = (weight_bytes + math.prod(batch) * kv_block_bytes(sizes.shape, 1, DTYPE)) / ceiling.bytes_per_s
        row |= {"floor_s": floor_s, "floor_share": floor_s / min(row["seconds"], row["graphed_s"])}
        if setting.is_gpu and batch in ASKED_FLOOR_SHARE:
            findings.ask(f"decode step {row['step']}", row["floor_share"], ASKED_FLOOR_SHARE[batch])
    findings.rows.append(_shared_row(decoder, kv, num_tokens, setting, findings))
    for batch in (sizes.engine_batches[-1], (0, 0)):
        findings.rows.append(_step_row(decoder, kv, batch, sizes.engine_chunk_tokens, num_tokens, setting))
    return findings


def new_decoder(shape: DecoderShape, device: torch.device) -> Decoder:
    """Every layer has memory of its own, but the values of the first: 8 billion random numbers would take minutes."""
    one = random_weights(replace(shape, num_layers=1), seed=0, dtype=DTYPE, device=device)
    layers = tuple(_copied(one.layers[0]) for _ in range(shape.num_layers))
    return Decoder(shape, replace(one, layers=layers), fast)


def _copied(layer: LayerWeights) -> LayerWeights:
    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=replace(attention, qkv=attention.qkv.clone(), out=attention.out.clone()),
        mlp=replace(mlp, gate_up=mlp.gate_up.clone(), down=mlp.down.clone()),
    )


def _read_weights(weights: DecoderWeights) -> list[Tensor]:
    """What a decode step reads: all but the embedding, of which it reads a row a token."""
    per_layer = [[w.attention.qkv, w.attention.out, w.mlp.gate_up, w.mlp.down] for w in weights.layers]
    return [*(tensor for layer in per_layer for tensor in layer), weights.head]


def _memory(setting: Setting) -> tuple[PagedKV, int]:
    """KV memory for the largest batch, or as much as there is room for, full of random numbers; and its tokens."""
    sizes = setting.sizes
    wanted = max(num_seqs * (length + BLOCK_SIZE) for num_seqs, length in sizes.engine_batches)
    num_blocks = (wanted + sizes.engine_chunk_tokens) // BLOCK_SIZE + 2
    if setting.is_gpu:
        free_bytes, _ = torch.cuda.mem_get_info(setting.device)
        num_blocks = min(
            num_blocks, int(MEMORY_FRACTION * free_bytes) // kv_block_bytes(sizes.shape, BLOCK_SIZE, DTYPE)
        )
    kv = allocate_kv(sizes.shape, num_blocks, BLOCK_SIZE, DTYPE, setting.device)
    for cache in (kv.key, kv.value):
        for layer in cache:
            layer.normal_()
    return kv, num_blocks * BLOCK_SIZE


def _shared_row(decoder: Decoder, kv: PagedKV, num_tokens: int, setting: Setting, findings: Findings) -> Row:
    """Times decodes that share a prefix, read once for all (also as a graph) and by each for itself; the logits must be
    the same.
    """
    num_seqs, shared_tokens, own_tokens = setting.sizes.shared_batch
    row: Row = {"step": f"{num_seqs} x {own_tokens:,} decode behind {shared_tokens:,} shared"}
    num_shared, num_own = shared_tokens // BLOCK_SIZE, -(-own_tokens // BLOCK_SIZE)
    num_blocks = num_shared + num_seqs * num_own
    if num_blocks * BLOCK_SIZE > num_tokens:
        return row | {"skipped": f"{num_blocks * BLOCK_SIZE:,} tokens of KV, there is room for {num_tokens:,}"}
    order = torch.randperm(num_tokens // BLOCK_SIZE)[:num_blocks]
    tables = [[*order[:num_shared].tolist(), *own.tolist()] for own in order[num_shared:].split(num_own)]
    items = [BatchItem([1], shared_tokens + own_tokens - 1, [table], True) for table in tables]
    apart = build_batch(items, BLOCK_SIZE, setting.device)
    (group,) = apart.groups
    whole = [SharedRun(0, num_seqs, num_shared)]
    arrays = [torch.from_numpy(array).to(setting.device) for array in run_arrays(whole, BLOCK_SIZE)]
    runs = decode_runs(whole, group.decode_block_tables, apart.decode_num_kv_tokens, arrays)
    together = replace(apart, groups=(replace(group, decode_runs=runs),))
    graphed = GraphedDecoder(decoder, kv, [num_seqs], num_shared + num_own, _recorder(setting), (True,))
    logits = decoder.forward(apart, kv)
    steps = {"seconds": (decoder, together), "graphed_s": (graphed, together), "apart_s": (decoder, apart)}
    for name, (stepping, batch) in steps.items():
        difference = float((stepping.forward(batch, kv) - logits).norm() / logits.norm())
        if not difference < LOGIT_TOLERANCE:
            findings.failures.append(f"{row['step']}, {name}: logits differ by {difference:.3g} of their norm")
        row[name] = median_s(partial(stepping.forward, batch, kv), setting.device, setting.sizes.num_runs)
        row |= {"logit_difference": difference} if name == "seconds" else {}
    return row


def _recorder(setting: Setting) -> Recorder:
    return CudaRecorder() if setting.is_gpu else lambda run: run


def _step_row(decoder: Decoder, kv: PagedKV, batch: Batch, chunk_tokens: int, num_tokens: int, setting: Setting) -> Row:
    """Times `batch` decodes together with a prompt's first chunk of `chunk_tokens`; decodes alone also as a graph."""
    num_seqs, length = batch
    parts = [f"{num_seqs} x {length:,} decode"] * bool(num_seqs) + [f"{chunk_tokens:,} prefill"] * bool(chunk_tokens)
    row: Row = {"step": " + ".join(parts)}
    blocks_each, chunk_blocks = -(-length // BLOCK_SIZE), -(-chunk_tokens // BLOCK_SIZE)
    num_blocks = num_seqs * blocks_each + chunk_blocks
    if num_blocks * BLOCK_SIZE > num_tokens:
        return row | {"skipped": f"{num_blocks * BLOCK_SIZE:,} tokens of KV, there is room for {num_tokens:,}"}
    order = torch.randperm(num_tokens // BLOCK_SIZE).tolist()
    items = [
        BatchItem([1], length - 1, [order[row * blocks_each : (row + 1) * blocks_each]], True)
        for row in range(num_seqs)
    ]
    if chunk_tokens:
        items.append(BatchItem([1] * chunk_tokens, 0, [order[num_blocks - chunk_blocks : num_blocks]], True))
    packed = build_batch(items, BLOCK_SIZE, setting.device)
    seconds = median_s(lambda: decoder.forward(packed, kv), setting.device, setting.sizes.num_runs)
    row |= {"seconds": seconds, "tokens_per_s": (num_seqs + chunk_tokens) / seconds}
    if not chunk_tokens:
        graphed = GraphedDecoder(decoder, kv, [num_seqs], blocks_each, _recorder(setting))
        row["graphed_s"] = median_s(lambda: graphed.forward(packed, kv), setting.device, setting.sizes.num_runs)
    return row
