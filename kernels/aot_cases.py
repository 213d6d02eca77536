"""The kernels as an engine launches them, for the ahead-of-time check and docs/kernels.md: one plain list.

Sizes are those of Llama-3-8B in bf16 (32 query heads, 8 KV heads of 128, hidden 4,096, MLP 14,336) with blocks of 16
tokens, and a few odd ones beside.
"""

from dataclasses import replace

from kernels.aot import Case, Work
from kernels.aot_attention import attention_cases
from kernels.block_copy import TILE_WORDS, copy_units_kernel
from kernels.expert_product import expert_config, expert_product_kernel
from kernels.kv_write import write_kv_kernel, write_latents_kernel, write_tile
from kernels.rms_norm import MAX_HIDDEN, norm_tile, norm_warps, rms_norm_kernel
from kernels.rope_kv_write import rope_kv_write_kernel, rope_tile
from kernels.swiglu import TILE, swiglu_kernel

BF16_BYTES = 2
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN, MLP_WIDTH, BLOCK_SIZE, NUM_LAYERS = 32, 8, 128, 4096, 14336, 16, 32
NUM_TOKENS = 8192
LATENT_WIDTH = 576  # DeepSeek-V3
NUM_EXPERTS, NUM_ACTIVE, EXPERT_HIDDEN, EXPERT_WIDTH = 128, 8, 2048, 768  # Qwen3-30B-A3B


def cases() -> list[Case]:
    return [*_write_cases(), *_norm_cases(), *_expert_cases(), *_copy_cases(), *attention_cases()]


def _seldom(case: Case) -> Case:
    """One whose kernel the quick check sees on every target in another case."""
    return replace(case, num_quick_targets=2)


def _write_cases() -> list[Case]:
    return [
        _rope("rope_kv_write", NUM_HEADS, NUM_KV_HEADS, HEAD_DIM),
        _seldom(_rope("rope_kv_write, heads of 80", 7, 1, 80)),
        Case(
            "write_kv",
            write_kv_kernel,
            {
                **dict.fromkeys(("key", "value", "k_cache", "v_cache"), "*bf16"),
                "slot_mapping": "*i64",
                **dict.fromkeys(("key_stride", "value_stride"), "i32"),
            },
            write_tile(NUM_KV_HEADS * HEAD_DIM),
            Work(f"{NUM_TOKENS:,} tokens", 4 * NUM_TOKENS * NUM_KV_HEADS * HEAD_DIM * BF16_BYTES, 0),
        ),
        Case(
            "write_latents",
            write_latents_kernel,
            {"latents": "*bf16", "cache": "*bf16", "slot_mapping": "*i64", "latent_stride": "i32"},
            write_tile(LATENT_WIDTH),
            Work(f"{NUM_TOKENS:,} tokens", 2 * NUM_TOKENS * LATENT_WIDTH * BF16_BYTES, 0),
            num_quick_targets=2,
        ),
    ]


def _rope(name: str, num_heads: int, num_kv_heads: int, head_dim: int) -> Case:
    moved = 2 * (num_heads + 2 * num_kv_heads) * head_dim * BF16_BYTES + 4 * head_dim + 8
    flops = 3 * (num_heads + num_kv_heads) * head_dim
    return Case(
        name,
        rope_kv_write_kernel,
        {
            "qkv": "*bf16",
            **dict.fromkeys(("cos", "sin"), "*fp32"),
            **dict.fromkeys(("k_cache", "v_cache"), "*bf16"),
            "slot_mapping": "*i64",
            "query": "*bf16",
            "qkv_stride": "i32",
        },
        rope_tile(num_heads, num_kv_heads, head_dim),
        Work(f"{NUM_TOKENS:,} tokens", NUM_TOKENS * moved, NUM_TOKENS * flops),
    )


def _norm_cases() -> list[Case]:
    return [
        _norm("rms_norm", HIDDEN, NUM_TOKENS, has_residual=False),
        _seldom(_norm("rms_norm of heads", HEAD_DIM, NUM_TOKENS * NUM_HEADS, has_residual=False)),
        _seldom(_norm("add_rms_norm", HIDDEN, NUM_TOKENS, has_residual=True)),
        _norm("add_rms_norm, widest", MAX_HIDDEN, NUM_TOKENS, has_residual=True),
        Case(
            "swiglu",
            swiglu_kernel,
            {"gate_up": "*bf16", "gated": "*bf16", "gate_up_stride": "i32", "width": "i32"},
            {"TILE": TILE},
            Work(f"{NUM_TOKENS:,} tokens", 3 * NUM_TOKENS * MLP_WIDTH * BF16_BYTES, 5 * NUM_TOKENS * MLP_WIDTH),
        ),
    ]


def _norm(name: str, hidden: int, num_rows: int, has_residual: bool) -> Case:
    num_elements = num_rows * hidden
    return Case(
        name,
        rms_norm_kernel,
        {
            **dict.fromkeys(("x", "residual", "weight", "normalised", "summed"), "*bf16"),
            "num_rows": "i32",
            "eps": "fp32",
        },
        {"HAS_RESIDUAL": has_residual, **norm_tile(hidden)},
        Work(
            f"{num_rows:,} rows of {hidden:,}",
            ((4 if has_residual else 2) * num_elements + hidden) * BF16_BYTES,
            (5 if has_residual else 4) * num_elements,
        ),
        num_warps=norm_warps(hidden),
    )


def _expert_cases() -> list[Case]:
    """Tiles depend on whether addresses are multiples of 16, as those of attention do."""
    return [
        _experts("expert_product", 64, "bf16", 2, num_quick_targets=1),
        _experts("expert_product of a prompt", NUM_TOKENS, "bf16", 2),
        _experts("expert_product, unaligned", NUM_TOKENS, "bf16", 2, is_aligned=False),
        _experts("expert_product, fp32", NUM_TOKENS, "fp32", 4),
    ]


def _experts(
    name: str, num_tokens: int, dtype: str, element_bytes: int, is_aligned: bool = True, num_quick_targets: int = 0
) -> Case:
    """Gate and up of all experts, each of which has rows."""
    num_pairs, num_out = num_tokens * NUM_ACTIVE, 2 * EXPERT_WIDTH
    config = expert_config(num_pairs, NUM_EXPERTS, EXPERT_HIDDEN, element_bytes, is_aligned)
    num_elements = NUM_EXPERTS * num_out * EXPERT_HIDDEN + num_tokens * EXPERT_HIDDEN + num_pairs * num_out
    return Case(
        name,
        expert_product_kernel,
        {
            **dict.fromkeys(("product_ptr", "x_ptr", "weights_ptr"), f"*{dtype}"),
            **dict.fromkeys(("rows_ptr", "starts_ptr"), "*i64"),
            **dict.fromkeys(("x_stride", "expert_stride", "num_experts", "num_out"), "i32"),
        },
        config.constexprs,
        Work(
            f"{num_tokens:,} tokens, {NUM_ACTIVE} of {NUM_EXPERTS} experts each",
            num_elements * element_bytes,
            2 * num_pairs * num_out * EXPERT_HIDDEN,
        ),
        config.num_warps,
        config.num_stages,
        not_divisible=frozenset({"num_experts"}),
        divisibilities=(is_aligned,),
        num_quick_targets=num_quick_targets,
    )


def _copy_cases() -> list[Case]:
    num_copies = 256
    block_bytes = BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM * BF16_BYTES
    work = Work(
        f"{num_copies} blocks of {NUM_LAYERS} layers, keys or values", 2 * num_copies * NUM_LAYERS * block_bytes, 0
    )
    return [
        _copy("copy_units (copy, move, gather, scatter)", "*i64", work),
        _seldom(_copy("copy_units by bytes", "*u8", work)),
    ]


def _copy(name: str, words: str, work: Work) -> Case:
    return Case(
        name,
        copy_units_kernel,
        {
            **dict.fromkeys(("source", "target"), words),
            **dict.fromkeys(("source_ids", "target_ids"), "*i64"),
            **dict.fromkeys(("source_layer_stride", "target_layer_stride", "num_words"), "i32"),
        },
        {"TILE_WORDS": TILE_WORDS},
        work,
    )
