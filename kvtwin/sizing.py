"""How much KV cache a device holds for a model, and what a step over it must cost at least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.hardware import Hardware
from core.model_shape import ModelShape
from kvtwin.lcm_sizing import lcm_figures
from kvtwin.memory_plan import (
    GIB,
    SizingOptions,
    block_bytes_per_gpu,
    check_fits,
    concurrency_seqs,
    group_block_bytes,
    minimum_tensor_parallel,
    pool_bytes,
    sequence_blocks,
    weight_bytes_per_gpu,
)
from kvtwin.sizing_screen import print_size

__all__ = ["SizingOptions", "decode_floor_s", "minimum_tensor_parallel", "pool_bytes", "print_size", "size"]

GB = 10**9


def size(model: ModelShape, hardware: Hardware, options: SizingOptions | None = None) -> dict[str, Any]:
    """Every sizing figure, its unit in its key; `_per_gpu` and the pool are one GPU's, the rest the whole model's.

    Raises InputError when one GPU of `tensor_parallel` cannot hold its weights and one sequence of `context_tokens`,
    and names the least degree that can.
    """
    options = options or SizingOptions()
    check_fits(model, hardware, options)
    return (
        _settings(model, hardware, options)
        | _model_figures(model, options)
        | _pool_figures(model, hardware, options)
        | lcm_figures(model, options, pool_bytes(model, hardware, options))
        | _cost_figures(model, hardware, options)
        | _seed_units_figures(model, hardware, options)
    )


def decode_floor_s(model: ModelShape, hardware: Hardware, options: SizingOptions) -> float:
    """The least time of a decode step: each GPU reads its weights and its share of all KV once at peak bandwidth."""
    weight_bytes = model.weight_bytes_read(options.num_seqs) / options.tensor_parallel
    kv_bytes = options.num_seqs * model.kv_bytes(options.context_tokens, options.kv_dtype_bytes)
    kv_share = model.kv_bytes_per_token_per_gpu(options.tensor_parallel) / model.kv_bytes_per_token()
    return (weight_bytes + kv_bytes * kv_share) / hardware.hbm_bytes_per_s


def _settings(model: ModelShape, hardware: Hardware, options: SizingOptions) -> dict[str, Any]:
    return {
        "model": model.name,
        "hardware": hardware.name,
        "context_tokens": options.context_tokens,
        "num_seqs": options.num_seqs,
        "block_size_tokens": options.block_size_tokens,
        "kv_dtype_bytes": options.kv_dtype_bytes,
        "tensor_parallel": options.tensor_parallel,
        "window_layers": options.window_layers,
        "memory_utilization_ratio": options.memory_utilization,
        "flops_utilization_ratio": options.flops_utilization,
        "bandwidth_utilization_ratio": options.bandwidth_utilization,
    }


def _model_figures(model: ModelShape, options: SizingOptions) -> dict[str, Any]:
    kv_bytes_per_token = model.kv_bytes_per_token(options.kv_dtype_bytes)
    crossover_tokens = model.weight_bytes() // kv_bytes_per_token
    return {
        "num_parameters": model.num_parameters(),
        "num_active_parameters": model.num_active_parameters(),
        "weight_bytes": model.weight_bytes(),
        "kv_bytes_per_token": kv_bytes_per_token,
        "kv_block_bytes": model.block_bytes(options.block_size_tokens, options.kv_dtype_bytes),
        "kv_sequence_windowed_bytes": model.kv_bytes(options.context_tokens, options.kv_dtype_bytes),
        "kv_sequence_full_bytes": options.context_tokens * kv_bytes_per_token,
        "crossover_tokens": crossover_tokens,
        "crossover_context_tokens": crossover_tokens // options.num_seqs,
        "uncached_work_ratio": (options.context_tokens + 1) / 2,
    }


def _pool_figures(model: ModelShape, hardware: Hardware, options: SizingOptions) -> dict[str, Any]:
    pool = pool_bytes(model, hardware, options)
    # A block here spans all layers, so that tokens and blocks mean the same whether windows are freed or not.
    num_blocks = pool // block_bytes_per_gpu(model, options)
    num_usable_blocks = num_blocks - options.null_block
    num_handed_out_blocks = pool // group_block_bytes(model, options) - options.null_block
    return {
        "memory_bytes": hardware.memory_bytes,
        "weight_bytes_per_gpu": weight_bytes_per_gpu(model, options),
        "activation_bytes": options.activation_bytes,
        "non_torch_bytes": options.non_torch_bytes,
        "cuda_graph_bytes": options.cuda_graph_bytes,
        "pool_bytes": pool,
        "kv_bytes_per_token_per_gpu": model.kv_bytes_per_token_per_gpu(options.tensor_parallel, options.kv_dtype_bytes),
        "num_blocks": num_blocks,
        "num_usable_blocks": num_usable_blocks,
        "capacity_tokens": num_blocks * options.block_size_tokens,
        "usable_capacity_tokens": num_usable_blocks * options.block_size_tokens,
        "concurrency_windowed_seqs": concurrency_seqs(model, hardware, replace(options, window_layers="windowed")),
        "concurrency_full_seqs": concurrency_seqs(model, hardware, replace(options, window_layers="full")),
        "max_num_seqs": num_handed_out_blocks // sequence_blocks(model, options),
    }


def _cost_figures(model: ModelShape, hardware: Hardware, options: SizingOptions) -> dict[str, Any]:
    """What compute and memory alone would take; launches, scheduling and communication come on top."""
    flops_per_s = hardware.bf16_flops * options.flops_utilization * options.tensor_parallel
    prompt_flops = model.linear_flops(options.context_tokens) + model.causal_attention_flops(options.context_tokens)
    floor_s = decode_floor_s(model, hardware, options)
    decode_s = floor_s / options.bandwidth_utilization
    # Each GPU moves its own share over its own link.
    link_bytes_per_token = model.kv_bytes_per_token_per_gpu(options.tensor_parallel, options.kv_dtype_bytes)
    recompute_s = model.linear_flops(1) / flops_per_s
    return {
        "ridge_flop_per_byte": hardware.ridge_flop_per_byte,
        "prefill_flop": prompt_flops,
        "prefill_s": prompt_flops / flops_per_s,
        "decode_floor_s": floor_s,
        "decode_s": decode_s,
        "decode_tokens_per_s": options.num_seqs / decode_s,
        "recompute_s_per_token": recompute_s,
        "swap_in_s_per_token": link_bytes_per_token / hardware.host_link_bytes_per_s,
        "break_even_link_bytes_per_s": link_bytes_per_token / recompute_s,
    }


def _seed_units_figures(model: ModelShape, hardware: Hardware, options: SizingOptions) -> dict[str, Any]:
    """Concurrency by the arithmetic of many articles, whole decimal GB over binary GiB, and the same in one unit."""
    spare_gb = round(hardware.nominal_memory_bytes / GB) - round(options.overhead_bytes / GB)
    room_gb = options.tensor_parallel * spare_gb - round(model.weight_bytes() / GB)
    sequence_bytes = model.kv_bytes(options.context_tokens, options.kv_dtype_bytes)
    return {
        "seed_units_seqs": room_gb / (sequence_bytes / GIB),
        "seed_strict_seqs": room_gb * GB / sequence_bytes,
    }
