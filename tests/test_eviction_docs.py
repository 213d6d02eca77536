"""The table in docs/eviction.md cannot go stale: names, parameters and promises are those of conf/eviction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from shapes import CONF, bundled

from kvtwin.binding import find_class

PAGE = (Path(__file__).parents[1] / "docs" / "eviction.md").read_text()
TABLE = PAGE.partition("*Prefix-closed*")[0]
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", TABLE, re.MULTILINE))
NAMES = [name for name in bundled("eviction") if name != "own"]


def cells_of(name: str) -> list[str]:
    return [cell.strip() for cell in str(ROWS[name]).split(" | ")]


def written(value: Any) -> str:
    """As on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_every_policy_has_its_row() -> None:
    assert sorted(ROWS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_tells_parameters_and_promises(name: str) -> None:
    config: Any = OmegaConf.to_container(OmegaConf.load(CONF / "eviction" / f"{name}.yaml"))
    policy = find_class(config.pop("_target_"), "eviction")
    decides, parameters, source, is_closed, cost, proof = cells_of(name)
    assert parameters == (", ".join(f"`{key}={written(value)}`" for key, value in config.items()) or "none")
    assert is_closed == ("yes" if policy.is_prefix_closed else "leaves only" if policy.leaf_first else "no")
    assert all((decides, source, cost, proof))
    assert ("clairvoyant" in decides) == policy.clairvoyant


def test_strategies_of_the_radix_tree_are_listed() -> None:
    listed = re.search(r"`eviction=radix/NAME` ranks them: ([\w, \n]+)\.", PAGE)
    assert listed is not None
    assert sorted(re.split(r",\s+", listed[1])) == sorted(bundled("eviction/radix"))
