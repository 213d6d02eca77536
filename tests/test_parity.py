"""What another engine decided, this scheduler decides: every field of every step of vLLM's recorded logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import InputError
from kvtwin.parity.checking import check_log

BUNDLED = Path(__file__).parent / "data" / "golden_vllm"
SHARED = Path(__file__).parents[1].parent / "shared" / "golden" / "vllm"

Step = dict[str, Any]


def logs(folder: Path) -> list[Any]:
    """The logs of a folder, or one skipped parameter where there is none."""
    absent = pytest.param(None, marks=pytest.mark.skip(reason="no shared/golden beside the checkout"))
    return [pytest.param(log, id=log.stem) for log in sorted(folder.glob("*.jsonl"))] or [absent]


@pytest.mark.parametrize("log", logs(BUNDLED) + logs(SHARED))
def test_recorded_logs_are_reproduced(log: Path) -> None:
    result = check_log(log)
    assert result.is_equal, result.difference
    assert result.num_steps == len(log.read_text().splitlines()) - 1, "a line a step, all of them compared"


def rewritten(tmp_path: Path, name: str, **header: Any) -> Path:
    """The bundled log with another header."""
    lines = (BUNDLED / f"{name}.jsonl").read_text().splitlines()
    path = tmp_path / f"{name}.jsonl"
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), **header}), *lines[1:]]))
    return path


@pytest.mark.parametrize(
    ("name", "version", "difference"),
    [
        ("v0_20_priority", "0.33.0", "step 0: sched"),  # a request that is alone computes more than the threshold
        ("v0_20_cached", "0.32.0", "step 1: fq"),  # blocks without content come first
        ("v0_32_priority", "0.33.0", "step 27: sched"),  # those after a request that preempts itself go on
        ("g4_priority_ties", "0.32.0", "step 13: alloc"),
    ],
)
def test_versions_differ(tmp_path: Path, name: str, version: str, difference: str) -> None:
    result = check_log(rewritten(tmp_path, name, version=version))
    assert str(result.difference).startswith(difference), result.difference


def test_versions_without_known_rules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"version '0.29.0' cannot be replayed; expected one of 0.20, 0.32, 0.33"):
        check_log(rewritten(tmp_path, "a_plain", version="0.29.0"))
    with pytest.raises(InputError, match=r"several KV groups of version 0.32.0 cannot be replayed"):
        check_log(rewritten(tmp_path, "w2_windows_cached", version="0.32.0"))


def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path) -> None:
    absent, text, empty = (tmp_path / name for name in ("absent.jsonl", "text.jsonl", "empty.jsonl"))
    text.write_text("no JSON here\n")
    empty.write_text("")
    for path, expected in ((absent, "No such file"), (text, "not JSON lines"), (empty, "empty; line 1")):
        with pytest.raises(InputError, match=expected) as caught:
            check_log(path)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)


def drop_an_event(step: Step) -> None:
    step["alloc"][0][1].pop()


def swap_two_blocks_of_the_free_queue(step: Step) -> None:
    step["fq"][0], step["fq"][1] = step["fq"][1], step["fq"][0]


def count_one_token_more(step: Step) -> None:
    step["sched"][0][3] += 1


def forget_an_output(step: Step) -> None:
    step["upd"].pop()


def forge_a_hash(step: Step) -> None:
    step["cache"][0][1] = "00" * 8


@pytest.mark.parametrize(
    ("corrupt", "field", "log"),
    [
        (forget_an_output, "upd", "k2_async_plain"),
        (drop_an_event, "alloc", "c_preempt"),
        (swap_two_blocks_of_the_free_queue, "fq", "c_preempt"),
        (count_one_token_more, "sched", "b_chunked"),
        (forge_a_hash, "cache", "d_prefix"),
    ],
)
def test_one_wrong_value_is_found_at_its_step(
    tmp_path: Path, corrupt: Callable[[Step], None], field: str, log: str
) -> None:
    """The negative control: the comparison looks at every one of these fields, and stops at the first that differs."""
    lines = [json.loads(line) for line in (BUNDLED / f"{log}.jsonl").read_text().splitlines()]
    later = [place for place, step in enumerate(lines) if place > len(lines) // 3 and step.get(field)]
    corrupt(lines[later[0]])
    forged = tmp_path / "forged.jsonl"
    forged.write_text("\n".join(map(json.dumps, lines)))
    result = check_log(forged)
    assert not result.is_equal
    assert str(result.difference).startswith(f"step {lines[later[0]]['t']}: {field}:"), result.difference
    assert result.num_steps == later[0] - 1, "steps before it were equal"


def test_a_step_that_should_not_be_there_is_found(tmp_path: Path) -> None:
    lines = (BUNDLED / "a_plain.jsonl").read_text().splitlines()
    longer = tmp_path / "longer.jsonl"
    extra = {**json.loads(lines[-1]), "t": 999}
    longer.write_text("\n".join([*lines, json.dumps(extra)]))
    result = check_log(longer)
    assert str(result.difference).startswith("step 999"), result.difference


def test_a_log_cut_short_is_not_equal(tmp_path: Path) -> None:
    lines = (BUNDLED / "a_plain.jsonl").read_text().splitlines()
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join(lines[:10]))
    result = check_log(cut)
    assert result.difference == "the log ends after 9 steps, but requests are unfinished"
