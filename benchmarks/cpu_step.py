"""Where a step on a CPU spends its time: SmolLM2-135M, bf16, one thread, by kernel, beside what the machine can do.

    python benchmarks/cpu_step.py

CPU time of single forward passes. In turns with them two yardsticks are measured: a product of square bf16 matrices,
and a pass over 128 MiB. A decode cannot be faster than its bytes at that rate, a prompt not faster than its products.
Writes results/cpu_step.md.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

from engine.batch import BatchInput, BatchItem, build_batch
from engine.cpu import keep_freed_memory
from engine.kernel_sets import name_of
from engine.kv_cache import PagedKV, allocate_kv
from engine.model import Decoder
from engine.smollm2 import find_smollm2_135m
from engine.weights import load_weights

RESULT = Path(__file__).parent / "results" / "cpu_step.md"
NUM_TOKENS, BLOCK_SIZE, NUM_ROUNDS, BATCHES = 512, 16, 25, (1, 4, 8, 16)
PEAK_SIZE, READ_BYTES = 2048, 128 << 20
MATMUL = "matrix products"
COLUMNS = {
    MATMUL: (MATMUL,),
    "attention": ("decode_attention", "prefill_attention"),
    "norms": ("rms_norm", "add_rms_norm"),
    "gate": ("swiglu",),
    "rotation, KV write": ("rope_kv_write",),
}


class Meter:
    """CPU time by name."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = defaultdict(int)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*arguments: Any) -> Any:
            start_ns = time.process_time_ns()
            returned = call(*arguments)
            self.spent_ns[name] += time.process_time_ns() - start_ns
            return returned

        return timed_call

    def attach(self, decoder: Decoder) -> None:
        kernels: Any = decoder.kernels
        for name in chain(*list(COLUMNS.values())[1:]):
            setattr(kernels, name, self.timed(name, getattr(kernels, name)))
        parts: list[Any] = [part for layer in decoder._layers for part in (layer.attend, layer.mlp)]
        for owner, names in [(decoder, ("_head",)), *((part, ("_qkv", "_out", "_gate_up", "_down")) for part in parts)]:
            for name in names:
                if hasattr(owner, name):
                    setattr(owner, name, self.timed(MATMUL, getattr(owner, name)))
        for layer in decoder._layers:
            layer.mlp._gate = kernels.swiglu


def batches() -> dict[str, BatchInput]:
    """Decodes over 512 tokens in shuffled blocks, and a prompt of 512."""
    num_blocks = NUM_TOKENS // BLOCK_SIZE
    order = torch.randperm(max(BATCHES) * num_blocks, generator=torch.Generator().manual_seed(0)).view(-1, num_blocks)
    found = {}
    for batch in BATCHES:
        items = [BatchItem([7 + row], NUM_TOKENS - 1, [order[row].tolist()], True) for row in range(batch)]
        found[f"decode {batch}"] = build_batch(items, BLOCK_SIZE, "cpu")
    found["prompt 512"] = build_batch([BatchItem(range(512), 0, [order[0].tolist()], True)], BLOCK_SIZE, "cpu")
    return found


class Work(NamedTuple):
    """What a step cannot do without: bytes of weights, keys and values read, operations of its matrix products."""

    num_bytes: int
    flops: int

    @classmethod
    def of(cls, decoder: Decoder, kv: PagedKV, batch: BatchInput) -> Work:
        shape = decoder.shape
        attention_width = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
        layer_weights = shape.num_layers * shape.hidden * (attention_width + 3 * shape.intermediate)
        head_weights = shape.hidden * shape.vocab_size
        token_bytes = kv.num_bytes // (kv.key.shape[1] * BLOCK_SIZE)
        return cls(
            2 * (layer_weights + head_weights) + int(batch.decode_num_kv_tokens.sum()) * token_bytes,
            2 * (layer_weights * len(batch.token_ids) + head_weights * len(batch.sample_rows)),
        )


def measured(decoder: Decoder, kv: PagedKV, meter: Meter, batch: BatchInput) -> list[dict[str, int]]:
    """CPU nanoseconds of each round: of the step, of its parts, and of the yardsticks beside it."""
    square, plain = torch.randn(PEAK_SIZE, PEAK_SIZE).bfloat16(), torch.randn(READ_BYTES // 4)
    step = meter.timed("step", decoder.forward)
    multiply, read = meter.timed("multiply", torch.mm), meter.timed("read", torch.max)
    rounds = []
    for _ in range(NUM_ROUNDS):
        meter.spent_ns.clear()
        step(batch, kv)
        multiply(square, square)
        read(plain)
        rounds.append(dict(meter.spent_ns))
    return rounds


def row(name: str, work: Work, rounds: list[dict[str, int]]) -> str:
    """Shares are those of the median step."""
    low, _, high = quantiles([step["step"] / 1e6 for step in rounds], n=4)
    step = sorted(rounds, key=lambda step: step["step"])[NUM_ROUNDS // 2]
    multiply_ns, read_ns = (median(found[yard] for found in rounds) for yard in ("multiply", "read"))
    ns_a_flop = multiply_ns / (2 * PEAK_SIZE**3)
    floor_ns = max(work.num_bytes * read_ns / READ_BYTES, work.flops * ns_a_flop)
    parts = [sum(step.get(part, 0) for part in column) for column in COLUMNS.values()]
    parts.append(step["step"] - sum(parts))
    shares = " | ".join(f"{100 * part / step['step']:.0f} %" for part in parts)
    return (
        f"| {name} | {step['step'] / 1e6:.1f} ({low:.1f}-{high:.1f}) | {shares}"
        f" | {100 * work.flops * ns_a_flop / step[MATMUL]:.0f} % | {floor_ns / 1e6:.1f}"
        f" | {100 * floor_ns / step['step']:.0f} % |"
    )


def main() -> None:
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    source = find_smollm2_135m()
    if source is None:
        raise SystemExit("no weights at hand; fetch them: kvtwin model fetch smollm2_135m")
    torch.set_num_threads(1)
    keep_freed_memory()
    decoder, meter = Decoder(*load_weights(source, torch.bfloat16)), Meter()
    meter.attach(decoder)
    num_blocks = max(BATCHES) * NUM_TOKENS // BLOCK_SIZE
    kv = allocate_kv(decoder.shape, num_blocks, BLOCK_SIZE, torch.bfloat16, "cpu")
    rows = [
        row(name, Work.of(decoder, kv, batch), measured(decoder, kv, meter, batch)) for name, batch in batches().items()
    ]
    text = "\n".join(
        [
            f"One thread, kernels `{name_of(decoder.kernels)}`, {NUM_ROUNDS} steps a row; {os.cpu_count()} CPUs, load"
            f" average {os.getloadavg()[0]:.1f}",
            "",
            f"| step | CPU ms: median (quartiles) | {' | '.join(COLUMNS)} | rest"
            " | products, of the measured peak | floor, ms | floor / median |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )
    print(text)
    RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
