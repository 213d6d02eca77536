"""Parquet files of our own columns (the round trip is with that of the JSON lines)."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from core.errors import InputError
from traces.reading import read_trace
from traces.schema import Trace
from traces.writing import write_trace_as

pa = pytest.importorskip("pyarrow", reason="pyarrow is in the extra `traces`")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "trace.parquet"


def columns(**keys: object) -> dict[str, object]:
    return {"arrival_s": [0, 1, 2], "num_prompt_tokens": [5, 6, 7], "num_output_tokens": [1, 2, 3]} | keys


def test_a_file_made_by_another_tool(path):
    """Other widths, seconds as whole numbers or shorter decimals, lists of another kind, no header, no order."""
    pq.write_table(
        pa.table(
            {
                "arrival_s": pa.array([Decimal("1.5"), Decimal("0.25"), Decimal("61.114")], pa.decimal128(10, 3)),
                "num_prompt_tokens": pa.array([5, 6, 7], pa.int32()),
                "num_output_tokens": pa.array([1, 2, 3], pa.uint8()),
                "prompt_segments": pa.array([[[0, 5]], [[9, 2], [1, 4]], [[3, 7]]]),
                "parent": pa.array([1, None, 0], pa.int16()),
                "think_time_s": pa.array([2, None, 0]),
            }
        ),
        path,
    )

    trace = read_trace(path)

    assert trace.arrival_ps.tolist() == [250_000_000_000, 1_500_000_000_000, 61_114_000_000_000]
    assert trace.num_prompt_tokens.tolist() == [6, 5, 7]
    assert trace.prompt_segments.row(0).tolist() == [[9, 2], [1, 4]]
    assert trace.parent.tolist() == [-1, 0, 1]
    assert trace.think_time_ps.tolist() == [-1, 2 * 10**12, 0]
    assert trace.name == "trace"


def test_other_tools_read_what_we_write(path):
    trace = Trace("t", np.array([0, 61_114_000_000_001]), np.array([5, 6]), np.array([1, 2]), priority=np.array([0, 3]))
    write_trace_as("parquet", trace, path)
    table = pq.read_table(path)
    assert table.column("arrival_s").to_pylist() == [Decimal(0), Decimal("61.114000000001")]
    assert table.column("priority").to_pylist() == [None, 3]


def test_failed_calls_are_left_out_and_counted(path):
    pq.write_table(pa.table(columns(num_output_tokens=[1, 0, 3], parent=[None, 0, 1])), path)
    with pytest.raises(InputError, match=r"trace\.parquet, column num_output_tokens, row 1: 0; expected at least 1"):
        read_trace(path)
    trace = read_trace(path, on_error="skip")
    assert trace.num_dropped == {"zero_output": 1}
    assert trace.arrival_ps.tolist() == [0, 2 * 10**12]
    assert trace.parent.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"arrival_s": [0.0, 0.1, 0.2]}, "column arrival_s: double; expected seconds as decimals with up to 12 digits"),
        ({"arrival_s": [0, 1, 10**8]}, "column arrival_s: .*; expected times below 106 days \\(do they count from"),
        ({"num_prompt_tokens": ["5", "6", "7"]}, "column num_prompt_tokens: string; expected whole numbers"),
        ({"num_prompt_tokens": [5, None, 7]}, "row 1, column num_prompt_tokens: null; expected a number"),
        ({"num_prompt_tokens": [5, -6, 7]}, "row 1, column num_prompt_tokens: -6; expected at least 1"),
        ({"parent": [None, 2, 0]}, "row 1, column parent: 2; expected an earlier row"),
        ({"prompt_segments": [[[0, 5, 1]], [[0, 6]], [[0, 7]]]}, "column prompt_segments: .*; expected pairs"),
        ({"prompt_segments": [[0], [0], [1]]}, "column prompt_segments: .*; expected a list of whole numbers"),
        ({"hash_ids": [[1], [1], [1]]}, "hash_ids and hash_block_tokens come together"),
        (
            {"model": ["a", "b", "c"]},
            "columns arrival_s, num_prompt_tokens, num_output_tokens, model; expected arrival_s",
        ),
    ],
)
def test_mistakes_are_named(keys, message, path):
    pq.write_table(pa.table(columns(**keys)), path)
    with pytest.raises(InputError, match=message) as error:
        read_trace(path)
    assert "\n" not in str(error.value)


def test_a_missing_column_or_another_schema(path):
    pq.write_table(pa.table({"prompt": ["hello"]}), path)
    with pytest.raises(
        InputError, match=r"trace\.parquet: columns prompt; expected arrival_s, num_prompt_tokens, num_out"
    ):
        read_trace(path)
    pq.write_table(pa.table(columns()).replace_schema_metadata({b"kvtwin": b'{"kvtwin": "trace/9"}'}), path)
    with pytest.raises(InputError, match=r"metadata kvtwin: 'trace/9'; expected 'trace/1'"):
        read_trace(path)


def test_a_damaged_file_is_one_clear_line(path):
    write_trace_as("parquet", Trace("t", np.arange(50), np.full(50, 5), np.full(50, 1)), path)
    content = path.read_bytes()
    for length in (4, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(
            InputError, match=r"trace\.parquet: not readable as Parquet \(.*\); expected an intact file"
        ):
            read_trace(path)


def test_without_pyarrow_it_says_what_to_install(path, monkeypatch):
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"Parquet takes the package pyarrow; expected pip install 'kvtwin\[traces\]'"):
        read_trace(path)
