"""Replicas as tasks of Ray: the same records as processes of this machine give."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import kvtwin
from core.errors import InputError
from kvtwin.ray_tasks import require_ray

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray, which is no dependency")


def fleet(shards_on: str, shards: int | str = 2, routing: str = "hash") -> Any:
    cluster = {"num_replicas": 3, "shards": shards, "shards_on": shards_on}
    return kvtwin.simulate("agent_sessions_sample", overrides=["trace.limit=80"], cluster=cluster, routing=routing)


@needs_ray
def test_ray_and_processes_leave_the_same_records():
    ours, theirs = fleet("processes"), fleet("ray")
    for name in ("requests", "steps", "gaps"):
        for column, values in getattr(ours, name).items():
            np.testing.assert_array_equal(values, getattr(theirs, name)[column], err_msg=f"{name}.{column}")
    for block in ("metrics", "decisions", "fleet"):
        assert ours.summary[block] == theirs.summary[block]


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_it_is_said_what_to_install():
    with pytest.raises(InputError, match=r"cluster.shards_on=ray: this needs Ray, pip install ray; expected that, or"):
        require_ray()


def test_a_fleet_on_one_clock_has_no_use_for_ray(monkeypatch):
    monkeypatch.setattr("kvtwin.ray_tasks.require_ray", lambda: None)
    with pytest.raises(InputError, match=r"cluster.shards_on=ray: this routing looks at the replicas; expected proc"):
        fleet("ray", shards="auto", routing="least_outstanding")
