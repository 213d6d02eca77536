"""A Trace: what it derives, how rows are taken, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from core.errors import InputError
from traces.schema import Ragged, Trace


def session_trace() -> Trace:
    """Two sessions, interleaved: rows 0, 2, 3 and rows 1, 4."""
    return Trace(
        name="sessions",
        arrival_ps=np.array([0, 10, 20, 30, 40]),
        num_prompt_tokens=np.array([1, 2, 3, 4, 5]),
        num_output_tokens=np.array([1, 1, 1, 1, 1]),
        hash_block_tokens=2,
        hash_ids=Ragged.of_ids([[1], [2], [1, 3], [1, 4], [2, 5, 6]]),
        session_id=np.array([7, 8, 7, 7, 8]),
        parent=np.array([-1, -1, 0, 2, 1]),
        think_time_ps=np.array([-1, -1, 5, 6, 7]),
    )


def test_ragged_rows():
    ragged = Ragged.of_ids([[5], [], [6, 7, 8]])
    assert ragged.num_rows == 3
    assert ragged.row_lengths.tolist() == [1, 0, 3]
    assert [ragged.row(i).tolist() for i in range(3)] == [[5], [], [6, 7, 8]]
    assert ragged.row_sums(ragged.values).tolist() == [5, 0, 21]
    taken = ragged.take(np.array([2, 1, 0, 2]))
    assert [taken.row(i).tolist() for i in range(4)] == [[6, 7, 8], [], [5], [6, 7, 8]]


def test_ragged_segments():
    ragged = Ragged.of_segments([[[0, 3], [9, 1]], [[4, 4]]])
    assert ragged.values.shape == (3, 2)
    assert ragged.row(0).tolist() == [[0, 3], [9, 1]]
    assert Ragged.of_segments([[], []]).values.shape == (0, 2)


def test_span_and_count():
    assert session_trace().num_requests == 5
    assert replace(session_trace(), arrival_ps=np.array([1, 1, 1, 1, 5]) * 10**12).span_s == 4.0


def test_prefix_information_comes_from_hashes_or_segments():
    trace = session_trace()
    bare = replace(trace, hash_ids=None, hash_block_tokens=None)
    assert trace.has_prefix_information
    assert not bare.has_prefix_information
    assert replace(bare, prompt_segments=Ragged.of_segments([[[0, i]] for i in range(1, 6)])).has_prefix_information


def test_taking_rows_moves_the_parents_along():
    taken = session_trace().take([0, 2, 3])
    assert taken.num_prompt_tokens.tolist() == [1, 3, 4]
    assert taken.parent.tolist() == [-1, 0, 1]
    assert taken.think_time_ps.tolist() == [-1, 5, 6]
    assert taken.hash_ids.row(2).tolist() == [1, 4]
    taken.validate()


def test_a_row_taken_without_its_parent_is_a_root():
    taken = session_trace().take([1, 3, 4])
    assert taken.parent.tolist() == [-1, -1, 0]
    assert taken.think_time_ps.tolist() == [-1, -1, 7]
    taken.validate()


def test_sorting_is_stable():
    trace = replace(session_trace(), arrival_ps=np.array([20, 10, 20, 20, 10])).sorted_by_arrival()
    assert trace.num_prompt_tokens.tolist() == [2, 5, 1, 3, 4]
    assert trace.parent.tolist() == [-1, 0, -1, 2, 3]
    trace.validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"arrival_ps": np.array([0, 10, 5, 30, 40])},
            "row 2, column arrival_ps: 5; expected arrivals from 0 on, sorted",
        ),
        ({"arrival_ps": np.array([-1, 0, 0, 0, 0])}, "row 0, column arrival_ps: -1"),
        ({"num_prompt_tokens": np.array([1, 2, 0, 4, 5])}, "row 2, column num_prompt_tokens: 0; expected at least 1"),
        ({"num_output_tokens": np.array([1, 1, 1, 1, 0])}, "row 4, column num_output_tokens: 0; expected at least 1"),
        ({"priority": np.array([1])}, "column priority has 1 rows; expected 5"),
        ({"num_samples": np.array([1, 1, 0, 1, 1])}, "row 2, column num_samples: 0; expected at least 1"),
        ({"parent": np.array([-1, 1, 0, 2, 1])}, "row 1, column parent: 1; expected an earlier row, or -1"),
        ({"hash_block_tokens": 1}, r"row 1, column hash_ids \(their number\): 1; expected ceil"),
        ({"hash_block_tokens": 0}, "hash_block_tokens is 0; expected at least 1"),
        ({"hash_block_tokens": None}, "hash_ids and hash_block_tokens come together"),
        ({"hash_ids": Ragged.of_ids([[1]])}, "column hash_ids has 1 rows; expected 5"),
        ({"prompt_segments": Ragged.of_segments([[[0, 1]]] * 5)}, r"row 1, column prompt_segments \(their tokens\): 1"),
        (
            {"output_segments": Ragged.of_segments([[[-1, 1]]] * 5)},
            "output_segments holds a segment with a negative start",
        ),
    ],
)
def test_contradictions_are_refused(change, message):
    session_trace().validate()
    with pytest.raises(InputError, match=message):
        replace(session_trace(), **change).validate()
