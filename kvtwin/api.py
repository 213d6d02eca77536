"""The Python face: `simulate`, `run_engine`, `compare`. The command's settings, and objects where you have some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from core.errors import InputError
from core.interfaces import Policy
from kvtwin.binding import POLICY_GROUPS, PolicyFactory
from kvtwin.comparison import compare_runs
from kvtwin.composition import compose_config
from kvtwin.naming import options_of
from kvtwin.run_folder import run_folder
from kvtwin.settings import check_settings
from kvtwin.simulating import load_cost, load_simulation, simulate_records
from kvtwin.store import Run, in_memory
from kvtwin.summary import RunRecords
from traces.schema import Trace


def simulate(
    trace: str | Path | Trace = "chat_sample",
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    **choices: Any,
) -> Run:
    """Replays a trace in the simulator and returns the run: `summary`, `requests`, `steps`, `gaps`.

    `trace` is the name of a bundled one, a file, or a Trace (limits and scales apply to it all the same). `choices` are
    the config groups: a policy group (`eviction`, `allocation`, `preemption`, `batching`, `queue`, `admission`,
    `routing`) takes a name or a class of your own (bind parameters with functools.partial); other groups take a name or
    a mapping of values: `pool={"num_blocks": 2000}`, `cluster={"num_replicas": 8}`. `overrides` are the command's
    `key=value` strings. With `out` the run folder is written there, else nothing is.

        kvtwin.simulate("agent_sessions_sample", eviction=MyPolicy, pool={"num_blocks": 1024}).summary["metrics"]

    Raises InputError for anything that cannot be.
    """
    config, policies = compose("sim", trace, overrides, choices | {"out": out})
    experiment = load_simulation(config, policies, trace if isinstance(trace, Trace) else None)
    with _folder(experiment.config) as folder:
        return _kept(simulate_records(experiment, load_cost(config)), folder)


def run_engine(
    trace: str | Path | Trace = "chat_sample",
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    **choices: Any,
) -> Run:
    """Replays a trace on the real engine; arguments as `simulate`. Needs `pip install 'kvtwin[engine]'`."""
    from kvtwin.engine_runs import load_engine_run

    config, policies = compose("engine", trace, overrides, choices | {"out": out})
    runner = load_engine_run(config, policies, trace if isinstance(trace, Trace) else None)
    with _folder(runner.setup.experiment.config) as folder:
        return _kept(runner.run().records, folder)


def compare(simulated: Run, measured: Run | Sequence[Run]) -> dict[str, Any]:
    """Simulated against measured (one run, or repeats of it): the contents of `comparison.json`.

    Raises InputError when pools or traces differ.
    """
    return compare_runs(simulated, [measured] if isinstance(measured, Run) else list(measured))


def compose(
    verb: str, trace: str | Path | Trace, overrides: Sequence[str], choices: Mapping[str, Any]
) -> tuple[DictConfig, dict[str, PolicyFactory]]:
    """The verb's configuration, its values checked, and the policies that were given as objects."""
    file, option = _trace_choice(trace)
    options = {group: choice for group, choice in choices.items() if isinstance(choice, str) and options_of(group)}
    policies = {group: choice for group, choice in choices.items() if group in POLICY_GROUPS and _is_policy(choice)}
    config = compose_config(verb, [*(f"{group}={name}" for group, name in options.items()), *option, *overrides])
    with open_dict(config):
        for key, choice in choices.items():
            if key in policies:
                config[key] = _policy_block(choice)
            elif isinstance(choice, Mapping):
                config[key] = OmegaConf.merge(config.get(key, {}), dict(choice))
            elif isinstance(choice, str | int | float | Path | None) and key not in options:
                config[key] = str(choice) if isinstance(choice, Path) else choice
            elif key not in options:
                raise InputError(f"{key}={choice!r}: expected a name, a mapping of values or a policy class")
        if file is not None:
            config.trace.path = file
    check_settings(config)
    return config, policies


def _trace_choice(trace: str | Path | Trace) -> tuple[str | None, list[str]]:
    """The file to read, if it is one, and the override that chooses the option."""
    if isinstance(trace, str) and (trace in options_of("trace") or not Path(trace).exists()):
        return None, [f"trace={trace}"]
    return trace.name if isinstance(trace, Trace) else str(trace), ["trace=file"]


def _is_policy(choice: Any) -> bool:
    cls = choice.func if isinstance(choice, partial) else choice
    return isinstance(cls, type) and issubclass(cls, Policy)


def _policy_block(policy: PolicyFactory) -> dict[str, Any]:
    """A policy given as an object as the configuration would name it: class, and the parameters it could write down."""
    bound = policy if isinstance(policy, partial) else partial(policy)
    plain = {name: value for name, value in bound.keywords.items() if isinstance(value, str | int | float | None)}
    return {"_target_": f"{bound.func.__module__}.{bound.func.__qualname__}", **plain}


@contextmanager
def _folder(config: Mapping[str, Any]) -> Iterator[Path | None]:
    """The run folder where `out` asks for one; nothing is written otherwise."""
    if config["out"] is None:
        yield None
        return
    with run_folder(config) as folder:
        yield folder


def _kept(records: RunRecords, folder: Path | None) -> Run:
    if folder is None:
        return in_memory(records.summary, records.requests, records.steps, records.gaps)
    return records.write(folder)
