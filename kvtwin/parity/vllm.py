"""Replays recorded decision logs of vLLM v1 through the product's own scheduler and compares every field.

Format: JSON lines, a header with `config`, `requests` and `aborts`, then a line per step. The header's `version` says
by which rules: those of 0.33, synchronous and async, or of 0.20 and 0.32, synchronous only. A `config` with `windows`
lists the windows of the model's KV groups in tokens, null for full attention (0.33).
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from core.build import PolicyFactories, PoolConfig, build_scheduler
from core.content import TokenKeys
from core.decision_log import DecisionLog, Event
from core.errors import InputError
from core.kv_group import KVGroup
from core.plan import StepPlan, StepResult
from core.recorder import Recorder
from core.request import Request, Status
from core.scheduler import Scheduler, SchedulerConfig
from core.units import to_ps
from kvtwin.parity.result import Fields, ParityResult, first_difference
from policies.admission.reservation import Reservation
from policies.allocation.paged import Paged
from policies.batching import Chunked
from policies.eviction.lru import LRU
from policies.preemption.last_arrived import LastArrived
from policies.preemption.lowest_priority import LowestPriority
from policies.queueing.fcfs import FCFS
from policies.queueing.priority import Priority


class RecordedKeys(TokenKeys):
    """Block keys by the hash that the recorded logs print: 8 bytes of sha256 over parent (hex) and tokens (decimal)."""

    def chain(self, parent: bytes, tokens: array[int]) -> bytes:
        text = f"{parent[:8].hex()}:{','.join(map(str, tokens))}"
        return hashlib.sha256(text.encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class _Rules:
    """In what a version differs from 0.33; each is a switch of its own (docs/presets.md)."""

    own_preemption_ends_step: bool = False
    exempts_alone: bool = True  # the long-prefill threshold does not bound a request that is alone
    free_order: str = "unhashed_first"


_RULES = {
    "0.20": _Rules(own_preemption_ends_step=True, exempts_alone=False, free_order="append_all"),
    "0.32": _Rules(own_preemption_ends_step=True),
    "0.33": _Rules(),
}


def compare(path: Path, header: Fields, steps: list[Fields]) -> ParityResult:
    """Replays one log. Stops at the first difference. Raises InputError where the version's rules are not known."""
    replay = _Replay(header, _rules_of(path, header))
    num_compared = 0
    for expected, got in zip(steps, replay.steps(len(steps)), strict=False):
        difference = first_difference(expected, got)
        if difference is not None:
            return ParityResult(path, num_compared, f"step {expected['t']}: {difference}")
        num_compared += 1
    if num_compared < len(steps):
        return ParityResult(
            path, num_compared, f"step {steps[num_compared]['t']}: expected, but nothing was left to do"
        )
    if replay.is_unfinished:
        return ParityResult(path, num_compared, f"the log ends after {num_compared} steps, but requests are unfinished")
    return ParityResult(path, num_compared, None)


def _rules_of(path: Path, header: Fields) -> _Rules:
    """By the version that the header names, or those of 0.33 where it names none."""
    version = header.get("version", "0.33")
    rules = _RULES.get(".".join(version.split(".")[:2]))
    if rules is None:
        raise InputError(f"{path}: version {version!r} cannot be replayed; expected one of {', '.join(_RULES)}")
    if "windows" in header["config"] and rules != _Rules():
        raise InputError(f"{path}: several KV groups of version {version} cannot be replayed; expected one, or 0.33")
    return rules


class _Replay:
    """Drives a scheduler along a recorded log's requests and aborts, and prints each step in the log's own fields."""

    def __init__(self, header: Fields, rules: _Rules) -> None:
        self._header = header
        self._log = DecisionLog(keep_keys=True)
        self._num_seen = 0
        self._is_async = header["config"].get("async_scheduling", False)
        self._scheduler = self._build(header["config"], rules)
        self._in_flight: deque[tuple[StepPlan, list[tuple[Request, bool]]]] = deque()
        names = sorted(request["id"] for request in header["requests"])
        self._number = {name: number for number, name in enumerate(names)}  # so that ids order as their names do
        self._name = dict(enumerate(names))
        self._requests: dict[str, Request] = {}
        self._outputs = {request["id"]: request["output"] for request in header["requests"]}
        self._num_output_tokens = dict.fromkeys(names, 0)

    def _build(self, config: Fields, rules: _Rules) -> Scheduler:
        is_priority = config["policy"] == "priority"
        admission = partial(
            Reservation,
            full_prompt=config["scheduler_reserve_full_isl"],
            watermark=config["watermark"],
            num_null_blocks=1,
        )
        factories = PolicyFactories(
            eviction=LRU,
            allocation=Paged,
            preemption=partial(LowestPriority, ties="first") if is_priority else LastArrived,
            batching=partial(Chunked, exempts_alone=rules.exempts_alone),
            queue=Priority if is_priority else FCFS,
            admission=admission,
        )
        scheduler_config = SchedulerConfig(
            max_num_seqs=config["max_num_seqs"],
            max_batch_tokens=config["max_num_batched_tokens"],
            chunked_prefill=config["enable_chunked_prefill"],
            long_prefill_threshold_tokens=config["long_prefill_token_threshold"],
            max_model_len=config["max_model_len"],
            keep_cancelled_registrations=True,
            own_preemption_ends_step=rules.own_preemption_ends_step,
            async_scheduling=self._is_async,
            single_steps=True,
        )
        pool = PoolConfig(
            config["num_gpu_blocks"] - 1, config["block_size"], first_block_id=1, free_order=rules.free_order
        )
        return build_scheduler(
            scheduler_config,
            pool,
            factories,
            self._log,
            Recorder(),
            prefix_caching=config["enable_prefix_caching"],
            groups=tuple(KVGroup(1, window_tokens) for window_tokens in config.get("windows", [None])),
        )

    @property
    def is_unfinished(self) -> bool:
        scheduler = self._scheduler
        num_to_come = len(self._header["requests"]) - len(self._requests)
        return bool(num_to_come or scheduler.running or scheduler.waiting)

    def steps(self, at_most: int) -> Iterator[Fields]:
        last_arrival = max(request["arrive"] for request in self._header["requests"])
        number = 0
        while at_most and (number <= last_arrival or self._scheduler.running or self._scheduler.waiting):
            fields = self._step(number)
            if fields is not None:
                yield fields
                at_most -= 1
            number += 1

    def _step(self, number: int) -> Fields | None:
        scheduler = self._scheduler
        arrived = self._arrive(number)
        aborted = self._abort(number, "before")
        self._num_seen = len(self._log)
        plan = scheduler.schedule(number)
        fields: Fields = {"t": number, "arr": arrived, "abort": aborted}
        if plan is None:
            if self._in_flight:  # all of its requests were aborted
                self._commit(*self._in_flight.popleft())
            return {**fields, "idle": 1, **self._end_of_step()} if arrived or aborted else None
        fields |= self._scheduled(plan) | self._block_events()
        fields["free"] = scheduler.tables.pool.num_available
        fields["run"] = [self._name[request.request_id] for request in scheduler.running]
        fields["wait"] = [self._name[request.request_id] for request in scheduler.waiting]
        fields["abort_during"] = self._abort(number, "during")
        if not plan.is_empty:
            self._in_flight.append((plan, self._sampling(plan)))
        is_due = len(self._in_flight) == 2 or plan.is_empty or not self._is_async
        if self._in_flight and is_due:
            fields |= self._commit(*self._in_flight.popleft())
        return fields | self._end_of_step()

    def _arrive(self, number: int) -> list[str]:
        arrived = []
        for index, row in enumerate(self._header["requests"]):
            if row["arrive"] == number:
                request_id = self._number[row["id"]]
                tokens = [*row["prompt"], *row["output"]]
                keys = RecordedKeys(request_id, tokens, self._header["config"]["block_size"], len(row["prompt"]))
                request = Request(
                    request_id,
                    to_ps(row.get("arrival_time", index)),
                    len(row["prompt"]),
                    len(row["output"]),
                    keys,
                    priority=row.get("priority", 0),
                )
                self._requests[row["id"]] = request
                self._scheduler.add(request, number)
                arrived.append(row["id"])
        return arrived

    def _abort(self, number: int, when: str) -> list[str]:
        names = [a["id"] for a in self._header.get("aborts", []) if a["step"] == number and a["when"] == when]
        aborted = []
        for name in names:
            if name in self._requests and self._requests[name].status is not Status.DONE:
                self._scheduler.cancel(self._requests[name], number)
                aborted.append(name)
        return aborted

    def _scheduled(self, plan: StepPlan) -> Fields:
        admitted = {request.request_id for request in plan.admitted}
        rows = []
        for sequence, num_computed, num_new in plan.scheduled():
            request = sequence.request
            kind = "R"
            if request.request_id in admitted:
                kind = "P" if request.num_preemptions else "N"
            rows.append([self._name[request.request_id], kind, num_computed, num_new])
        return {
            "sched": rows,
            "hit": {self._name[number]: tokens for number, tokens in plan.hit_tokens.items()},
            "preempt": [self._name[request.request_id] for request in plan.preempted],
            "blk": [self._name[request.request_id] for request in plan.blocked],
        }

    def _block_events(self) -> Fields:
        rows = self._log.rows()[self._num_seen :]
        keys = self._log.keys()[self._num_seen :]
        fields: Fields = {"touch": [], "alloc": [], "evict": [], "cache": []}
        last = None
        for (_, event, request_id, block), key in zip(rows.tolist(), keys, strict=True):
            if event in (Event.TOUCH, Event.ALLOC):
                name = "touch" if event == Event.TOUCH else "alloc"
                if last == (event, request_id):
                    fields[name][-1][1].append(block)
                else:
                    fields[name].append([self._name[request_id], [block]])
                last = (event, request_id)
            elif event in (Event.EVICT, Event.CACHE):
                content = key[1] if isinstance(key, tuple) else key  # of another group than the first: (group, content)
                assert isinstance(content, bytes)
                fields["evict" if event == Event.EVICT else "cache"].append([block, content.hex()])
        return fields

    def _sampling(self, plan: StepPlan) -> list[tuple[Request, bool]]:
        """The plan's requests, and whether it samples a token for them."""
        return [(s.request, num_computed + num_new == s.num_known) for s, num_computed, num_new in plan.scheduled()]

    def _commit(self, plan: StepPlan, rows: list[tuple[Request, bool]]) -> Fields:
        """What the output of a step brings."""
        alive = [(request, samples) for request, samples in rows if request.status is not Status.DONE]
        self._num_seen = len(self._log)
        done = self._scheduler.commit(plan, StepResult((1,)))
        tokens = {}
        for request, samples in alive:
            if samples:
                name = self._name[request.request_id]
                tokens[name] = self._outputs[name][self._num_output_tokens[name]]
                self._num_output_tokens[name] += 1
        fields: Fields = {"tok": tokens, "fin": [[self._name[request.request_id], "length"] for request in done]}
        if self._is_async:
            fields["upd"] = [self._name[request.request_id] for request, _ in alive]
            fields["cache_upd"] = self._block_events()["cache"]
        return fields

    def _end_of_step(self) -> Fields:
        pool = self._scheduler.tables.blocks
        queue = pool.free_queue()
        fields: Fields = {"free_end": pool.num_available, "cached_end": len(pool.index)}
        if self._header["config"]["num_gpu_blocks"] <= 80:
            fields["fq"] = queue
        else:
            fields["fqc"] = zlib.crc32(",".join(map(str, queue)).encode())
        return fields
