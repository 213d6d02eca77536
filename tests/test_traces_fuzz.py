"""Whatever bytes a file holds: a valid trace or one clear line of error, in bounded time and memory.

Formats are taken from FORMATS and the words they look for from the readers' sources, so a format that is added is
fuzzed without a change here.
"""

import gzip
import json
import re
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traces.readers
from core.errors import InputError
from traces.readers.json_text import parse_json
from traces.reading import FORMATS, read_trace
from traces.schema import Trace

zstandard = pytest.importorskip("zstandard", reason="zstandard is in the extra `traces`")
MIB = 2**20
NAMES = ("auto", *(known.name for known in FORMATS))
PACKINGS = (lambda content: content, gzip.compress, zstandard.compress)
SOURCES = [path.read_text() for path in sorted(Path(traces.readers.__file__).parent.glob("*.py"))]
WORDS = sorted({word for source in SOURCES for word in re.findall(r'"([A-Za-z_/#]\w*(?: \w+)?)"', source)} - {"utf"})

SEEDS = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,374,44\r\n2023-11-17 00:00:01+00:00,1,2",
    b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440161.5,,2,ChatGPT,36,29,65,API log\n",
    b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n5.8926549999999995,91,16\n",
    b"# time, object, size, next_access_vtime\n0, 13053225291711363978, 737, 13\n3, 7, 737, -1\n",
    struct.pack("<IQIqIQIq", 7, 2**64 - 1, 512, 1, 9, 5, 512, -1),
    b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    b'{"timestamp": 3000, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n',
    b'{"kvtwin": "trace/1", "hash_block_tokens": 16}\n'
    b'{"arrival_s": 0.5, "num_prompt_tokens": 20, "num_output_tokens": 2, "hash_ids": [0, 1], "parent": null}\n',
    b'{"kvtwin": "trace/1"}\n{"arrival_s": 1, "prompt_segments": [[0, 5]], "output_segments": [[5, 2]]}\n',
]
SPLICES = [
    b"",
    b"\n",
    b",",
    b'"',
    b"\r",
    b"\x00",
    b"\xff",
    b"-",
    b".",
    b"0",
    b"9" * 25,
    b"[",
    b"{",
    b"}]",
    b"null",
    b"1e9",
]


def outcome(path: Path, format: str, on_error: str) -> Trace | str:
    """A valid trace, or one line of error that is no book."""
    try:
        trace = read_trace(path, format, on_error)
    except InputError as error:
        message = str(error)
    else:
        trace.validate()
        assert trace.num_requests >= 1
        return trace
    assert "\n" not in message
    assert len(message) < 3000
    return message


@st.composite
def mutated(draw) -> bytes:
    """A valid file of some format with pieces of it taken out, doubled or replaced."""
    content = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 2, 8, 40])))
        piece = draw(st.sampled_from([*SPLICES, content[start:end] * 2]))
        content = content[:start] + piece + content[end:]
    return content


values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2000), st.integers(-(2**70), 2**70), st.floats(), st.sampled_from(WORDS)
)
documents = st.recursive(
    values,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(WORDS), inner, max_size=8)),
    max_leaves=20,
)


@st.composite
def invented(draw) -> bytes:
    """What a format that looks for such words may take for its own: a JSON document, JSON lines, a CSV."""
    if draw(st.booleans()):
        rows = draw(st.lists(documents, min_size=1, max_size=4))
        return b"\n".join(json.dumps(row).encode("utf-8", "surrogatepass") for row in rows)
    names = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))
    rows = draw(st.lists(st.lists(values, min_size=len(names), max_size=len(names)), max_size=4))
    return "\n".join(",".join(map(str, row)) for row in [names, *rows]).encode()


@pytest.mark.parametrize("format", NAMES)
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    content=st.one_of(mutated(), invented(), st.binary(max_size=400)),
    pack=st.sampled_from(PACKINGS),
    cut=st.one_of(st.none(), st.integers(-40, -1)),
)
def test_any_bytes_give_a_valid_trace_or_one_line_of_error(format, content, pack, cut, tmp_path):
    path = tmp_path / "t.oracleGeneral"
    path.write_bytes(pack(content)[:cut])
    start_s = time.process_time()
    for on_error in ("fail", "skip"):
        outcome(path, format, on_error)
    assert time.process_time() - start_s < 2


def test_every_seed_is_a_valid_trace(tmp_path):
    for seed in SEEDS:
        (tmp_path / "t.oracleGeneral").write_bytes(seed)
        assert read_trace(tmp_path / "t.oracleGeneral").num_requests >= 1


BIG = 4 * MIB
HOSTILE = {
    "blank lines": b"\n" * (MIB // 2),
    "bad rows": b",\n" * 5_000,
    "one line": b"7" * BIG,
    "commas": b"," * BIG,
    "cells": b"ab," * (BIG // 3),
    "quoted cells": b'"a",' * (MIB // 4),
    "quotes": b'"' * MIB,
    "zeros": bytes(BIG),
    "lists": b"[" + b"[]," * (BIG // 3) + b"0]",
    "open lists": b"[" * BIG,
    "objects": b"[" + b'{"a":{"b":1}},' * (BIG // 14) + b"1]",
    "decimals": b'{"hash_ids": [' + b"1.5," * (BIG // 4) + b"0]}",
    "open string": b'{"timestamp": "' + b'\\"' * (BIG // 2),
}
SHORT_ROWS = {
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"2023-11-16 18:17:03,1,1\n" * (BIG // 24),
    "azure, none good": b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b",,\n" * 20_000,
    "burstgpt": b"Timestamp,Request tokens,Response tokens\n" + b"1,1,1\n" * (BIG // 6),
    "libcachesim": b"time,object,size\n" + b"1,1234,9\n" * (BIG // 9),
    "oracle_general": bytes(BIG // 24 * 24),
}


@pytest.mark.parametrize("format", NAMES)
def test_memory_is_bounded_by_the_unpacked_size(format, tmp_path):
    """At most ten times the unpacked bytes and 64 MiB, also where a few kB unpack to all that."""
    for name, content in HOSTILE.items():
        assert peak_bytes(tmp_path, content, format) < 10 * len(content) + 64 * MIB, name


@pytest.mark.parametrize("name", SHORT_ROWS)
def test_memory_is_bounded_where_rows_are_as_short_as_can_be(name, tmp_path):
    assert peak_bytes(tmp_path, SHORT_ROWS[name], "auto") < 10 * len(SHORT_ROWS[name]) + 64 * MIB


@pytest.mark.parametrize("unit", ["[],", '{"a":{}},', "1.5,", "1e5,", '{"a":1},'])
def test_a_large_json_text_of_tiny_values_is_refused_and_a_small_one_is_not(unit):
    assert len(parse_json(f"[{unit * 1000}0]")) == 1001
    with pytest.raises(ValueError, match=r"2,\d\d\d,\d\d\d characters of JSON would take \d+,\d+,\d+ bytes of memory"):
        parse_json(f"[{unit * (2_900_000 // len(unit))}0]")


@pytest.mark.parametrize(
    "unit", ["1234567,", "257,", '"[{[{ 1.5 2.5 \\" , { e e e }]}]",', "true,", "0.12345678901234567,"]
)
def test_a_large_json_text_of_ordinary_values_is_read(unit):
    assert len(parse_json(f"[{unit * (2_900_000 // len(unit))}0]")) == 2_900_000 // len(unit) + 1


def test_names_and_values_of_any_kind_make_one_short_line(tmp_path):
    path = tmp_path / "t.jsonl"
    for row in ({"a\nb": 1}, {"a" * 10**6: 1}, {"arrival_s": "x" * 10**6}, {"arrival_s": [[1] * 10**6] * 3}):
        path.write_text('{"kvtwin": "trace/1"}\n' + json.dumps(row))
        assert len(str(outcome(path, "auto", "fail"))) < 600


def peak_bytes(folder: Path, content: bytes, format: str) -> int:
    """What reading the packed content takes at its peak."""
    path = folder / "bomb.oracleGeneral.zst"
    path.write_bytes(zstandard.compress(content))
    tracemalloc.start()
    try:
        outcome(path, format, "skip")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
