"""Jobs of a sweep are configured as Hydra would configure each by itself."""

from __future__ import annotations

import pytest
from hydra import initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kvtwin.plugins import offer_plugins
from kvtwin.sweep_configs import SweepConfigs


@pytest.fixture(scope="module")
def hydra_loader():
    offer_plugins()
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    with initialize_config_module(version_base="1.3", config_module="conf"):
        yield GlobalHydra.instance().config_loader()
    GlobalHydra.instance().hydra = outer


@pytest.fixture(scope="module")
def sweep(hydra_loader) -> DictConfig:
    return hydra_loader.load_configuration("sim", ["seed=7"], RunMode.MULTIRUN)


class Counted:
    """Hydra's loader, counting what it composes."""

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self.num_composed = 0

    def load_sweep_config(self, *args):
        self.num_composed += 1
        return self._loader.load_sweep_config(*args)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def everything(config: DictConfig) -> tuple[str, list]:
    """The configuration with its interpolations, and every flag of every node."""
    flags = []

    def walk(node):
        flags.append((OmegaConf.is_struct(node), OmegaConf.is_readonly(node), OmegaConf.get_cache(node)))
        for key in node if not node._is_none() and not node._is_missing() else ():
            child = node._get_node(key)
            if OmegaConf.is_dict(child):
                walk(child)

    walk(config)
    return OmegaConf.to_yaml(config), flags


JOBS = [
    ["trace=file", "trace.path='a b.jsonl'", "trace.rate_scale=0.5", "cost=linear", "++cost.own_s=0.01", "name=x"],
    ["eviction=own", "eviction._target_=my_policies.Mine", "++eviction.list=[1,2]", "out=mine/${hydra:job.num}"],
    [
        "eviction=radix/lru",
        "pool.prefix_index=radix",
        "pool={host_blocks: 9}",
        "admission=own",
        "admission={_target_: a.B}",
    ],
    ["preset=vllm_v0", "allocation=paged", "slo=chat", "slo.tpot_s=null", "model=tiny", "cost.overhead_s=${seed}"],
    ["+experiment=eviction_grid", "eviction=fifo", "pool.num_blocks=512", "trace=synth", "trace.seed=3"],
    ["~slo", "+paper.source=x", "seed=2"],
]


@pytest.mark.parametrize("words", JOBS, ids=" ".join)
def test_a_job_is_configured_as_by_hydra(hydra_loader, sweep, words):
    configs = SweepConfigs(hydra_loader)
    configs.load_sweep_config(sweep, words)  # what it leaves behind serves the next
    assert everything(configs.load_sweep_config(sweep, words)) == everything(
        hydra_loader.load_sweep_config(sweep, words)
    )


def test_values_alone_compose_nothing_anew(hydra_loader, sweep):
    counted = Counted(hydra_loader)
    configs = SweepConfigs(counted)
    for policy in ("lru", "fifo"):
        for num_blocks in range(20, 40):
            job = [f"eviction={policy}", f"pool.num_blocks={num_blocks}", "++eviction.own=1", "slo.ttft_s=null"]
            assert configs.load_sweep_config(sweep, job).pool.num_blocks == num_blocks
    assert counted.num_composed == 2


def test_jobs_share_nothing(hydra_loader, sweep):
    configs = SweepConfigs(hydra_loader)
    first, second = (configs.load_sweep_config(sweep, ["seed=1"]) for _ in range(2))
    first.pool.num_blocks = 7
    assert second.pool.num_blocks != 7


@pytest.mark.parametrize("word", ["eviction=ffio", "pool.num_bloks=4"])
def test_what_is_wrong_is_told_as_by_hydra(hydra_loader, sweep, word):
    with pytest.raises(HydraException) as of_hydra:
        hydra_loader.load_sweep_config(sweep, [word])
    with pytest.raises(HydraException) as ours:
        SweepConfigs(hydra_loader).load_sweep_config(sweep, [word])
    assert (type(ours.value), str(ours.value)) == (type(of_hydra.value), str(of_hydra.value))
