"""`kvtwin size`: what fits on a device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from omegaconf import DictConfig

from kvtwin.binding import instantiate_one
from kvtwin.sizing import SizingOptions, print_size, size
from kvtwin.sweep import JobOutcome, run_app


def run(args: Sequence[str]) -> int:
    """`--json` prints every figure with its unit in the key."""
    rest = [arg for arg in args if arg != "--json"]
    show = _print_json if len(rest) < len(args) else _print_screen
    return run_app("size", rest, partial(_job, show=show))


def _job(config: DictConfig, show: Callable[[dict[str, object], bool], None]) -> JobOutcome:
    options = SizingOptions(
        context_tokens=config.context,
        num_seqs=config.num_seqs,
        block_size_tokens=config.block_size_tokens,
        kv_dtype_bytes=config.kv_dtype_bytes,
        tensor_parallel=config.tensor_parallel,
        memory_utilization=config.memory_utilization,
        activation_bytes=config.activation_bytes,
        non_torch_bytes=config.non_torch_bytes,
        cuda_graph_bytes=config.cuda_graph_bytes,
        null_block=config.null_block,
        window_layers=config.window_layers,
    )
    figures = size(instantiate_one(config.model, "model"), instantiate_one(config.hardware, "hardware"), options)
    show(figures, config.seed_units)
    return JobOutcome(None)


def _print_json(figures: dict[str, object], seed_units: bool) -> None:
    print(json.dumps(figures, indent=1))


def _print_screen(figures: dict[str, object], seed_units: bool) -> None:
    print_size(figures, seed_units)
