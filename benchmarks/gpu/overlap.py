"""Steps that overlap: nothing waits for the device when one begins, and the words are those of steps one by one."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.stage import Findings, Row, Setting
from engine.executor import TorchExecutor
from kvtwin.composition import compose_config
from kvtwin.engine_runs import EngineRunner, load_engine_run
from kvtwin.progress import Silent

COMMON = ("engine.output=forced_length", "engine.weights=random", "engine.dtype=float32", "trace.arrivals=all_at_once")


def run(setting: Setting) -> Findings:
    findings = Findings()
    said = {}
    for is_async in (True, False):
        words = [*COMMON, *setting.sizes.overlap, f"scheduler.async_scheduling={str(is_async).lower()}"]
        row, said[is_async] = _row(load_engine_run(compose_config("engine", words)), is_async, setting)
        findings.rows.append(row)
    differing = [key for key, tokens in said[False].items() if said[True].get(key, tokens) != tokens]
    findings.rows.append({"num_compared": len(said[False].keys() & said[True].keys()), "num_differing": len(differing)})
    findings.failures += [f"request {request}: other words when steps overlap" for request in differing]
    return findings


def _row(runner: EngineRunner, is_async: bool, setting: Setting) -> tuple[Row, dict[int, list[int]]]:
    """One run; and what the requests said whose every token was the clear best, by request."""
    session = runner.start(Silent())
    executor = session.observed.executor
    if setting.is_gpu:
        _forbid_waiting(executor)
    while session.loop.take_turn(1):
        pass
    durations_s = session.finish(interrupted=False).durations_s
    tied = {tie.request_id for tie in executor.near_ties}
    said = {request: executor.tokens.outputs(request) for request in executor.tokens.request_ids()}
    row = {"async_scheduling": is_async, "num_steps": len(durations_s), "seconds": float(durations_s.sum())}
    return row, {request: tokens for request, tokens in said.items() if request not in tied}


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
