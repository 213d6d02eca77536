"""Whether a model fits on a device, and what is left there for the KV pool: each term counted once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.errors import InputError
from core.hardware import Hardware
from core.model_shape import ModelShape

GIB = 2**30
WINDOW_LAYERS = ("windowed", "full")
MAX_TENSOR_PARALLEL = 1024


@dataclass(frozen=True, slots=True)
class SizingOptions:
    """The workload to size for, and what else takes device memory. Defaults reserve 3 GiB beside weights and KV.

    `window_layers`: "windowed" frees what a window has passed (vLLM's hybrid manager), "full" keeps it.
    `null_block`: one block is never handed out (vLLM). Raises InputError for a value out of range.
    """

    context_tokens: int = 4096
    num_seqs: int = 1
    block_size_tokens: int = 16
    kv_dtype_bytes: int = 2
    tensor_parallel: int = 1
    memory_utilization: float = 0.9
    activation_bytes: int = 2 * GIB
    non_torch_bytes: int = GIB // 2
    cuda_graph_bytes: int = GIB // 2
    null_block: bool = True
    window_layers: str = "windowed"
    flops_utilization: float = 0.5
    bandwidth_utilization: float = 0.8

    def __post_init__(self) -> None:
        for key in ("context_tokens", "num_seqs", "block_size_tokens", "kv_dtype_bytes", "tensor_parallel"):
            if getattr(self, key) < 1:
                raise InputError(f"{key}={getattr(self, key)}: expected at least 1")
        for key in ("memory_utilization", "flops_utilization", "bandwidth_utilization"):
            if not 0 < getattr(self, key) <= 1:
                raise InputError(f"{key}={getattr(self, key)}: expected a ratio in (0, 1]")
        for key in ("activation_bytes", "non_torch_bytes", "cuda_graph_bytes"):
            if getattr(self, key) < 0:
                raise InputError(f"{key}={getattr(self, key)}: expected at least 0")
        if self.window_layers not in WINDOW_LAYERS:
            raise InputError(f"window_layers={self.window_layers!r}: expected one of {', '.join(WINDOW_LAYERS)}")

    @property
    def overhead_bytes(self) -> int:
        """Device memory beside weights and KV."""
        return self.activation_bytes + self.non_torch_bytes + self.cuda_graph_bytes


def pool_bytes(model: ModelShape, hardware: Hardware, options: SizingOptions) -> int:
    """One GPU's KV pool: its share of memory less each other term once. Negative when they alone do not fit."""
    budget_bytes = int(hardware.memory_bytes * options.memory_utilization)
    return budget_bytes - weight_bytes_per_gpu(model, options) - options.overhead_bytes


def minimum_tensor_parallel(model: ModelShape, hardware: Hardware, options: SizingOptions) -> int | None:
    """The least degree at which the weights and one sequence of `context_tokens` fit; None if none is enough."""
    for degree in range(1, MAX_TENSOR_PARALLEL + 1):
        if _can_split(model, degree) and _fits(model, hardware, replace(options, tensor_parallel=degree)):
            return degree
    return None


def check_fits(model: ModelShape, hardware: Hardware, options: SizingOptions) -> None:
    """Raise InputError, naming the least degree that would do, unless weights and one sequence fit on each GPU."""
    tensor_parallel = options.tensor_parallel
    if options.context_tokens > model.max_context_tokens:
        raise InputError(
            f"context_tokens={options.context_tokens}: {model.name} has {model.max_context_tokens} positions; "
            f"expected no more (or set the model's max_context_tokens)"
        )
    if not _can_split(model, tensor_parallel):
        raise InputError(
            f"tensor_parallel={tensor_parallel}: {model.name} has {model.num_heads} heads and {model.num_kv_heads} KV "
            f"heads, which cannot be split evenly; expected a divisor of the heads"
        )
    if _fits(model, hardware, options):
        return
    needed_degree = minimum_tensor_parallel(model, hardware, options)
    remedy = (
        f"the least tensor_parallel that fits is {needed_degree}"
        if needed_degree
        else "no tensor_parallel is enough: take a smaller context, model or overhead"
    )
    memory_gib, weight_gib, overhead_gib, pool_gib = (
        num_bytes / GIB
        for num_bytes in (
            hardware.memory_bytes,
            weight_bytes_per_gpu(model, options),
            options.overhead_bytes,
            pool_bytes(model, hardware, options),
        )
    )
    raise InputError(
        f"{model.name} does not fit on {hardware.name} with tensor_parallel={tensor_parallel}: "
        f"{memory_gib:.2f} GiB x {options.memory_utilization} - {weight_gib:.2f} GiB weights - {overhead_gib:.2f} GiB "
        f"overhead leaves {pool_gib:.2f} GiB, too little for a sequence of {options.context_tokens} tokens; {remedy}"
    )


def _can_split(model: ModelShape, degree: int) -> bool:
    if model.num_heads % degree:
        return False
    return bool(model.latent_dim) or model.num_kv_heads % degree == 0 or degree % model.num_kv_heads == 0


def _fits(model: ModelShape, hardware: Hardware, options: SizingOptions) -> bool:
    pool = pool_bytes(model, hardware, options)
    num_blocks = pool // group_block_bytes(model, options) - options.null_block
    return num_blocks >= sequence_blocks(model, options)


def weight_bytes_per_gpu(model: ModelShape, options: SizingOptions) -> int:
    """Each GPU's share of the weights, evenly split."""
    return -(-model.weight_bytes() // options.tensor_parallel)


def block_bytes_per_gpu(model: ModelShape, options: SizingOptions) -> int:
    """A block of all layers that cache, one GPU's share."""
    token_bytes = model.kv_bytes_per_token_per_gpu(options.tensor_parallel, options.kv_dtype_bytes)
    return options.block_size_tokens * token_bytes


def group_block_bytes(model: ModelShape, options: SizingOptions) -> int:
    """Bytes of what the pool hands out: a block of one group's layers, or of all layers when windows are not freed."""
    block_bytes = block_bytes_per_gpu(model, options)
    if options.window_layers == "full":
        return block_bytes
    return block_bytes // model.num_kv_layers * max(group.num_layers for group in model.kv_groups())


def sequence_blocks(model: ModelShape, options: SizingOptions) -> int:
    """Blocks, of the kind that the pool hands out, that one sequence of `context_tokens` holds."""
    num_tokens, block_size_tokens = options.context_tokens, options.block_size_tokens
    num_blocks = -(-num_tokens // block_size_tokens)
    if options.window_layers == "full":
        return num_blocks
    return sum(num_blocks - group.num_expired_blocks(num_tokens, block_size_tokens) for group in model.kv_groups())


def concurrency_seqs(model: ModelShape, hardware: Hardware, options: SizingOptions) -> float:
    """How many sequences of `context_tokens` the whole pool is worth, the null block included (as vLLM prints it)."""
    num_blocks = pool_bytes(model, hardware, options) // group_block_bytes(model, options)
    return num_blocks / sequence_blocks(model, options)
