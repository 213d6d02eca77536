"""A run of many replicas: on one clock behind a router, or each by itself where nothing connects them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.routing import RoutingPolicy
from core.scheduler import Scheduler
from engine.interrupt import DeferredInterrupt
from kvtwin.experiment import Experiment
from kvtwin.foreseeing import is_clairvoyant
from kvtwin.placement import Placement, looks_at_replicas, placement_of, why_together
from kvtwin.progress import Progress, Silent
from kvtwin.rare_collection import rare_collection
from kvtwin.replica_records import ReplicaRecords, replica_records
from sim.beam_model import BeamModel, RandomBeams
from sim.cost_model import CostModel
from sim.fleet import run_fleet
from sim.simulation import run_simulation
from sim.watched_cost import WatchedCost

if TYPE_CHECKING:
    from kvtwin.processes import Finished

RAY = "ray"
WORTH_PROCESSES = 50_000  # requests: fewer are done before a second process has started


class Stopped(Exception):
    """Ctrl-C came."""


@dataclass(frozen=True)
class Watch:
    """What looks on while a run goes, by way of the cost model: shows the progress, knows of Ctrl-C."""

    cost: CostModel
    progress: Progress
    interrupt: DeferredInterrupt

    def over(self, run: Callable[[CostModel], object], num_done: Callable[[], int]) -> None:
        """Ctrl-C ends the run early: what has not run is forgotten."""
        with suppress(Stopped), rare_collection():
            run(WatchedCost(self.cost, lambda: self.look_up(num_done)))

    def look_up(self, num_done: Callable[[], int]) -> None:
        """Raises Stopped where Ctrl-C was pressed."""
        if self.interrupt.requested:
            raise Stopped
        self.progress.show(num_done())


def check_fleet(experiment: Experiment) -> None:
    """Raises InputError for what many replicas cannot do."""
    num_replicas = experiment.fleet.num_replicas
    if experiment.fleet.shards_on == RAY:
        from kvtwin.ray_tasks import require_ray

        require_ray()
    if num_replicas == 1:
        return
    if is_clairvoyant(experiment.policies.eviction):
        raise InputError(
            f"cluster.num_replicas={num_replicas}: this eviction policy knows the future of one replica; expected 1"
        )
    if experiment.scheduler.async_scheduling and looks_at_replicas(experiment):
        raise InputError(_no_async("this routing looks at the replicas"))


def simulate_alone(experiment: Experiment, watch: Watch) -> list[ReplicaRecords]:
    """The run of one replica."""
    scheduler = experiment.build_for_simulation(experiment.new_log())
    done = scheduler.recorder.requests
    beams = _beams(experiment)
    watch.over(lambda cost: run_simulation(experiment.source(), scheduler, cost, beams), lambda: len(done))
    return [replica_records(scheduler, keeps_decisions(experiment))]


def simulate_fleet(experiment: Experiment, watch: Watch) -> list[ReplicaRecords]:
    """The records of all replicas, in order. Raises InputError for shards, or async scheduling, that cannot be."""
    fleet, placement = experiment.fleet, placement_of(experiment)
    reason = why_together(experiment, placement)
    if placement is None or reason:
        if fleet.num_shards is not None and fleet.num_shards > 1:
            raise InputError(f"cluster.shards={fleet.num_shards}: {reason}; expected 1 or auto")
        if fleet.shards_on == RAY:
            raise InputError(f"cluster.shards_on={RAY}: {reason}; expected processes")
        if experiment.scheduler.async_scheduling:
            raise InputError(_no_async(reason))
        return _simulate_together(experiment, watch)
    num_shards = min(_num_shards(experiment), fleet.num_replicas)
    if num_shards == 1:
        return _simulate_in_turn(experiment, placement, watch)
    return _simulate_in_shards(experiment, placement, num_shards, watch)


def _beams(experiment: Experiment) -> BeamModel:
    """Its draws are each request's own, wherever that runs."""
    return RandomBeams(experiment.config["beams"]["drop_ratio"], experiment.seed)


def keeps_decisions(experiment: Experiment) -> bool:
    return bool(experiment.config["decisions"] == "full")


def _no_async(reason: str) -> str:
    return (
        f"scheduler.async_scheduling=true: {reason}, and replicas on one clock cannot decide ahead; expected false, or "
        "routing=hash"
    )


def _num_shards(experiment: Experiment) -> int:
    fleet = experiment.fleet
    if fleet.num_shards is not None:
        return fleet.num_shards
    is_worth_it = fleet.shards_on == RAY or experiment.trace.num_requests >= WORTH_PROCESSES
    if not is_worth_it:
        return 1
    from kvtwin.processes import num_cores

    return num_cores()


def _simulate_together(experiment: Experiment, watch: Watch) -> list[ReplicaRecords]:
    pool, routing = experiment.pool, experiment.fleet.routing
    assert routing is not None
    schedulers = [
        experiment.build_for_simulation(experiment.new_log(), number) for number in range(experiment.fleet.num_replicas)
    ]

    def make_policy(now: Callable[[], int]) -> RoutingPolicy:
        policy: RoutingPolicy = routing(PolicyEnv(now, pool.num_blocks, pool.block_size_tokens, experiment.seed))
        return policy

    watch.over(
        lambda cost: run_fleet(experiment.source(), schedulers, cost, make_policy, _beams(experiment)),
        _NumDone(schedulers),
    )
    return [replica_records(scheduler, keeps_decisions(experiment)) for scheduler in schedulers]


class _NumDone:
    """How many requests are done in a fleet, counted anew once in a while: it is asked at every plan."""

    _INTERVAL_PLANS = 256

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self._schedulers = schedulers
        self._num_asked = 0
        self._num_done = 0

    def __call__(self) -> int:
        self._num_asked += 1
        if self._num_asked % self._INTERVAL_PLANS == 0:
            self._num_done = sum(len(scheduler.recorder.requests) for scheduler in self._schedulers)
        return self._num_done


@dataclass(frozen=True)
class _OneByOne:
    """Simulates the replica of a number by itself."""

    experiment: Experiment
    placement: Placement
    watch: Watch

    def __call__(self, number: int) -> ReplicaRecords:
        part, names = self.placement.part(self.experiment, number)
        scheduler = part.build_for_simulation(part.new_log(), number)
        done, before = scheduler.recorder.requests, self.placement.num_before(number)
        self.watch.over(
            lambda cost: run_simulation(part.source(names=names), scheduler, cost, _beams(part)),
            lambda: before + len(done),
        )
        return replica_records(scheduler, keeps_decisions(part))


def _simulate_in_turn(experiment: Experiment, placement: Placement, watch: Watch) -> list[ReplicaRecords]:
    simulate = _OneByOne(experiment, placement, watch)
    return [simulate(number) for number in range(placement.num_replicas)]


@dataclass(frozen=True)
class _Aside:
    """As `_OneByOne`, in a process of its own, where Ctrl-C is handed on to."""

    experiment: Experiment
    placement: Placement
    cost: CostModel

    def __call__(self, number: int) -> ReplicaRecords:
        with DeferredInterrupt() as interrupt:
            return _OneByOne(self.experiment, self.placement, Watch(self.cost, Silent(), interrupt))(number)


def _simulate_in_shards(
    experiment: Experiment, placement: Placement, num_shards: int, watch: Watch
) -> list[ReplicaRecords]:
    """Over processes, ours or Ray's. After Ctrl-C those that have not begun never do."""
    from kvtwin.processes import JobProcesses  # neither is loaded for runs that need none
    from kvtwin.ray_tasks import RayTasks

    records: list[ReplicaRecords] = []
    num_done = 0
    work, numbers = _Aside(experiment, placement, watch.cost), range(placement.num_replicas)
    workers = RayTasks if experiment.fleet.shards_on == RAY else JobProcesses
    with workers(work, numbers, num_shards, watch.interrupt) as shards:
        for finished in shards.results(lambda num_ended: None):
            records.append(_answer(finished) or _idle(experiment, placement, finished.number))
            num_done += len(records[-1].requests["request_id"])
            watch.progress.show(num_done)
    return records + [_idle(experiment, placement, number) for number in numbers[len(records) :]]


def _answer(finished: Finished[ReplicaRecords]) -> ReplicaRecords | None:
    """None: Ctrl-C came before it began. Raises what the replica's run raised, or RuntimeError where its process was
    killed.
    """
    if finished.error is not None:
        raise finished.error
    if finished.answer is None and finished.exit_code is not None:
        raise RuntimeError(f"the process of replica {finished.number} ended with status {finished.exit_code}: memory?")
    return finished.answer


def _idle(experiment: Experiment, placement: Placement, number: int) -> ReplicaRecords:
    """Of a replica that never began."""
    part, _ = placement.part(experiment, number)
    return replica_records(part.build(part.new_log(), number), keeps_decisions(part))
