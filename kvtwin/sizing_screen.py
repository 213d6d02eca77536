"""The sizing figures on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvtwin.formatting import seconds_text
from kvtwin.tables import print_tables

Row = tuple[str, str, str]


def print_size(figures: Mapping[str, Any], seed_units: bool = False, file: TextIO | None = None) -> None:
    """Write the figures of `size` to `file` (default: standard output).

    `seed_units` adds the concurrency by the arithmetic of many articles, which divides decimal GB by binary GiB.
    """
    title = Text(
        f"{figures['model']} on {figures['hardware']} x {figures['tensor_parallel']}: "
        f"{figures['num_seqs']:,} x {figures['context_tokens']:,} tokens, blocks of {figures['block_size_tokens']}, "
        f"{figures['kv_dtype_bytes']} B per KV element",
        style="bold",
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left"):
        table.add_column(justify="right" if justify == "right" else "left")
    sections = {
        "KV cache": _kv_rows(figures),
        "Memory of one GPU": _memory_rows(figures),
        "Capacity": [*_capacity_rows(figures), *(_seed_rows(figures) if seed_units else [])],
        "Cost": _cost_rows(figures),
    }
    for name, rows in sections.items():
        table.add_row(Text(name, style="bold cyan"))
        for label, value, note in rows:
            table.add_row(f"  {label}", value, Text(note, style="dim"))
    print_tables(Group(title, table), file=file)


def binary_text(num_bytes: float) -> str:
    """Bytes in powers of two, which is how pools and blocks are cut."""
    for scale, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:,.4g} {unit}"
    return f"{num_bytes:,.0f} B"


def _kv_rows(figures: Mapping[str, Any]) -> Iterable[Row]:
    windowed, full = figures["kv_sequence_windowed_bytes"], figures["kv_sequence_full_bytes"]
    window_note = "" if windowed == full else f"windowed layers freed; {binary_text(full)} if kept"
    yield "a token", binary_text(figures["kv_bytes_per_token"]), f"{figures['kv_bytes_per_token']:,} B"
    yield "a block", binary_text(figures["kv_block_bytes"]), f"{figures['block_size_tokens']} tokens, all layers"
    yield "a sequence", binary_text(windowed), window_note


def _memory_rows(figures: Mapping[str, Any]) -> Iterable[Row]:
    share = figures["memory_utilization_ratio"]
    budget = figures["memory_bytes"] * share
    yield "budget", binary_text(budget), f"{share:g} x {binary_text(figures['memory_bytes'])}"
    parameters = f"{figures['num_parameters'] / 1e9:,.4g} B parameters"
    if figures["num_active_parameters"] != figures["num_parameters"]:
        parameters += f", {figures['num_active_parameters'] / 1e9:,.4g} B active"
    yield "- weights", binary_text(figures["weight_bytes_per_gpu"]), parameters
    yield "- activations", binary_text(figures["activation_bytes"]), "peak, while the pool is sized"
    yield "- non-torch", binary_text(figures["non_torch_bytes"]), "driver context, communication buffers"
    yield "- CUDA graphs", binary_text(figures["cuda_graph_bytes"]), ""
    yield "= KV pool", binary_text(figures["pool_bytes"]), f"{figures['pool_bytes']:,} B"


def _capacity_rows(figures: Mapping[str, Any]) -> Iterable[Row]:
    usable = f"{figures['num_usable_blocks']:,} usable ({figures['usable_capacity_tokens']:,} tokens)"
    windowed, full = figures["concurrency_windowed_seqs"], figures["concurrency_full_seqs"]
    is_windowed = figures["window_layers"] == "windowed"
    note = f"{windowed:,.2f} with windowed layers freed, {full:,.2f} with them kept"
    yield "blocks", f"{figures['num_blocks']:,}", usable
    yield "tokens", f"{figures['capacity_tokens']:,}", ""
    yield "sequences at once", f"{windowed if is_windowed else full:,.2f}", "" if windowed == full else note
    if figures["padding_ratio"]:
        yield "with LCM pages", f"{figures['lcm_concurrency_seqs']:,.2f}", _lcm_note(figures)


def _lcm_note(figures: Mapping[str, Any]) -> str:
    page_bytes = figures["lcm_page_bytes"]
    small = " or ".join(f"{page_bytes // each} of {binary_text(each)}" for each in figures["lcm_small_page_bytes"])
    padding = f"{figures['padding_ratio'] * 100:.1f} % of padding"
    return f"without the {padding}; {binary_text(page_bytes)} hold {small}"


def _seed_rows(figures: Mapping[str, Any]) -> Iterable[Row]:
    strict = f"{figures['seed_strict_seqs']:,.2f} in one unit"
    yield "in seed units", f"{figures['seed_units_seqs']:,.2f}", f"decimal GB over binary GiB; {strict}"


def _cost_rows(figures: Mapping[str, Any]) -> Iterable[Row]:
    flops, bandwidth = figures["flops_utilization_ratio"], figures["bandwidth_utilization_ratio"]
    link = figures["break_even_link_bytes_per_s"] / 1e9
    swap, recompute = figures["swap_in_s_per_token"], figures["recompute_s_per_token"]
    context = f"a context of {figures['crossover_context_tokens']:,} with {figures['num_seqs']:,} at once"
    yield "prefill", seconds_text(figures["prefill_s"]), f"one prompt at {flops:g} of peak FLOP/s"
    yield "decode step", seconds_text(figures["decode_s"]), f"{bandwidth:g} of peak bandwidth"
    yield "  floor", seconds_text(figures["decode_floor_s"]), "peak bandwidth: weights and KV read once"
    yield "decode rate", f"{figures['decode_tokens_per_s']:,.1f} tok/s", "all sequences"
    yield "KV equals weights", f"{figures['crossover_tokens']:,} tokens", context
    yield "recompute a token", seconds_text(recompute), f"{seconds_text(swap)} to swap in; even at {link:.3g} GB/s"
    yield "without a cache", f"{figures['uncached_work_ratio']:,.1f}x", "token work to generate the whole context"
