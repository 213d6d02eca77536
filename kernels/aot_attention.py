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
