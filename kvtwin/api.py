"""The Python face: `simulate`, `run_engine`, `compare`. The command's configuration, with objects where you have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from core.errors import InputError
from core.interfaces import Policy
from kvtwin.comparison import compare_runs
from kvtwin.experiment import POLICY_GROUPS
from kvtwin.naming import check_choices
from kvtwin.simulating import load_cost, load_simulation, simulate_records
from kvtwin.store import Run, in_memory, write_run
from kvtwin.summary import RunRecords
from traces.schema import Trace

PolicyChoice = str | type[Policy] | partial[Any]


def simulate(
    trace: str | Path | Trace = "chat_sample",
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    **choices: Any,
) -> Run:
    """Replays a trace in the simulator and returns the run: `summary`, `requests`, `steps`, `gaps`.

    `trace` is the name of a bundled one, a file, or a Trace. `choices` are the config groups: a policy group
    (`eviction`, `allocation`, `preemption`, `batching`, `queue`, `admission`) takes a name or a class of your own (bind
    parameters with functools.partial); other groups take a name or a mapping of values: `pool={"num_blocks": 2000}`.
    `overrides` are the command's `key=value` strings. With `out` the run folder is written there, else nothing is.

        kvtwin.simulate("agent_sessions_sample", eviction=MyPolicy, pool={"num_blocks": 1024}).summary["metrics"]

    Raises InputError for anything that cannot be.
    """
    config, policies = compose("sim", trace, overrides, choices)
    experiment = load_simulation(config, policies, trace if isinstance(trace, Trace) else None)
    return _kept(simulate_records(experiment, load_cost(config)), out)


def run_engine(
    trace: str | Path | Trace = "chat_sample",
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    **choices: Any,
) -> Run:
    """Replays a trace on the real engine; arguments as `simulate`. Needs `pip install 'kvtwin[engine]'`."""
    from kvtwin.engine_runs import load_engine_run

    config, policies = compose("engine", trace, overrides, choices)
    return _kept(load_engine_run(config, policies, trace if isinstance(trace, Trace) else None).run().records, out)


def compare(simulated: Run, measured: Run | Sequence[Run]) -> dict[str, Any]:
    """Simulated against measured (one run, or repeats of it): the contents of `comparison.json`.

    Raises InputError when pools or traces differ.
    """
    return compare_runs(simulated, [measured] if isinstance(measured, Run) else list(measured))


def compose(
    verb: str, trace: str | Path | Trace, overrides: Sequence[str], choices: Mapping[str, Any]
) -> tuple[DictConfig, dict[str, type[Policy] | partial[Any]]]:
    """The verb's configuration, and the policies that were given as objects."""
    policies: dict[str, type[Policy] | partial[Any]] = {}
    lines = [*_trace_overrides(trace)]
    for group, choice in choices.items():
        if isinstance(choice, str):
            lines.append(f"{group}={choice}")
        elif isinstance(choice, Mapping):
            lines += [f"{group}.{key}={value}" for key, value in choice.items()]
        elif group in POLICY_GROUPS and (isinstance(choice, partial) or _is_policy(choice)):
            policies[group] = choice
        elif isinstance(choice, int | float):
            lines.append(f"{group}={choice}")
        else:
            raise InputError(f"{group}={choice!r}: expected a name, a mapping of values or a policy class")
    lines += overrides
    check_choices(lines)
    GlobalHydra.instance().clear()
    with initialize_config_module(version_base="1.3", config_module="conf"):
        config = hydra_compose(config_name=verb, overrides=lines)
    for group, policy in policies.items():
        cls = policy.func if isinstance(policy, partial) else policy
        config[group] = {"_target_": f"{cls.__module__}.{cls.__qualname__}"}
    return config, policies


def _is_policy(choice: Any) -> bool:
    return isinstance(choice, type) and issubclass(choice, Policy)


def _trace_overrides(trace: str | Path | Trace) -> list[str]:
    if isinstance(trace, Trace):
        return ["trace=file", f"trace.path='{trace.name}'"]
    if isinstance(trace, Path):
        return ["trace=file", f"trace.path='{trace}'"]
    return [f"trace={trace}"]


def _kept(records: RunRecords, out: str | Path | None) -> Run:
    if out is None:
        return in_memory(records.summary, records.requests, records.steps, records.gaps)
    return write_run(
        Path(out),
        records.summary,
        requests=records.requests,
        steps=records.steps,
        gaps=records.gaps,
        files=records.files,
    )
