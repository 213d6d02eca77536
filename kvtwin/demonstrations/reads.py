"""Bytes that a decode step reads: the weights once, every sequence's KV; and the context at which both are equal."""

from __future__ import annotations

from argparse import Namespace

from core.model_shape import ModelShape
from kvtwin.arguments import Arguments, count
from kvtwin.demonstrations.demonstration import Curve, Demonstration
from kvtwin.demonstrations.shapes import model_shape
from kvtwin.formatting import NOTHING, bytes_text, count_text

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_TOKENS = 1 << 24


def add_options(parser: Arguments) -> None:
    parser.add_argument("--model", default="llama3_8b", metavar="NAME", help="a shape; default llama3_8b")
    parser.add_argument("--context", type=count, default=8192, metavar="N", help="of each sequence; default 8192")


def measure(options: Namespace) -> Demonstration:
    model = model_shape(options.model)
    crossings = {batch: crossover_tokens(model, batch) for batch in _BATCHES}
    rows = [_row(model, batch, options.context, crossings[batch]) for batch in _BATCHES]
    crossed = {batch: tokens for batch, tokens in crossings.items() if tokens is not None}
    return Demonstration(
        f"{model.name}: bytes read by a decode step, {count_text(options.context)} tokens a sequence",
        _findings(model, options.context, crossings),
        ("batch", "weights", "KV", "KV / weights", "equal at (tokens)"),
        rows,
        [Curve("KV reads equal weight reads", list(crossed), list(crossed.values()), is_measured=False)],
        "batch (sequences)",
        "context of each (tokens)",
        {
            "model": model.name,
            "context_tokens": options.context,
            "kv_bytes_per_token": model.kv_bytes_per_token(),
            "by_batch": [
                {
                    "num_seqs": batch,
                    "weight_bytes": model.weight_bytes_read(batch),
                    "kv_bytes": model.kv_bytes(options.context) * batch,
                    "crossover_tokens": crossings[batch],
                }
                for batch in _BATCHES
            ],
        },
        is_logarithmic=True,
    )


def crossover_tokens(model: ModelShape, num_seqs: int) -> int | None:
    """The shortest context at which so many sequences read at least as many KV bytes as weight bytes in a step.

    None where no context up to 16 Mi tokens does: with sliding windows alone it never may. O(log tokens).
    """
    weight_bytes = model.weight_bytes_read(num_seqs)
    low, high = 0, MOST_TOKENS  # at `low` it reads fewer
    if model.kv_bytes(high) * num_seqs < weight_bytes:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if model.kv_bytes(middle) * num_seqs < weight_bytes:
            low = middle
        else:
            high = middle
    return high


def _row(model: ModelShape, batch: int, context: int, crossing: int | None) -> list[str]:
    weights, kv = model.weight_bytes_read(batch), model.kv_bytes(context) * batch
    crossed = NOTHING if crossing is None else count_text(crossing)
    return [count_text(batch), bytes_text(weights), bytes_text(kv), f"{kv / weights:.2f}x", crossed]


def _findings(model: ModelShape, context: int, crossings: dict[int, int | None]) -> list[str]:
    ratio = 32 * model.kv_bytes(context) / model.weight_bytes_read(32)
    found = [
        f"A token takes {count_text(model.kv_bytes_per_token())} bytes. 32 sequences of {count_text(context)} tokens "
        f"read {ratio:.2f}x the weights in every step.",
    ]
    if crossings[1] is not None and crossings[32] is not None:
        found.append(
            f"Both are equal at {count_text(crossings[1])} tokens for one sequence, at {count_text(crossings[32])} for "
            "32: above the line KV decides the time of a step, and shrinking it pays more than shrinking the weights."
        )
    return found
