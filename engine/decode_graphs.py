"""Decode steps replayed from recordings (CUDA graphs): the launches of a step, hundreds of them, become one.

A recording works on tensors of its own, of one size. So there are recordings of some batch sizes; a batch is copied
into the next larger one, whose further rows are padding: not cached (slot -1), and with no tokens to attend to. Where
prefixes may be read once for all who share them, each size is recorded a second time, for steps in which some do: which
rows they are is in tensors, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le

import torch
from torch import Tensor

from engine.attention import DecoderKernels
from engine.batch import BatchInput, GroupTables
from engine.decoder_shape import DecoderShape
from engine.kernel_sets import knows_padding
from engine.kv_cache import PagedKV
from engine.model import Decoder
from kernels.shared_runs import DecodeRuns

Replay = Callable[[], Tensor]
"""Does again what was recorded, on the same tensors; returns its logits, which the next replay overwrites."""

Recorder = Callable[[Callable[[], Tensor]], Replay]

_PADDING_SLOT = -1

MOST_RUNS = 32
"""Of decodes with a prefix, and of those between: more in a step are not replayed."""


def recorded_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to record: 1, 2, 4, then by 8 up to 64, by 16 up to 128, by 32; with the largest batch at the end."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


def obstacle_to_graphs(kernels: DecoderKernels, device: torch.device) -> str | None:
    """Why steps cannot be recorded, or None."""
    if device.type != "cuda":
        return f"graphs are CUDA's, the engine runs on {device.type}"
    if not knows_padding(kernels):
        return "only Triton's kernels know rows of padding"
    return None


class GraphedDecoder:
    """A decoder whose steps of decodes only are replayed; any other step runs as before.

    It must be free of what `obstacle_to_graphs` names, but for the device.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv: PagedKV,
        sizes: Sequence[int],
        blocks_per_sequence: int,
        record: Recorder,
        shares: Sequence[bool] = (),
    ) -> None:
        """Records every size, largest first, so that the smaller ones fit into its memory.

        shares: of each KV group, whether decodes may read a prefix of it together; empty where none may.
        """
        self._decoder = decoder
        self._kv = kv
        alone = tuple(False for _ in decoder.shape.kv_groups())
        kinds = [alone, tuple(shares)] if any(shares) else [alone]
        self._steps = [
            _RecordedStep(decoder, kv, size, blocks_per_sequence, record, kind)
            for size in sorted(sizes, reverse=True)
            for kind in kinds
            if size > 1 or kind is alone  # nobody shares with himself
        ][::-1]

    @property
    def device(self) -> torch.device:
        return self._decoder.device

    @property
    def shape(self) -> DecoderShape:
        return self._decoder.shape

    @torch.inference_mode()
    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor:
        """As `Decoder.forward`; `kv` must be the memory that was recorded with."""
        if kv is not self._kv:
            raise ValueError("the steps were recorded with another KV memory")
        for step in self._steps:
            if step.holds(batch):
                return step.run(batch)
        return self._decoder.forward(batch, kv)


class CudaRecorder:
    """Records CUDA graphs that share their memory: no two are replayed at once."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Replay:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            run()  # compiles kernels and sets libraries up, which cannot be recorded
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            logits = run()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


class _RecordedStep:
    """The recording for batches of up to `size` decodes; `shares`: of each KV group, whether it may have runs."""

    def __init__(
        self,
        decoder: Decoder,
        kv: PagedKV,
        size: int,
        blocks_per_sequence: int,
        record: Recorder,
        shares: tuple[bool, ...],
    ) -> None:
        self._size = size
        self._blocks_per_sequence = blocks_per_sequence
        self._shares = shares
        self._batch = _empty_batch(size, shares, blocks_per_sequence, decoder.device)
        self._replay = record(lambda: decoder.forward(self._batch, kv))

    def holds(self, batch: BatchInput) -> bool:
        return (
            batch.num_prefills == 0
            and batch.num_decodes <= self._size
            and batch.groups[0].decode_block_tables.shape[1] <= self._blocks_per_sequence
            and self._holds_runs([len(tables.decode_runs.runs) if tables.decode_runs else 0 for tables in batch.groups])
        )

    def _holds_runs(self, num_runs: Sequence[int]) -> bool:
        most = [MOST_RUNS if may_share else 0 for may_share in self._shares]
        return any(num_runs) == any(self._shares) and all(map(le, num_runs, most))

    def run(self, batch: BatchInput) -> Tensor:
        _fill(self._batch, batch)
        return self._replay()[batch.sample_rows]


def _empty_batch(size: int, shares: Sequence[bool], blocks_per_sequence: int, device: torch.device) -> BatchInput:
    """`size` rows of padding, logits wanted of all."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    num_runs = min(MOST_RUNS, size) + 1  # one is of the rows of padding
    return BatchInput(
        token_ids=zeros(size),
        positions=zeros(size),
        groups=tuple(
            GroupTables(
                zeros(size) + _PADDING_SLOT,
                zeros(size, blocks_per_sequence),
                zeros(0, 0),
                DecodeRuns((), zeros(num_runs + 1), zeros(size), blocks_per_sequence) if may_share else None,
            )
            for may_share in shares
        ),
        decode_num_kv_tokens=zeros(size),
        prefill_query_start=zeros(1),
        prefill_num_kv_tokens=zeros(0),
        sample_rows=torch.arange(size, device=device),
    )


def _fill(static: BatchInput, batch: BatchInput) -> None:
    """The first rows of `static` become `batch`, the others padding; their token and position may be any."""
    num = batch.num_decodes
    static.token_ids[:num] = batch.token_ids
    static.positions[:num] = batch.positions
    static.decode_num_kv_tokens[:num] = batch.decode_num_kv_tokens
    static.decode_num_kv_tokens[num:] = 0  # or they would go on reading what was there before
    for kept, tables in zip(static.groups, batch.groups, strict=True):
        kept.slot_mapping[:num] = tables.slot_mapping
        kept.slot_mapping[num:] = _PADDING_SLOT
        kept.decode_block_tables[:num, : tables.decode_block_tables.shape[1]] = tables.decode_block_tables
        if kept.decode_runs is not None:
            _fill_runs(kept.decode_runs, tables.decode_runs)


def _fill_runs(static: DecodeRuns, runs: DecodeRuns | None) -> None:
    """The runs, then one of the rows that are padding, which shares nothing, then empty ones."""
    num_runs, num_rows = (len(runs.runs), len(runs.num_shared_tokens)) if runs is not None else (0, 0)
    if runs is not None:
        static.starts[: num_runs + 1] = runs.starts
        static.num_shared_tokens[:num_rows] = runs.num_shared_tokens
    static.starts[num_runs + 1 :] = len(static.num_shared_tokens)
    static.num_shared_tokens[num_rows:] = 0
