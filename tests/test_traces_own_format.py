"""kvtwin's own trace formats: a written trace comes back the same, and mistakes are named."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InputError
from traces.reading import read_trace
from traces.schema import OPTIONAL_COLUMNS, Ragged, Trace
from traces.writing import write_trace, write_trace_as

needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is in the extra `traces`")
RAGGED = ("hash_ids", "prompt_segments", "output_segments")
LEAST = {"session_id": -1, "think_time_ps": -1, "cancel_after_ps": -1, "deadline_ps": -1, "num_samples": 1}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def assert_same(left: Trace, right: Trace) -> None:
    assert (left.name, left.licence, left.hash_block_tokens) == (right.name, right.licence, right.hash_block_tokens)
    assert (left.recipe, left.category_names) == (right.recipe, right.category_names)
    assert {name: column.tolist() for name, column in left.columns()} == {
        name: column.tolist() for name, column in right.columns()
    }
    for name in RAGGED:
        one, other = getattr(left, name), getattr(right, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.offsets.tolist() == other.offsets.tolist()
            assert one.values.tolist() == other.values.tolist()


@st.composite
def traces(draw) -> Trace:
    n = draw(st.integers(1, 6))

    def column(least: int, most: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(least, most), min_size=n, max_size=n)), dtype=np.int64)

    prompt, output = column(1, 9), column(1, 9)
    optional = {name: column(LEAST.get(name, -5), 2**40) for name in OPTIONAL_COLUMNS if draw(st.booleans())}
    category_names = draw(st.lists(TEXT, max_size=3).map(tuple))
    if "category" in optional:
        optional["category"] = column(-1, len(category_names) - 1)
    if "parent" in optional:
        optional["parent"] = np.array([draw(st.integers(-1, row - 1)) for row in range(n)])
    block = draw(st.none() | st.integers(1, 4))
    num_blocks = [-(-int(length) // block) for length in prompt] if block else []
    ids = [draw(st.lists(st.integers(0, 2**62), min_size=num, max_size=num)) for num in num_blocks]
    segments = draw(st.booleans())
    return Trace(
        name=draw(TEXT) or "trace",
        arrival_ps=np.sort(column(0, 2**62)),
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        hash_block_tokens=block,
        hash_ids=Ragged.of_ids(ids) if block else None,
        prompt_segments=Ragged.of_segments([[[draw(st.integers(0, 99)), 1]] * p for p in prompt]) if segments else None,
        output_segments=Ragged.of_segments([[[draw(st.integers(0, 99)), o]] for o in output]) if segments else None,
        licence=draw(TEXT),
        recipe=draw(st.none() | st.just({"arrivals": {"kind": "poisson", "rate_rps": 0.1}, "seed": 7})),
        category_names=category_names,
        **optional,
    )


WRITERS = pytest.mark.parametrize(
    "write",
    [
        pytest.param(partial(write_trace, notes={"why": "test"}), id="json"),
        pytest.param(partial(write_trace_as, "parquet"), id="parquet", marks=needs_pyarrow),
    ],
)


@WRITERS
@settings(max_examples=60, deadline=None)
@given(trace=traces())
def test_round_trip(write, trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "t.anything"
    trace.validate()
    write(trace, path)
    assert_same(read_trace(path), trace)


@WRITERS
def test_a_shared_prefix_survives_export(write, tmp_path):
    ids = Ragged.of_ids([[*range(28), 100], [*range(28), 200]])  # 28 blocks of 512: a shared prefix of 14,336 tokens
    lengths = np.array([14_400, 14_500])
    trace = Trace("t", np.array([0, 1]), lengths, np.array([1, 1]), hash_block_tokens=512, hash_ids=ids)
    write(trace, tmp_path / "t.jsonl")

    back = read_trace(tmp_path / "t.jsonl")

    shared = np.intersect1d(back.hash_ids.row(0), back.hash_ids.row(1))
    assert len(shared) * back.hash_block_tokens == 14_336
    assert back.num_prompt_tokens.tolist() == [14_400, 14_500]


def test_null_is_written_for_what_a_row_lacks_and_for_nothing_else(tmp_path):
    columns = {"priority": np.array([0]), "num_samples": np.array([1]), "cancel_after_ps": np.array([-1])}
    write_trace(Trace("t", np.array([0]), np.array([1]), np.array([1]), **columns), tmp_path / "t.jsonl")
    row = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1])
    assert (row["priority"], row["num_samples"], row["cancel_after_s"]) == (0, 1, None)


def test_no_partial_file_is_left_behind(tmp_path):
    trace = Trace("t", np.array([0]), np.array([1]), np.array([1]))
    with pytest.raises(TypeError):
        write_trace(trace, tmp_path / "t.jsonl", notes={"not": {"json"}})
    assert list(tmp_path.iterdir()) == []
    write_trace(trace, tmp_path / "t.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def own(*rows: dict, **header: object) -> str:
    return "\n".join(json.dumps(line) for line in ({"kvtwin": "trace/1"} | header, *rows))


def row(arrival_s: float = 0, **keys: object) -> dict:
    return {"arrival_s": arrival_s, "num_prompt_tokens": 5, "num_output_tokens": 1} | keys


@pytest.fixture
def read(tmp_path):
    def read_text(text: str, **options):
        path = tmp_path / "trace.jsonl"
        path.write_text(text)
        return read_trace(path, **options)

    return read_text


def test_seconds_are_exact_decimals(read):
    text = own() + '\n{"arrival_s": 61.114, "num_prompt_tokens": 1, "num_output_tokens": 1}'
    text += '\n{"arrival_s": 9000000.000000000001, "num_prompt_tokens": 1, "num_output_tokens": 1}'
    assert read(text).arrival_ps.tolist() == [61_114_000_000_000, 9_000_000_000_000_000_001]


def test_segments_tell_the_lengths(read):
    trace = read(own({"arrival_s": 0, "prompt_segments": [[7, 3], [0, 2]], "output_segments": [[9, 4]]}))
    assert trace.num_prompt_tokens.tolist() == [5]
    assert trace.num_output_tokens.tolist() == [4]
    assert trace.has_prefix_information


def test_an_optional_key_of_one_row_has_its_default_in_the_others(read):
    trace = read(own(row(), row(1, priority=3, num_samples=2, cancel_after_s=0.5)))
    assert trace.priority.tolist() == [0, 3]
    assert trace.num_samples.tolist() == [1, 2]
    assert trace.cancel_after_ps.tolist() == [-1, 5 * 10**11]
    assert trace.tenant is None
    assert not trace.has_prefix_information


def test_parents_follow_their_rows_when_rows_are_sorted(read):
    rows = [row(5, session_id=1), row(0, session_id=2), row(6, session_id=1, parent=0), row(7, session_id=2, parent=1)]
    trace = read(own(*rows))
    assert trace.session_id.tolist() == [2, 1, 1, 2]
    assert trace.parent.tolist() == [-1, -1, 1, 0]


def test_a_row_whose_parent_was_dropped_becomes_a_root(read):
    rows = [row(0), row(1, num_output_tokens=0), row(2, parent=1, think_time_s=1), row(3, parent=0, think_time_s=2)]
    trace = read(own(*rows), on_error="skip")
    assert trace.num_dropped == {"zero_output": 1}
    assert trace.arrival_ps.tolist() == [0, 2 * 10**12, 3 * 10**12]
    assert trace.parent.tolist() == [-1, -1, 0]
    assert trace.think_time_ps.tolist() == [-1, -1, 2 * 10**12]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(1, parent=1), "column parent: 1; expected an earlier request, below 1"),
        (row(1, parent=-2), "column parent: -2; expected a whole number from 0"),
        (row(1, priorty=1), "column priorty: 1; expected a known key, such as priority"),
        (
            row(1, hash_ids=[1]),
            "column hash_ids: .1.; expected hash_ids in every row and hash_block_tokens in the header",
        ),
        (row(1, prompt_segments=[[0, 5]]), "column prompt_segments: None; expected the keys of the rows before"),
        (row(1, hash_ids=[-1]), "column hash_ids: .-1.; expected hash_ids in every row"),
        (row(1, num_samples=0), "column num_samples: 0; expected a whole number from 1"),
        (row(1, deadline_s=-1), "column deadline_s: -1; expected a number from 0"),
        (row(1, think_time_s=-1), "column think_time_s: -1; expected a number from 0"),
        ({"num_prompt_tokens": 1, "num_output_tokens": 1}, "column arrival_s is missing; expected seconds"),
        (
            {"arrival_s": 1, "num_prompt_tokens": 1},
            "column num_output_tokens is missing; expected the number of output tokens",
        ),
    ],
)
def test_mistakes_are_named(bad, message, read):
    with pytest.raises(InputError, match=f"trace.jsonl, line 3, {message}"):
        read(own(row(), bad))
    assert sum(read(own(row(), bad), on_error="skip").num_dropped.values()) == 1


@pytest.mark.parametrize("segments", [[], [[0, 0]], [[-1, 5]], [[0]], [5], [[0, 2**31]], [[0, 4]], "x"])
def test_bad_segments(segments, read):
    with pytest.raises(InputError, match=r"line 2, column (prompt_segments|num_prompt_tokens)"):
        read(own(row(prompt_segments=segments)))


def test_a_parent_that_arrives_later_is_refused(read):
    with pytest.raises(InputError, match="line 3, column parent: 0; expected a request that arrives no later"):
        read(own(row(5), row(1, parent=0)))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"kvtwin": "trace/2"}, "key kvtwin: 'trace/2'; expected 'trace/1'"),
        ({"name": 5}, "key name: 5; expected a text"),
        ({"category_names": "text"}, "key category_names: 'text'; expected a list of texts"),
        ({"recipe": "chat"}, "key recipe: 'chat'; expected an object"),
        ({"hash_block_tokens": 0}, "key hash_block_tokens: 0; expected a whole number from 1"),
    ],
)
def test_bad_headers(header, message, read):
    with pytest.raises(InputError, match=rf"line 1 \(the header\), {message}"):
        read(own(row(), **header))


def test_the_example_on_the_page_of_traces_shares_what_it_says(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "traces.md").read_text()
    example = tmp_path / "mine.jsonl"
    example.write_text(page.partition("```json\n")[2].partition("```")[0])
    trace = read_trace(example)
    shared = np.intersect1d(*(trace.hash_ids.row(index) for index in range(2)))
    assert f"these two share {shared.size * trace.hash_block_tokens} tokens" in page
