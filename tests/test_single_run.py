"""A command that sweeps nothing starts by a shorter way than Hydra's own, and its job cannot tell."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from kvtwin import sweep
from kvtwin.single_run import run_single
from kvtwin.sweep import JobOutcome, run_app


class Seen:
    """What a job finds when it starts."""

    def __init__(self) -> None:
        self.configs: list[str] = []
        self.surroundings: list[object] = []

    def __call__(self, config: DictConfig) -> JobOutcome:
        hydras = HydraConfig.instance().cfg
        self.configs += [OmegaConf.to_yaml(config), OmegaConf.to_yaml(hydras)]
        self.surroundings += [os.getcwd(), OmegaConf.is_struct(config), logging.getLogger().level]
        return JobOutcome(None)


@pytest.fixture
def num_composed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever Hydra composes a configuration."""
    composed: list[object] = []
    load = ConfigLoaderImpl.load_configuration

    def counted(self: ConfigLoaderImpl, config_name: str, *args: object, **options: object) -> DictConfig:
        composed.append(config_name)
        return load(self, config_name, *args, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    return composed


def job_of(words: Sequence[str]) -> Seen:
    seen = Seen()
    assert run_app("sim", words, seen) == 0
    return seen


def test_a_job_sees_what_hydra_would_show_it(num_composed, monkeypatch):
    words = ["preset=vllm_v0", "eviction=lfu", "++trace.limit=3", "out=${hydra:job.name}"]
    ours = job_of(words)
    assert len(num_composed) == 1
    monkeypatch.setattr(sweep, "run_single", lambda *args: False)
    hydras = job_of(words)
    assert len(num_composed) == 3
    assert ours.configs == hydras.configs
    assert ours.surroundings == hydras.surroundings


@pytest.mark.parametrize(
    ("words", "num"),
    [
        (["-m", "seed=1,2"], 0),
        (["--cfg", "job"], 0),
        (["hydra.job.chdir=false"], 0),
        (["~hydra/launcher"], 0),
        (["+experiment=eviction_grid"], 1),  # is a sweep
        (["no_such_key=1"], 1),
    ],
)
def test_what_is_more_than_one_plain_run_is_left_to_hydra(num_composed, words, num):
    assert not run_single("sim", words, pytest.fail)
    assert len(num_composed) == num


def test_an_error_of_the_job_is_its_own():
    def fails(config: DictConfig) -> None:
        raise ZeroDivisionError(config.seed)

    with pytest.raises(ZeroDivisionError, match="7"):
        run_single("sim", ["seed=7"], fails)
