"""Steps that overlap: nothing waits for the device when one begins, the words are those of steps one by one, from CUDA
graphs, too, and the decisions, under pressure and with swaps, those of the simulator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.stage import Findings, Row, Setting
from core.decision_log import Event
from engine.executor import TorchExecutor
from kvtwin.composition import compose_config
from kvtwin.engine_runs import EngineResult, EngineSession, load_engine_run
from kvtwin.progress import Silent
from kvtwin.replaying import check_lockstep

COMMON = ("engine.output=forced_length", "engine.weights=random", "engine.dtype=float32", "trace.arrivals=all_at_once")
OVERLAPPING = ("scheduler.async_scheduling=true",)
PRESSED = (*OVERLAPPING, "preemption=swap", "engine.shadow=true")


def run(setting: Setting) -> Findings:
    findings = Findings()
    kinds = {"one by one": (), "overlapping": OVERLAPPING}
    if setting.is_gpu:
        kinds["overlapping, from graphs"] = (*OVERLAPPING, "engine.cuda_graphs=true")
    said = {}
    for kind, words in kinds.items():
        session, result = _run([*setting.sizes.overlap, *words], setting)
        said[kind] = own = _clear_words(session.observed.executor)
        expected = said["one by one"]
        differing = [request for request in own.keys() & expected.keys() if own[request] != expected[request]]
        row: Row = {"steps": kind, "num_steps": len(result.durations_s), "seconds": float(result.durations_s.sum())}
        findings.rows.append(row | {"num_compared": len(own.keys() & expected.keys()), "num_differing": len(differing)})
        findings.failures += [f"request {request}: other words when steps are {kind}" for request in differing]
    _add_lockstep(findings, setting)
    return findings


def _run(words: Sequence[str], setting: Setting) -> tuple[EngineSession, EngineResult]:
    session = load_engine_run(compose_config("engine", [*COMMON, *words])).start(Silent())
    if setting.is_gpu:
        _forbid_waiting(session.observed.executor)
    while session.loop.take_turn(1):
        pass
    return session, session.finish(interrupted=False)


def _clear_words(executor: TorchExecutor) -> dict[int, list[int]]:
    """What the requests said whose every token was the clear best."""
    tied = {tie.request_id for tie in executor.near_ties}
    return {
        request: executor.tokens.outputs(request) for request in executor.tokens.request_ids() if request not in tied
    }


def _add_lockstep(findings: Findings, setting: Setting) -> None:
    """A pool that is too small: blocks are swapped, each slot is tagged; the simulator repeats the run."""
    session, result = _run([*setting.sizes.pressed, *PRESSED], setting)
    with tempfile.TemporaryDirectory() as folder:
        lockstep = check_lockstep(result.records.write(Path(folder, "run")), result.log)
    num_swap_ins = int((result.log.rows()[:, 1] == Event.SWAP_IN).sum())
    num_checked = sum(session.shadow.num_checked.values()) if session.shadow else 0
    row: Row = {"lockstep": asdict(lockstep), "num_swap_ins": num_swap_ins, "num_tags_checked": num_checked}
    findings.rows.append(row)
    if lockstep.first_difference is not None:
        findings.failures.append(f"decisions differ when steps overlap: {lockstep.first_difference}")
    if not (num_swap_ins and num_checked):
        findings.failures.append(f"overlapping steps under pressure proved nothing: {row}")


def _forbid_waiting(executor: TorchExecutor) -> None:
    """From now on torch raises an error where the host waits for the device while a step begins."""
    begin = executor._begin

    def begin_without_waiting(step: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return begin(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    executor._begin = begin_without_waiting  # type: ignore[method-assign]
