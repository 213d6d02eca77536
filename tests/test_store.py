"""Run folders: whole or not at all, the same run the same bytes, and one clear line for what is missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import synthetic_run

import kvtwin.store as store
from core.errors import InputError
from kvtwin.store import claim_run_folder, npz_bytes, read_run, write_run

MEMBERS = {"summary.json", "requests.npz", "steps.npz", "gaps.npz"}


def test_a_run_comes_back_as_it_was_written(tmp_path):
    written = synthetic_run(tmp_path / "run", "sim", seed=1)
    again = read_run(tmp_path / "run")
    assert again.summary == written.summary
    assert again.summary["schema"] == "kvtwin.run/1"
    assert not again.is_interrupted
    np.testing.assert_array_equal(again.requests["finish_s"], written.requests["finish_s"])
    assert {path.name for path in (tmp_path / "run").iterdir()} == MEMBERS, "no temporary file is left"


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    synthetic_run(tmp_path / "a", "sim", seed=1)
    synthetic_run(tmp_path / "b", "sim", seed=1)
    synthetic_run(tmp_path / "c", "sim", seed=2)
    content = {run: [(tmp_path / run / name).read_bytes() for name in sorted(MEMBERS)] for run in "abc"}
    assert content["a"] == content["b"]
    assert content["a"] != content["c"]


def test_npz_bytes_hold_no_clock_reading(monkeypatch):
    arrays = {"start_s": np.arange(5.0)}
    before = npz_bytes(arrays)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert npz_bytes(arrays) == before


def test_ids_of_one_config_never_collide(tmp_path):
    first, second = (claim_run_folder(tmp_path, "grid", {"seed": 0, "pool": 8}) for _ in range(2))
    other = claim_run_folder(tmp_path, "grid", {"seed": 1, "pool": 8})
    reordered = claim_run_folder(tmp_path, "grid", {"pool": 8, "seed": 0})
    assert first.name.endswith("-1")
    assert second.name == first.name.replace("-1", "-2")
    assert other.name.endswith("-1")
    assert reordered.name == first.name.replace("-1", "-3"), "the order of keys is no difference"


def test_further_files_and_the_interrupted_mark_are_kept(tmp_path):
    run = synthetic_run(tmp_path / "run", "sim", seed=1)
    summary = {**run.summary, "interrupted": True}
    partial = write_run(
        tmp_path / "partial",
        summary,
        requests=run.requests,
        steps=run.steps,
        gaps=run.gaps,
        files={"decisions.jsonl.gz": b"log"},
    )
    assert partial.is_interrupted
    assert (partial.path / "decisions.jsonl.gz").read_bytes() == b"log"


def test_a_write_cut_short_leaves_no_summary(tmp_path, monkeypatch):
    """The disk fails at the second rename: neither the old summary nor a new one may call the folder whole."""
    run = synthetic_run(tmp_path / "run", "sim", seed=1)
    replaced = []

    def failing_replace(source, target):
        replaced.append(target)
        if len(replaced) == 2:
            raise OSError("disk full")
        return os_replace(source, target)

    os_replace = store.os.replace
    monkeypatch.setattr(store.os, "replace", failing_replace)
    with pytest.raises(InputError, match="cannot write run folder"):
        write_run(run.path, run.summary, requests=run.requests, steps=run.steps, gaps=run.gaps)
    monkeypatch.undo()
    assert not list(run.path.glob("*.tmp"))
    assert not list(run.path.glob(".*"))
    with pytest.raises(InputError, match=r"not a finished run: it has no summary\.json"):
        read_run(run.path)


def test_a_nan_in_the_summary_is_refused_before_anything_is_written(tmp_path):
    run = synthetic_run(tmp_path / "run", "sim", seed=1)
    with pytest.raises(ValueError, match="JSON"):
        write_run(tmp_path / "new", {"x": float("nan")}, requests=run.requests, steps=run.steps, gaps=run.gaps)
    assert not (tmp_path / "new").exists()


def damage_folder(path):
    path.rename(path.with_name("elsewhere"))


def damage_member(path):
    (path / "steps.npz").unlink()


def damage_json(path):
    (path / "summary.json").write_text('{"schema": "kvtwin.ru')


def damage_schema(path):
    (path / "summary.json").write_text(json.dumps({"schema": "kvtwin.run/9"}))


def damage_parts(path):
    summary = json.loads((path / "summary.json").read_text())
    del summary["labels"]
    (path / "summary.json").write_text(json.dumps({**summary, "metrics": []}))


def damage_place(path):
    for run in ("lru", "fifo"):
        path.rename(path.with_name(run))
        path.mkdir(exist_ok=True)
        path.with_name(run).rename(path / run)


def damage_kind(path):
    path.rename(path.with_name("elsewhere"))
    path.write_text("{}")


def damage_npz(path):
    (path / "requests.npz").write_bytes(b"PK\x03\x04 cut short")


def damage_column(path):
    (path / "gaps.npz").write_bytes(npz_bytes({"gap_s": np.arange(2.0)}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_folder, "no run folder at"),
        (damage_member, r"half written: it has no steps\.npz"),
        (damage_json, "not readable as JSON"),
        (damage_schema, r"schema is 'kvtwin\.run/9', expected 'kvtwin\.run/1'; another version of kvtwin wrote it"),
        (damage_parts, r"summary\.json: no proper labels, metrics; expected a summary as a run writes it"),
        (damage_place, r"it has no summary\.json; expected .*/run/fifo/lru$"),
        (damage_kind, "is a file; expected the folder of a run"),
        (damage_npz, "not readable as npz"),
        (damage_column, "column 'multiplicity' is missing"),
    ],
)
def test_a_damaged_folder_is_told_in_one_line(tmp_path, damage, message):
    synthetic_run(tmp_path / "run", "sim", seed=1)
    damage(tmp_path / "run")
    with pytest.raises(InputError, match=message) as error:
        read_run(tmp_path / "run")
    assert "\n" not in str(error.value)
