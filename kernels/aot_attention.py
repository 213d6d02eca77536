"""The attention kernels as an engine launches them, for the ahead-of-time check and docs/kernels.md.

Their tiles depend on whether addresses are multiples of 16 (`kernels/launch.py`), so each is a case of its own.
"""

from collections.abc import Callable, Mapping

from triton.runtime.jit import JITFunction

from kernels.aot import Case, Work
from kernels.cascade_attention import cascade_config, shared_prefix_kernel
from kernels.decode_attention import decode_config, decode_split_kernel
from kernels.launch import LaunchConfig
from kernels.mla_attention import (
    MAX_DECODE_ROWS,
    MAX_PREFILL_ROWS,
    mla_config,
    mla_decode_split_kernel,
    mla_prefill_kernel,
)
from kernels.prefill_attention import prefill_config, prefill_kernel
from kernels.splits import merge_constexprs, merge_splits_kernel

BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 16, 32, 8, 128
NUM_SEQS, CONTEXT, OWN_CONTEXT, PREFILL_TOKENS, NUM_SPLITS = 64, 4096, 256, 8192, 8
LATENT_HEADS, LATENT_DIM, ROPE_DIM = 128, 512, 64  # DeepSeek-V3


def attention_cases() -> list[Case]:
    return [
        *_decode_cases(),
        *_prefill_cases(),
        *_cascade_cases(),
        *_latent_cases(),
        _merge("merge_splits", HEAD_DIM),
        _merge("merge_splits of latents", LATENT_DIM),
    ]


def _decode_cases() -> list[Case]:
    def work(num_kv_heads: int, group_size: int, head_dim: int, element_bytes: int) -> Work:
        num_tokens = NUM_SEQS * CONTEXT
        return Work(
            f"{NUM_SEQS} sequences of {CONTEXT:,} tokens",
            2 * num_tokens * num_kv_heads * head_dim * element_bytes,
            4 * num_tokens * num_kv_heads * group_size * head_dim,
        )

    return _shapes("decode_attention", decode_split_kernel, decode_config, work)


def _prefill_cases() -> list[Case]:
    def work(num_kv_heads: int, group_size: int, head_dim: int, element_bytes: int) -> Work:
        num_heads = num_kv_heads * group_size
        return Work(
            f"a prompt of {PREFILL_TOKENS:,} tokens",
            2 * PREFILL_TOKENS * (num_heads + num_kv_heads) * head_dim * element_bytes,
            2 * PREFILL_TOKENS * (PREFILL_TOKENS + 1) * num_heads * head_dim,
        )

    return _shapes("prefill_attention", prefill_kernel, prefill_config, work)


def _shapes(
    name: str, kernel: JITFunction, config: Callable[..., LaunchConfig], work: Callable[[int, int, int, int], Work]
) -> list[Case]:
    """The shape of Llama-3-8B, and those that need most registers."""
    group_size = NUM_HEADS // NUM_KV_HEADS
    llama_work = work(NUM_KV_HEADS, group_size, HEAD_DIM, 2)
    aligned, unaligned, fp32 = (
        config(HEAD_DIM, group_size, BLOCK_SIZE, element_bytes, is_aligned)
        for element_bytes, is_aligned in ((2, True), (2, False), (4, True))
    )
    return [
        attention_case(name, kernel, aligned, "bf16", llama_work, num_quick_targets=1),
        attention_case(f"{name}, unaligned", kernel, unaligned, "bf16", llama_work, is_aligned=False),
        attention_case(f"{name}, fp32", kernel, fp32, "fp32", work(NUM_KV_HEADS, group_size, HEAD_DIM, 4)),
        attention_case(f"{name}, 7 heads of 80", kernel, config(80, 7, BLOCK_SIZE), "fp16", work(1, 7, 80, 2)),
        attention_case(f"{name}, 71 heads of 256", kernel, config(256, 71, BLOCK_SIZE), "bf16", work(1, 71, 256, 2)),
    ]


def _cascade_cases() -> list[Case]:
    """Unaligned ones do not occur."""

    def case(
        suffix: str,
        num_kv_heads: int,
        group_size: int,
        head_dim: int,
        dtype: str,
        element_bytes: int,
        num_quick_targets: int = 0,
    ) -> Case:
        num_rows = NUM_SEQS * group_size
        config = cascade_config(head_dim, group_size, num_rows, BLOCK_SIZE, element_bytes)
        num_tiles = -(-num_rows // config.constexprs["TILE_ROWS"])
        work = Work(
            f"{NUM_SEQS} sequences, {CONTEXT:,} tokens shared",
            2 * CONTEXT * num_kv_heads * head_dim * element_bytes * num_tiles,
            4 * CONTEXT * num_rows * num_kv_heads * head_dim,
        )
        return attention_case(
            f"cascade_decode_attention{suffix}",
            shared_prefix_kernel,
            config,
            dtype,
            work,
            num_quick_targets=num_quick_targets,
        )

    group_size = NUM_HEADS // NUM_KV_HEADS
    return [
        case("", NUM_KV_HEADS, group_size, HEAD_DIM, "bf16", 2, num_quick_targets=1),
        case(", fp32", NUM_KV_HEADS, group_size, HEAD_DIM, "fp32", 4),
        case(", 7 heads of 80", 1, 7, 80, "fp16", 2),
        case(", 71 heads of 256", 1, 71, 256, "bf16", 2),
        attention_case(
            "decode_attention behind a shared prefix",
            decode_split_kernel,
            decode_config(HEAD_DIM, group_size, BLOCK_SIZE, skips=True),
            "bf16",
            Work(
                f"{NUM_SEQS} sequences of {OWN_CONTEXT} more tokens",
                2 * NUM_SEQS * OWN_CONTEXT * NUM_KV_HEADS * HEAD_DIM * 2,
                4 * NUM_SEQS * OWN_CONTEXT * NUM_HEADS * HEAD_DIM,
            ),
        ),
    ]


def _latent_cases() -> list[Case]:
    width = LATENT_DIM + ROPE_DIM

    def decode_work(num_heads: int, element_bytes: int) -> Work:
        num_tokens = NUM_SEQS * CONTEXT
        return Work(
            f"{NUM_SEQS} sequences of {CONTEXT:,} tokens",
            num_tokens * width * element_bytes,
            2 * num_tokens * num_heads * (width + LATENT_DIM),
        )

    def prefill_work(num_heads: int, element_bytes: int) -> Work:
        return Work(
            f"a prompt of {PREFILL_TOKENS:,} tokens",
            PREFILL_TOKENS * (width + num_heads * (width + LATENT_DIM)) * element_bytes,
            PREFILL_TOKENS * (PREFILL_TOKENS + 1) * num_heads * (width + LATENT_DIM),
        )

    return [
        *_latent_shapes("mla_decode_attention", mla_decode_split_kernel, MAX_DECODE_ROWS, decode_work),
        *_latent_shapes("mla_prefill_attention", mla_prefill_kernel, MAX_PREFILL_ROWS, prefill_work),
    ]


def _latent_shapes(name: str, kernel: JITFunction, max_tile_rows: int, work: Callable[[int, int], Work]) -> list[Case]:
    """The shape of DeepSeek-V3, and of V2-Lite with its 16 heads."""
    aligned, few_heads, unaligned, fp32 = (
        mla_config(LATENT_DIM, ROPE_DIM, num_heads, BLOCK_SIZE, element_bytes, is_aligned, max_tile_rows)
        for num_heads, element_bytes, is_aligned in (
            (LATENT_HEADS, 2, True),
            (16, 2, True),
            (LATENT_HEADS, 2, False),
            (LATENT_HEADS, 4, True),
        )
    )
    deepseek_work = work(LATENT_HEADS, 2)
    return [
        attention_case(name, kernel, aligned, "bf16", deepseek_work, num_quick_targets=1),
        attention_case(f"{name}, 16 heads", kernel, few_heads, "bf16", work(16, 2)),
        attention_case(f"{name}, unaligned", kernel, unaligned, "bf16", deepseek_work, is_aligned=False),
        attention_case(f"{name}, fp32", kernel, fp32, "fp32", work(LATENT_HEADS, 4)),
    ]


def attention_case(
    name: str,
    kernel: JITFunction,
    config: LaunchConfig,
    dtype: str,
    work: Work,
    is_aligned: bool = True,
    num_quick_targets: int = 0,
) -> Case:
    return Case(
        name,
        kernel,
        {argument: _type(argument, dtype) for argument in kernel.arg_names if argument not in config.constexprs},
        config.constexprs,
        work,
        config.num_warps,
        config.num_stages,
        not_divisible=_UNKNOWN_INTEGERS,
        divisibilities=(is_aligned,),
        num_quick_targets=num_quick_targets,
    )


_UNKNOWN_INTEGERS = frozenset(
    {"num_heads", "num_seqs", "num_runs", "window", "split_tokens", "length_stride", "length_head_stride"}
)
_TYPES: Mapping[str, str] = {
    "mixes_ptr": "*fp32",
    "log_sums_ptr": "*fp32",
    "tables_ptr": "*i64",
    "starts_ptr": "*i64",
    "query_start_ptr": "*i64",
    "num_kv_tokens_ptr": "*i64",
    "num_shared_tokens_ptr": "*i64",
    "num_skipped_ptr": "*i64",
    "log2_scale": "fp32",
}


def _type(argument: str, dtype: str) -> str:
    """Of a run-time argument of the attention kernels, by its name."""
    return _TYPES.get(argument, f"*{dtype}" if argument.endswith("_ptr") else "i32")


def _merge(name: str, dim: int) -> Case:
    num_rows = NUM_SEQS * NUM_HEADS
    return Case(
        name,
        merge_splits_kernel,
        {"merged_ptr": "*bf16", "mixes_ptr": "*fp32", "log_sums_ptr": "*fp32", "num_splits": "i32"},
        merge_constexprs(dim),
        Work(
            f"{NUM_SPLITS} splits of {NUM_SEQS} sequences",
            num_rows * (4 * NUM_SPLITS * (dim + 1) + 2 * dim),
            3 * num_rows * NUM_SPLITS * dim,
        ),
    )
