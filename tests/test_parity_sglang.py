"""What SGLang's radix tree did, ours does: every result of every recorded operation (SGLang 0.5.23)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import InputError
from kvtwin.app import main
from kvtwin.parity.checking import check_log

BUNDLED = Path(__file__).parent / "data" / "golden_sglang"
SHARED = Path(__file__).parents[1].parent / "shared" / "golden" / "sglang"

Record = dict[str, Any]


def logs(folder: Path) -> list[Any]:
    found = [pytest.param(log, id=log.stem) for log in sorted(folder.glob("*.jsonl"))]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="no shared/golden beside the checkout"))]


@pytest.mark.parametrize("log", logs(BUNDLED) + logs(SHARED))
def test_recorded_logs_are_reproduced(log: Path) -> None:
    result = check_log(log)
    assert result.is_equal, result.difference
    assert result.num_steps == sum('"op":' in line for line in log.read_text().splitlines())


def records_of(name: str) -> list[Record]:
    return [json.loads(line) for line in (BUNDLED / f"{name}.jsonl").read_text().splitlines()]


def write(tmp_path: Path, records: list[Record]) -> Path:
    path = tmp_path / "forged.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return path


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        *[("match", field) for field in ("len", "node", "split", "evictable", "protected", "tree")],
        *[("insert", field) for field in ("len", "node", "new", "evictable", "protected", "tree")],
        *[("evict", field) for field in ("got", "nodes", "evictable", "protected", "tree")],
        *[(lock, field) for lock in ("lock", "unlock") for field in ("evictable", "protected", "tree")],
    ],
)
def test_one_wrong_result_is_found_at_its_operation(tmp_path: Path, operation: str, field: str) -> None:
    """The negative control: every field of every kind of operation is looked at."""
    records = records_of("basic.lru.p1")
    place = next(place for place, record in enumerate(records) if record.get("op") == operation)
    value = records[place][field]
    records[place][field] = value + 1 if isinstance(value, int) else [*value, value]
    result = check_log(write(tmp_path, records))
    number = records[place]["i"]
    assert str(result.difference).startswith(f"operation {number} ({operation}): {field}: recorded"), result.difference
    assert result.num_steps == number


def test_a_result_left_out_is_a_difference(tmp_path: Path) -> None:
    records = records_of("basic.lru.p1")
    del records[3]["tree"]
    assert ": tree: recorded None, ours " in str(check_log(write(tmp_path, records)).difference)


def test_another_strategy_than_the_recorded_one_differs(tmp_path: Path) -> None:
    records = records_of("locked.slru.p1")
    records[0]["policy"] = "mru"
    assert not check_log(write(tmp_path, records)).is_equal


def set_header(name: str, value: Any) -> Callable[[list[Record]], None]:
    def corrupt(records: list[Record]) -> None:
        records[0][name] = value

    return corrupt


def lock_a_stranger(records: list[Record]) -> None:
    next(record for record in records if record.get("op") == "lock")["node"] = 99


def unlock_twice(records: list[Record]) -> None:
    place = next(place for place, record in enumerate(records) if record.get("op") == "unlock")
    records.insert(place + 1, records[place])


def drop_slots(records: list[Record]) -> None:
    next(record for record in records if record.get("op") == "insert")["slots"] = [[0, 3]]


def drop_operations(records: list[Record]) -> None:
    del records[2:]


def forget_a_sequence(records: list[Record]) -> None:
    del records[1]


def sing(records: list[Record]) -> None:
    records[2]["op"] = "sing"


@pytest.mark.parametrize(
    ("corrupt", "line"),
    [
        (set_header("policy", "tlru"), "policy 'tlru' cannot be replayed; expected one of lru, mru, fifo, filo, lfu"),
        (set_header("class", "SWATree"), "class of tree 'SWATree' cannot be replayed; expected one of Unified"),
        (set_header("page_size", 0), "page_size 0; expected at least 1"),
        (set_header("page_size", "x"), "not a complete log"),
        (set_header("engine", "other"), "line 1 has neither"),
        (lock_a_stranger, "operation 23: no node 99 in the tree"),
        (unlock_twice, "operation 29: node 4 is not locked"),
        (drop_slots, "operation 1: fewer slots than tokens"),
        (drop_operations, "no operation in it"),
        (forget_a_sequence, "not a complete log"),
        (sing, "operation 0: 'sing' cannot be replayed; expected one of match, insert, evict, lock, unlock"),
    ],
)
def test_a_broken_log_is_refused_in_one_line(
    tmp_path: Path, corrupt: Callable[[list[Record]], None], line: str
) -> None:
    records = records_of("basic.lru.p1")
    corrupt(records)
    with pytest.raises(InputError) as caught:
        check_log(write(tmp_path, records))
    assert str(caught.value).startswith(f"{tmp_path / 'forged.jsonl'}: {line}"), caught.value
    assert "\n" not in str(caught.value)


def test_the_older_tree_is_known_by_its_class(tmp_path: Path) -> None:
    """RadixCache: the upper half of a split is new, which fifo notices; a lock tells how the evictable size changed."""
    records = [{key: value for key, value in row.items() if key != "delta"} for row in records_of("random_old.fifo.p1")]
    records[0]["class"] = "UnifiedTreeCore"
    assert "(evict): evictable: recorded" in str(check_log(write(tmp_path, records)).difference)
    records = records_of("random_old.fifo.p1")
    next(record for record in records if record.get("op") == "lock")["delta"] = 1
    assert "(lock): delta: recorded 1, ours" in str(check_log(write(tmp_path, records)).difference)


def test_the_command_takes_both_formats(capsys: pytest.CaptureFixture[str]) -> None:
    vllm = BUNDLED.parent / "golden_vllm" / "a_plain.jsonl"
    assert main(["parity", str(vllm), str(BUNDLED / "basic.lru.p1.jsonl")]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "basic.lru.p1.jsonl: 34 steps compared, equal"
