"""How large everything is: for a GPU, and for a dry run in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.decoder_shape import DecoderShape


@dataclass(frozen=True)
class Sizes:
    """`head_dims`, `block_sizes`, `group_sizes` and `dtypes` span the grid of correctness checks, all with all.

    Batches are (number of sequences, context in tokens).
    """

    head_dims: tuple[int, ...]
    block_sizes: tuple[int, ...]
    group_sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    latent_dims: tuple[tuple[int, int], ...]  # of MLA, with the dimensions of the rotated key
    latent_heads: tuple[int, ...]
    num_processes: int  # that share the correctness checks; 0: none beside this one

    copied_bytes: int  # by one call of a copying kernel, read
    matmul_size: int
    decode_batches: tuple[tuple[int, int], ...]  # of the attention kernel alone
    flex_batch: tuple[int, int]  # of which FlexAttention is compiled, too
    prefill_tokens: int
    experts: tuple[int, int, int, int]  # of a mixture: how many, how many a token takes, hidden width, their own width
    expert_tokens: tuple[int, int]  # of a decode step, of a prompt
    num_runs: int  # timed ones, of which the median counts

    shape: DecoderShape  # of the engine
    engine_batches: tuple[tuple[int, int], ...]
    engine_chunk_tokens: int
    shared_batch: tuple[int, int, int]  # sequences, tokens that all share, tokens of each one's own
    overlap: tuple[str, ...]  # arguments of `kvtwin engine`, for the stage of that name
    pressed: tuple[str, ...]  # likewise, in a pool that is too small
    validation: tuple[str, ...]  # arguments of `kvtwin validate`


_VALIDATION = ("report=false", "engine.weights=random", "engine.shadow=true")

LLAMA_3_8B = DecoderShape(
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab_size=128256,
    max_positions=40_960,
    rope_base=500_000.0,
    tied=False,
)

GPU = Sizes(
    head_dims=(64, 80, 96, 128, 192, 256),
    block_sizes=(1, 8, 16, 48, 256),
    group_sizes=(1, 4, 7),
    dtypes=(torch.bfloat16, torch.float32),
    latent_dims=((512, 64), (256, 32)),
    latent_heads=(16, 128),
    num_processes=12,
    copied_bytes=2**30,
    matmul_size=8192,
    decode_batches=((1, 1024), (1, 32_768), (16, 4096), (64, 4096), (256, 1024), (256, 4096), (16, 32_768)),
    flex_batch=(64, 4096),
    prefill_tokens=8192,
    experts=(128, 8, 2048, 768),  # Qwen3-30B-A3B
    expert_tokens=(64, 8192),
    num_runs=20,
    shape=LLAMA_3_8B,
    engine_batches=((1, 1024), (1, 32_768), (4, 4096), (16, 1024), (16, 8192), (64, 1024), (64, 4096), (256, 1024)),
    engine_chunk_tokens=2048,
    shared_batch=(64, 4096, 256),
    overlap=("engine.device=cuda", "trace.limit=40", "pool.num_blocks=4000"),
    pressed=("engine.device=cuda", "trace.limit=40", "pool.num_blocks=200", "pool.host_blocks=400"),
    validation=(
        "+experiment=demo",  # 60 requests in a pool that evicts and preempts
        "engine.device=cuda",
        "engine.clock=wall",
        "trace.rate_scale=1",
        "preemption=swap",
        "pool.host_blocks=200",
        "validate.calibration.pool.num_blocks=60",
        *_VALIDATION,
    ),
)

DRY = Sizes(
    head_dims=(24,),
    block_sizes=(3,),
    group_sizes=(2,),
    dtypes=(torch.bfloat16,),
    latent_dims=((32, 16),),
    latent_heads=(3,),
    num_processes=0,
    copied_bytes=2**13,
    matmul_size=64,
    decode_batches=((1, 20), (2, 8)),
    flex_batch=(2, 8),
    prefill_tokens=16,
    experts=(3, 2, 32, 16),
    expert_tokens=(2, 5),
    num_runs=1,
    shape=DecoderShape(
        num_layers=2,
        hidden=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate=96,
        vocab_size=256,
        max_positions=256,
        tied=False,
    ),
    engine_batches=((2, 16),),
    engine_chunk_tokens=8,
    shared_batch=(2, 16, 3),
    overlap=("model=tiny", "engine.device=cpu", "trace.limit=5", "trace.length_scale=1/32", "pool.num_blocks=60"),
    pressed=(
        *("model=tiny", "engine.device=cpu", "trace.limit=5", "trace.length_scale=1/32"),
        *("pool.block_size_tokens=2", "pool.num_blocks=28", "pool.host_blocks=40"),
    ),
    validation=(
        "model=tiny",
        "engine.device=cpu",
        "trace.limit=3",
        "trace.length_scale=1/32",
        "pool.num_blocks=60",
        "validate.repeats=1",
        "validate.calibration.trace.limit=6",
        *_VALIDATION,
    ),
)
