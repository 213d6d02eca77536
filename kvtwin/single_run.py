"""The one job of a command that sweeps nothing: its configuration is composed once; `hydra.main` would do it twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra import compose, initialize_config_module
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, configure_log, run_job
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from kvtwin.rare_collection import rare_collection

_OWN_CALLBACKS = {"guard"}  # of conf/hydra_quiet.yaml; it guards sweeps


def run_single(verb: str, words: Sequence[str], job: TaskFunction) -> bool:
    """Runs the job as `hydra.main` would. Returns False, with nothing done, where that is needed: for flags, settings
    of Hydra's own, sweeps that an experiment asks for, and whatever cannot be composed, which Hydra is to tell.

    `hydra.main` composes a configuration to learn whether it is a sweep, and then once more.
    """
    if any(word.startswith("-") or word.lstrip("+~").startswith(("hydra.", "hydra/")) for word in words):
        return False
    with _hydra():
        config = _composed(verb, words)
        if config is None:
            return False
        loader = GlobalHydra.instance().config_loader()
        context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
        _returned_value(run_job(job, config, "hydra.run.dir", None, context))
    return True


@contextmanager
def _hydra() -> Iterator[None]:
    """Whatever Hydra application this may be called from, it goes on with its own Hydra."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("conf", job_name="sweep", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _composed(verb: str, words: Sequence[str]) -> DictConfig | None:
    """The configuration of a plain run; None where it is not, or none at all."""
    try:
        with rare_collection():
            config = compose(verb, list(words), return_hydra_config=True)
    except Exception:  # Hydra raises its own exceptions, OmegaConf's and ValueError for one and the same
        return None
    if config.hydra.mode is not None or set(config.hydra.callbacks) != _OWN_CALLBACKS:
        return None
    config.hydra.mode = RunMode.RUN
    config.hydra.overrides.hydra.append("hydra.mode=RUN")  # as Hydra notes it
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    return config


def _returned_value(returned: JobReturn) -> object:
    """Raises what the job raised."""
    value: object = returned.return_value
    return value
