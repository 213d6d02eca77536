"""Rows of a Mooncake trace that are read together come out as those that are read one by one: values and complaints."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InputError
from traces.readers import content, mooncake_columns
from traces.readers.fields import json_objects
from traces.reading import read_trace
from traces.schema import Trace

PLAIN = '{"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}\n'
OTHERS = (
    '{"input_length": 30, "output_length": 5}\n',  # arrives with the row before
    '{"session_id": "a", "input_length": 600, "output_length": 5}\n',
    '{"session_id": "a", "input_length": 30, "output_length": 5, "delay": 2.5}\n',
    '{"timestamp": 0.5, "input_length": 3, "output_length": 1, "hash_ids": [1]}\r\n',
    "\n",
)
# A value, and what it becomes: each is wrong, or right in a way that only rows by themselves may be.
CHANGES = (
    ("27", "27.5"),
    ("27", "-1"),
    ("27", "true"),
    ("27", "9" * 25),
    ("600", "6000"),
    ("600", "0"),
    ("5", "null"),
    ("[7, 9]", "[7]"),
    ("[7, 9]", "[7, true]"),
    ("[7, 9]", "[7, -9]"),
    ("[7, 9]", '"79"'),
    ("[7, 9]", "[7,\n9]"),
    ("}", "} "),
    ("}", "}}"),
    ("}", "} {}"),
    ('"hash_ids": [7, 9]', '"hash_ids": [7, 9], "session_id": "b"'),
    ('"timestamp"', '"time"'),
)


def outcome(path, on_error: str) -> list | str:
    """All that a trace says, or the complaint."""
    try:
        trace: Trace = read_trace(path, "mooncake", on_error)
    except InputError as error:
        return str(error)
    ids = trace.hash_ids
    columns = {name: column.tolist() for name, column in trace.columns()}
    return [columns, ids and (ids.values.tolist(), ids.offsets.tolist()), trace.num_dropped]


def assert_rows_together_are_rows_by_themselves(path, on_error: str) -> None:
    together = outcome(path, on_error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mooncake_columns, "json_objects", lambda text: None)
        assert together == outcome(path, on_error)


@pytest.mark.parametrize("change", CHANGES)
def test_one_row_is_not_plain(change, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(PLAIN + PLAIN.replace(*change) + PLAIN)
    for on_error in ("fail", "skip"):
        assert_rows_together_are_rows_by_themselves(path, on_error)


ROWS = st.just(PLAIN) | st.sampled_from(OTHERS) | st.sampled_from(CHANGES).map(lambda change: PLAIN.replace(*change))


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(ROWS, max_size=8),
    block_bytes=st.sampled_from([40, 90, 200, 4096]),
    on_error=st.sampled_from(["fail", "skip"]),
)
def test_some_rows_of_many_blocks_are_not_plain(rows, block_bytes, on_error, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "trace.jsonl"
    path.write_text(PLAIN + "".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "BLOCK_BYTES", block_bytes)
        assert_rows_together_are_rows_by_themselves(path, on_error)


def test_plain_rows_make_one_column_each(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 2 * i, "input_length": 513, "output_length": i + 1, "hash_ids": [i, 9 + i]} for i in range(4)]
    path.write_text("\r\n".join(map(json.dumps, rows)))

    trace = read_trace(path)

    assert trace.arrival_ps.tolist() == [0, 2 * 10**9, 4 * 10**9, 6 * 10**9]
    assert trace.num_prompt_tokens.tolist() == [513] * 4
    assert trace.num_output_tokens.tolist() == [1, 2, 3, 4]
    assert trace.hash_ids.values.tolist() == [0, 9, 1, 10, 2, 11, 3, 12]
    assert np.diff(trace.hash_ids.offsets).tolist() == [2] * 4
    assert trace.parent is None
    assert trace.session_id is None


@pytest.mark.parametrize("text", ['{"a": 1}\n{"b": 2}', '{"a": 1}\n{"b": 2}\n', '{"a": 1}\r\n{"b": 2}\r\n'])
def test_an_object_a_line(text):
    assert json_objects(text) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    "text", ['{"a":\n1}', '{"a": 1}{"b": 2}\n', '{"a": [1\n]}\n\n', "7\n", '{"a": true}', '{"a": 1']
)
def test_anything_else_is_left_to_the_reading_of_lines(text):
    assert json_objects(text) is None


def test_a_prompt_far_too_long_for_ids_of_its_own_is_refused_by_name(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(PLAIN + '{"timestamp": 30, "input_length": 2000000000, "output_length": 5}\n')
    with pytest.raises(
        InputError, match=r"trace.jsonl, column input_length: 2000000000; expected at most 536870912 tok"
    ):
        read_trace(path)
