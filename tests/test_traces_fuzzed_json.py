"""Damaged JSON and Parquet traces: read, or refused in one line; never a crash, never memory without bound."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InputError
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.schema import Trace
from traces.writing import write_trace_as

MIB = 2**20


def lines(*rows: dict) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


MESSAGES = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "well met"}]
CALL = {"t": 1.5, "in": 70, "out": 3, "hash_ids": [1], "api_time": 2, "think_time": 1}
METRICS = {"input_sequence_length": {"value": 5}, "output_sequence_length": {"value": 6}}
FILES = {
    "kvtwin": lines(
        {"kvtwin": "trace/1", "name": "t", "hash_block_tokens": 4, "category_names": ["a"]},
        {"arrival_s": 0, "num_prompt_tokens": 5, "num_output_tokens": 1, "hash_ids": [1, 2], "category": 0},
        {"arrival_s": 1.5, "num_prompt_tokens": 4, "num_output_tokens": 1, "hash_ids": [1], "parent": 0},
    ),
    "mooncake": lines(
        {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]},
        {"session_id": "a", "input_length": 30, "output_length": 5},
        {"session_id": "a", "input_length": 30, "output_length": 5, "delay": 2.5},
        {"text_input": "hello", "output_length": 5},
    ),
    "bailian": lines(
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 17, "output_length": 5, "hash_ids": [3]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 2, "input_length": 9, "output_length": 5, "type": "text"},
    ),
    "llmservingsim": lines(
        {"input_toks": 3, "output_toks": 5, "arrival_time_ns": 5, "input_tok_ids": [1, 2, 3]},
        {"arrival_time_ns": 7, "sub_requests": [{"input_toks": 5, "output_toks": 2, "tool_duration_ns": 9}] * 2},
    ),
    "agentic": json.dumps(
        {"block_size": 64, "requests": [CALL, {"t": 4, "type": "subagent", "requests": [CALL, CALL]}, CALL | {"t": 9}]}
    ).encode(),
    "sharegpt": json.dumps([{"id": "x", "conversations": MESSAGES * 2}]).encode(),
    "vllm_bench": json.dumps(
        {"input_lens": [5, 6], "output_lens": [1, 2], "start_times": [1.5, 2.5], "errors": ["", "late"]}
    ).encode(),
    "aiperf_records": lines({"metadata": {"request_start_ns": 5}, "metrics": METRICS, "error": None}),
}
TAKE_TEXT = ("mooncake", "sharegpt")


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """A few places of a file replaced, removed or doubled."""
    place = st.integers(0, len(content))
    piece = st.binary(max_size=4) | st.sampled_from(
        [b"9" * 12, b"-", b"[", b"{", b'"', b"null", b"1e99", b"NaN", b"\n"]
    )
    edits = st.lists(st.tuples(place, st.integers(0, 30), piece), min_size=1, max_size=4)

    def edited(edits: list[tuple[int, int, bytes]]) -> bytes:
        changed = content
        for start, num_removed, piece in edits:
            changed = changed[:start] + piece + changed[start + num_removed :]
        return changed

    return edits.map(edited)


def refusal_of(path: Path, **options: object) -> str:
    """What the reader has to say against the file; nothing if it reads it."""
    try:
        read_trace(path, **options)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(name, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(data.draw(damaged(FILES[name])))
    options = {"encode": lambda text: list(text.encode("utf-8", "surrogatepass"))} if name in TAKE_TEXT else {}
    on_error = data.draw(st.sampled_from(["fail", "skip"]))
    tracemalloc.start()
    try:
        refusal = refusal_of(path, format=name, on_error=on_error, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in refusal
    assert peak <= 10 * path.stat().st_size + 64 * MIB


NUM_REQUESTS = {
    "kvtwin": 2,
    "mooncake": 4,
    "bailian": 2,
    "llmservingsim": 3,
    "agentic": 4,
    "sharegpt": 2,
    "vllm_bench": 1,
    "aiperf_records": 1,
}


@pytest.mark.parametrize("name", FILES)
def test_the_undamaged_files_are_recognised_and_read(name, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(FILES[name])
    options = {"encode": lambda text: list(text.encode())} if name in TAKE_TEXT else {}
    trace = read_trace(path, on_error="skip", **options)
    assert trace.num_requests == NUM_REQUESTS[name]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_damaged_parquet_is_read_or_refused(data, tmp_path_factory):
    pytest.importorskip("pyarrow", reason="pyarrow is in the extra `traces`")
    folder = tmp_path_factory.mktemp("damaged")
    ids = Ragged.of_ids([[1, 2], [1]])
    times = np.array([0, 5])
    write_trace_as(
        "parquet", Trace("t", times, np.array([5, 4]), times + 1, hash_block_tokens=4, hash_ids=ids), folder / "t"
    )
    (folder / "t").write_bytes(data.draw(damaged((folder / "t").read_bytes())))
    assert "\n" not in refusal_of(folder / "t", format="parquet", on_error="skip")
