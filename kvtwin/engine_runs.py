"""One run on the real engine, from setup to records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from core.columns import StepTimes
from core.decision_log import DecisionLog
from core.errors import InputError
from core.inputs_log import InputsLog
from core.plan import StepPlan
from core.scheduler import Scheduler
from core.units import PS_PER_S
from engine.clock import DriftProbe, EngineClock, ProbeReading, engine_clock
from engine.decode_graphs import CudaRecorder, GraphedDecoder, recorded_sizes
from engine.draws import Sampling
from engine.executor import PreparedStep, StepDecoder, StepOutput, TorchExecutor
from engine.kernel_sets import name_of
from engine.kv_cache import PagedKV, allocate_kv, kv_block_bytes
from engine.large_pages import SmallPages, allocate_large_pages
from engine.loop import EngineLoop, run_by_turns
from engine.run import new_loop
from engine.shadow import Shadow
from engine.shared_prefixes import sharing_of
from engine.tokens import TokenStore
from kvtwin.binding import PolicyFactory
from kvtwin.engine_setup import EngineSetup, LoadedModel, load_engine_setup
from kvtwin.outputs_file import OUTPUTS_FILE, outputs_jsonl
from kvtwin.pool_layout import has_large_pages
from kvtwin.progress import Progress, progress_bar
from kvtwin.replica_records import replica_records
from kvtwin.simulating import check_any_ran
from kvtwin.summary import Cost, RunRecords, collect_records
from sim.cost_model import StepWork, work_of
from traces.schema import Trace

INPUTS_FILE = "inputs.jsonl.gz"


@dataclass(frozen=True)
class EngineResult:
    """A run's records, and what validation and calibration want of it besides."""

    records: RunRecords
    log: DecisionLog
    works: list[StepWork]  # by executed step
    durations_s: NDArray[np.float64]  # likewise
    probe_readings: list[ProbeReading]
    interrupted: bool


@dataclass
class _Observed:
    """The executor, with the work of each step noted and the progress shown."""

    executor: TorchExecutor
    scheduler: Scheduler
    progress: Progress
    works: list[StepWork] = field(default_factory=list)

    def prepare(self, plan: StepPlan) -> PreparedStep:
        return self.executor.prepare(plan)

    def begin(self, step: PreparedStep) -> None:
        self.executor.begin(step)

    def run(self, step: PreparedStep) -> StepOutput:
        self.works.append(work_of(step.plan))
        self.progress.show(len(self.scheduler.recorder.requests))
        return self.executor.run(step)


@dataclass(frozen=True)
class EngineRunner:
    """Runs the setup as often as wanted: every run starts with an empty cache."""

    setup: EngineSetup

    def run(self, label: str = "engine") -> EngineResult:
        """Replays the trace once. Ctrl-C ends it at a step boundary and keeps what ran, marked as interrupted."""
        with progress_bar(label, self.setup.experiment.trace.num_requests) as progress:
            session = self.start(progress)
            interrupted = run_by_turns([session.loop], [1])
        return session.finish(interrupted)

    def start(self, progress: Progress) -> EngineSession:
        """A run that is ready for its first step."""
        setup = self.setup
        scheduler = setup.experiment.build(DecisionLog())
        shadow = self._shadow()
        executor = self._executor(shadow)
        clock = engine_clock(setup.settings.clock, DriftProbe())
        observed = _Observed(executor, scheduler, progress)
        inputs = InputsLog()
        loop = new_loop(setup.experiment.source(), scheduler, observed, clock, inputs)
        return EngineSession(setup, loop, scheduler, observed, clock, inputs, shadow)

    def _shadow(self) -> Shadow | None:
        pool = self.setup.experiment.pool
        if not self.setup.settings.shadow or pool.num_blocks is None:
            return None
        return Shadow.beside(
            pool.num_blocks + pool.first_block_id,
            pool.host_blocks,
            pool.block_size_tokens,
            tuple(group.window_tokens for group in self.setup.model.decoder.shape.kv_groups()),
            self._small_pages.layers if self._has_large_pages else (),
        )

    @property
    def _has_large_pages(self) -> bool:
        return has_large_pages(self.setup.experiment.policies.allocation)

    @property
    def _small_pages(self) -> SmallPages:
        return SmallPages.of(self.setup.model.decoder.shape.kv_groups(), self.setup.experiment.groups)

    def _executor(self, shadow: Shadow | None) -> TorchExecutor:
        setup, decoder = self.setup, self.setup.model.decoder
        kv, host = self._allocate()
        tokens = TokenStore(setup.tokens, setup.new_output_mode(), decoder.shape.max_positions)
        settings = setup.settings
        sampling = Sampling(settings.temperature, setup.experiment.seed, settings.top_k, settings.top_p)
        shares = settings.cascade and settings.cached_keys == "rotated"
        sharing = sharing_of(decoder.shape, decoder.dtype.itemsize) if shares else ()
        group_tables = self._small_pages.tables if self._has_large_pages else ()
        stepping = self._stepping(kv, [rule is not None for rule in sharing])
        return TorchExecutor(stepping, kv, host, tokens, sampling, shadow, sharing, group_tables)

    def _stepping(self, kv: PagedKV, shares: Sequence[bool]) -> StepDecoder:
        """The decoder, its steps of decodes recorded if that is asked for."""
        decoder, scheduler = self.setup.model.decoder, self.setup.experiment.scheduler
        if not self.setup.settings.cuda_graphs:
            return decoder
        most_tokens = min(scheduler.max_model_len or decoder.shape.max_positions, decoder.shape.max_positions)
        sizes = recorded_sizes(scheduler.max_num_seqs)
        return GraphedDecoder(decoder, kv, sizes, -(-most_tokens // kv.block_size), CudaRecorder(), shares)

    def _allocate(self) -> tuple[PagedKV, PagedKV | None]:
        """KV memory on the device and, for swapping, on the host."""
        decoder, pool = self.setup.model.decoder, self.setup.experiment.pool
        assert pool.num_blocks is not None  # refused by load_engine_setup
        size, num_ids = pool.block_size_tokens, pool.num_blocks + pool.first_block_id
        allocate = partial(
            partial(allocate_large_pages, pages=self._small_pages) if self._has_large_pages else allocate_kv,
            decoder.shape,
            block_size=size,
            dtype=decoder.dtype,
        )
        try:
            host = allocate(num_blocks=pool.host_blocks, device="cpu") if pool.host_blocks else None
            return allocate(num_blocks=num_ids, device=decoder.device, kernels=decoder.kernels), host
        except (RuntimeError, MemoryError):  # torch's allocators raise RuntimeError
            layer_bytes = kv_block_bytes(decoder.shape, size, decoder.dtype) // decoder.shape.num_block_layers
            num_bytes = (num_ids + pool.host_blocks) * layer_bytes * self.setup.experiment.block_layers
            raise InputError(
                f"pool.num_blocks={pool.num_blocks}, pool.host_blocks={pool.host_blocks}: no room for "
                f"{num_bytes:,} bytes of KV; expected fewer"
            ) from None


@dataclass(frozen=True)
class EngineSession:
    """One run in progress: whoever holds it advances `loop`, and calls `finish` when it has ended."""

    setup: EngineSetup
    loop: EngineLoop
    scheduler: Scheduler
    observed: _Observed
    clock: EngineClock
    inputs: InputsLog
    shadow: Shadow | None
    start_s: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))

    def finish(self, interrupted: bool) -> EngineResult:
        """The records of the run. Raises InputError if it came to its end and no request of the trace could run."""
        experiment, recorder = self.setup.experiment, self.scheduler.recorder
        replicas = [replica_records(self.scheduler, experiment.config["decisions"] == "full")]
        if not interrupted:
            check_any_ran(experiment, replicas)
        wall_s, cpu_s = self.start_s
        records = collect_records(
            experiment,
            replicas,
            "engine",
            Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s),
            interrupted=interrupted,
            extra={"engine": self._engine_block()},
        )
        records.files[INPUTS_FILE] = self.inputs.to_bytes()
        if self.setup.settings.outputs:
            records.files[OUTPUTS_FILE] = outputs_jsonl(self.observed.executor.tokens)
        durations_s = StepTimes.of(recorder).duration_ps / PS_PER_S
        return EngineResult(
            records, self.scheduler.log, self.observed.works, durations_s, self.clock.probe_readings, interrupted
        )

    def _engine_block(self) -> dict[str, Any]:
        decoder, settings = self.setup.model.decoder, self.setup.settings
        executor, shadow, readings = self.observed.executor, self.shadow, self.clock.probe_readings
        return {
            "weights": self.setup.model.origin,
            "device": str(decoder.device),
            "dtype": str(decoder.dtype).removeprefix("torch."),
            "kernels": name_of(decoder.kernels),
            "memory": None if self.setup.memory is None else asdict(self.setup.memory),
            "threads": settings.threads,
            "clock": settings.clock,
            "num_sampled": executor.num_sampled,
            "num_near_ties": executor.num_near_ties,
            "num_beam_steps": executor.beams.num_steps,
            "num_beam_drops": executor.beams.num_drops,
            "shadow_checked": dict(shadow.num_checked) if shadow else None,
            "probe_s": median(reading.duration_ps for reading in readings) / PS_PER_S if readings else None,
        }


def load_engine_run(
    config: DictConfig,
    policies: Mapping[str, PolicyFactory] | None = None,
    trace: Trace | None = None,
    model: LoadedModel | None = None,
) -> EngineRunner:
    return EngineRunner(load_engine_setup(config, policies, trace, model))
