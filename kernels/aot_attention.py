"""The attention kernels as an engine launches them, for the ahead-of-time check and docs/kernels.md.

Their tiles depend on whether addresses are multiples of 16 (`kernels/launch.py`), so each is a case of its own.
"""

from collections.abc import Callable, Mapping

from triton.runtime.jit import JITFunction

from kernels.aot import Case, Work
from kernels.decode_attention import decode_config, decode_split_kernel
from kernels.launch import LaunchConfig
from kernels.prefill_attention import prefill_config, prefill_kernel
from kernels.splits import merge_constexprs, merge_splits_kernel

BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 16, 32, 8, 128
NUM_SEQS, CONTEXT, PREFILL_TOKENS, NUM_SPLITS = 64, 4096, 8192, 8


def attention_cases() -> list[Case]:
    return [*_decode_cases(), *_prefill_cases(), _merge("merge_splits", HEAD_DIM)]


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
    return [
        _case(f"{name}{suffix}", kernel, config(head_dim, group_size, BLOCK_SIZE, element_bytes, aligned), dtype, given, aligned)
        for suffix, num_kv_heads, group_size, head_dim, dtype, element_bytes, aligned in (
            ("", NUM_KV_HEADS, NUM_HEADS // NUM_KV_HEADS, HEAD_DIM, "bf16", 2, True),
            (", heads of 80", 1, 7, 80, "fp16", 2, True),
            (", heads of 256", 1, 71, 256, "bf16", 2, True),
            (", unaligned", NUM_KV_HEADS, NUM_HEADS // NUM_KV_HEADS, HEAD_DIM, "bf16", 2, False),
            (", fp32", NUM_KV_HEADS, NUM_HEADS // NUM_KV_HEADS, HEAD_DIM, "fp32", 4, True),
        )
        for given in [work(num_kv_heads, group_size, head_dim, element_bytes)]
    ]


def _case(name: str, kernel: JITFunction, config: LaunchConfig, dtype: str, work: Work, aligned: bool) -> Case:
    return Case(
        name,
        kernel,
        {argument: _type(argument, dtype) for argument in kernel.arg_names if argument not in config.constexprs},
        config.constexprs,
        work,
        config.num_warps,
        config.num_stages,
        not_divisible=_UNKNOWN_INTEGERS,
        divisibilities=(aligned,),
    )


_UNKNOWN_INTEGERS = frozenset({"num_heads", "num_seqs", "window", "num_skipped", "split_tokens"})
_TYPES: Mapping[str, str] = {
    "mixes_ptr": "*fp32",
    "log_sums_ptr": "*fp32",
    "tables_ptr": "*i64",
    "query_start_ptr": "*i64",
    "num_kv_tokens_ptr": "*i64",
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
