"""Classes are made of plain parameters without Hydra, and of all others with it: the same either way."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from shapes import CONF, bundled

from core.errors import InputError
from kvtwin import binding
from kvtwin.binding import POLICY_BASES, bind_policy, instantiate_one


def options(group: str) -> list[DictConfig]:
    """Those that need nothing of another group."""
    loaded = [OmegaConf.load(CONF / group / f"{name}.yaml") for name in bundled(group)]
    return [each for each in loaded if "_target_" in each and "${" not in str(each)]


@pytest.mark.parametrize("group", POLICY_BASES)
def test_every_policy_gets_the_parameters_that_hydra_would_give_it(group):
    for option in options(group):
        bound, hydras = bind_policy(option, group).args[0], instantiate(option, _partial_=True)
        assert (bound.func, bound.keywords) == (hydras.func, hydras.keywords), option


@pytest.mark.parametrize("group", ["model", "hardware"])
def test_every_model_and_device_is_the_one_that_hydra_would_make(group):
    for option in options(group):
        assert instantiate_one(option, group) == instantiate(option), option


@pytest.fixture
def hydras(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Hydra was asked to make."""
    asked: list[Any] = []

    def noting(config: DictConfig, **extra: Any) -> Any:
        asked.append(config)
        return instantiate(config, **extra)

    monkeypatch.setattr(binding, "instantiate", noting)
    return asked


@pytest.mark.parametrize(
    ("value", "made", "num"),
    [(8, 8, 0), (None, None, 0), ("eight", "eight", 0), ("${room}", 8, 1), ([8], [8], 1), ({"a": 8}, {"a": 8}, 1)],
)
def test_hydra_is_asked_where_there_is_more_to_do_than_to_hand_over(hydras, value, made, num):
    whole = OmegaConf.create({"room": 8, "eviction": {"_target_": "policies.eviction.ttl.TTL", "ttl_s": value}})
    factory: partial[Any] = bind_policy(whole.eviction, "eviction").args[0]
    assert (factory.keywords["ttl_s"], len(hydras)) == (made, num)


def test_a_class_that_refuses_its_values_is_told_in_one_line():
    option = OmegaConf.load(CONF / "hardware" / "h100_80gb.yaml")
    del option["memory_bytes"]
    with pytest.raises(InputError, match=r"^hardware\._target_=core\.hardware\.Hardware: .*memory_bytes"):
        instantiate_one(option, "hardware")
