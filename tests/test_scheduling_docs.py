"""The guide to scheduling policies names what there is: files, parameters, and who is clairvoyant."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from shapes import CONF, bundled

from kvtwin.binding import find_class

GUIDE = CONF.parent / "docs" / "scheduling-policies.md"
Row = tuple[str, set[str], bool]


def rows(group: str) -> list[Row]:
    """(name, parameters, is it clairvoyant) of each row in the group's table."""
    section = GUIDE.read_text().split(f"## {group.capitalize()}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")
    ]
    return [
        (name.strip("`"), {word.strip("` ") for word in parameters.split(",")} - {""}, clairvoyant == "yes")
        for name, _, parameters, clairvoyant, _ in cells
    ]


def files(group: str) -> list[Row]:
    found = []
    for name in bundled(group):
        if name != "own":
            config = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
            policy = find_class(config.pop("_target_"), group)
            found.append((name, set(config), policy.clairvoyant))
    return found


@pytest.mark.parametrize("group", ["queue", "admission", "preemption"])
def test_the_tables_are_complete(group):
    assert sorted(rows(group), key=lambda row: row[0]) == files(group)


@pytest.mark.parametrize("group", ["queue", "admission", "preemption"])
def test_every_file_opens_with_a_word_about_it(group):
    for name in bundled(group):
        text = (CONF / group / f"{name}.yaml").read_text()
        assert text.startswith("# ") or name in ("fcfs", "priority"), name
