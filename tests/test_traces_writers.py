"""Files that are written: what comes back when they are read, and what is told not to."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from trace_cases import traces

from core.errors import InputError
from kvtwin import simulate
from traces.block_references import block_references
from traces.hashing import with_hash_ids, with_private_ids
from traces.reading import FORMATS, read_trace
from traces.schema import OPTIONAL_COLUMNS, Ragged, Trace
from traces.sharing import prefix_ceiling
from traces.transforms import length_scale
from traces.writing import TARGETS, not_carried, write_trace, write_trace_as

READABLE = sorted({target.name for target in TARGETS} & {known.name for known in FORMATS} - {"libcachesim_csv"})
RESOLUTION_PS = {target.name: target.resolution_ps for target in TARGETS}
many = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("written")


def requests(*arrivals_ps: int, **columns) -> Trace:
    n = len(arrivals_ps)
    return Trace("t", np.array(arrivals_ps), np.full(n, 600), np.arange(1, n + 1), **columns)


def written(trace: Trace, format_name: str, folder: Path) -> list[str]:
    write_trace_as(format_name, trace, folder / "out")
    return (folder / "out").read_text().splitlines()


@many
@given(trace=traces())
def test_our_own_format_carries_everything(trace, folder):
    write_trace(trace, folder / "own.jsonl")
    back = read_trace(folder / "own.jsonl")
    for name in ("arrival_ps", "num_prompt_tokens", "num_output_tokens", *OPTIONAL_COLUMNS):
        expected = getattr(trace, name)
        assert (getattr(back, name) is None) == (expected is None)
        assert expected is None or getattr(back, name).tolist() == expected.tolist()
    assert not_carried(trace, "kvtwin") == []
    if trace.has_prefix_information:
        assert prefix_ceiling(back) == prefix_ceiling(trace)


@pytest.mark.parametrize("format_name", READABLE)
@many
@given(trace=traces())
def test_what_is_read_back_is_what_was_written_as_far_as_the_format_reaches(format_name, trace, folder):
    blocks_of_512 = length_scale(trace, 128)  # the size that Mooncake's readers expect
    write_trace_as(format_name, blocks_of_512, folder / format_name)
    back = read_trace(folder / format_name, format_name)
    assert back.num_prompt_tokens.tolist() == blocks_of_512.num_prompt_tokens.tolist()
    assert back.num_output_tokens.tolist() == blocks_of_512.num_output_tokens.tolist()
    rounded = trace.arrival_ps // RESOLUTION_PS[format_name] * RESOLUTION_PS[format_name]
    assert np.diff(back.arrival_ps).tolist() == np.diff(rounded).tolist()
    losses = not_carried(trace, format_name)
    assert ("times finer than" in " ".join(losses)) == (rounded != trace.arrival_ps).any()
    if trace.has_prefix_information and "which prompts share a prefix" not in losses:
        size = 512 if trace.hash_ids is None else None
        assert block_references(back, size).rows() == block_references(blocks_of_512, size).rows()
        assert prefix_ceiling(back, size) == prefix_ceiling(blocks_of_512, size)
    else:
        assert back.has_prefix_information == (format_name == "kvtwin" and trace.has_prefix_information)


def test_a_shared_prefix_keeps_its_length(folder):
    # 14,336 tokens are 28 blocks of 512.
    ids = [[*range(28), 100 + 2 * row, 101 + 2 * row] for row in range(3)]
    trace = Trace(
        "t", np.arange(3), np.full(3, 15_000), np.full(3, 50), hash_block_tokens=512, hash_ids=Ragged.of_ids(ids)
    )
    write_trace_as("mooncake", trace, folder / "shared.jsonl")
    back = read_trace(folder / "shared.jsonl")
    assert prefix_ceiling(back).engine_hit_tokens == 2 * 14_336
    text = Ragged.of_segments([[[0, 14_336], [20_000 + 1000 * row, 664]] for row in range(3)])
    told_as_text = replace(trace, hash_block_tokens=None, hash_ids=None, prompt_segments=text)
    write_trace_as("mooncake", told_as_text, folder / "shared.jsonl")
    assert prefix_ceiling(read_trace(folder / "shared.jsonl")).engine_hit_tokens == 2 * 14_336
    assert prefix_ceiling(with_hash_ids(told_as_text, 16)).engine_hit_tokens == 2 * 14_336


def test_mooncake_has_milliseconds_with_as_many_decimals_as_it_takes(folder):
    trace = requests(
        0, 10**9, 1_500_000_000, 1_500_000_001, hash_block_tokens=512, hash_ids=Ragged.of_ids([[7, 9]] * 4)
    )
    rows = [json.loads(line) for line in written(trace, "mooncake", folder)]
    assert [row["timestamp"] for row in rows] == [0, 1, 1.5, 1.500000001]
    assert rows[0] == {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}


def test_azure_has_seven_digits_of_a_second(folder):
    lines = written(requests(0, 51_996_900_000, 86_400 * 10**12 + 99_999), "azure", folder)
    assert lines == [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2000-01-01 00:00:00.0000000,600,1",
        "2000-01-01 00:00:00.0519969,600,2",
        "2000-01-02 00:00:00.0000000,600,3",
    ]


def test_vidur_and_burstgpt_have_seconds(folder):
    trace = requests(5 * 10**12, 45_500_000_000_000)
    assert written(trace, "vidur", folder) == [
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "5,600,1",
        "45.5,600,2",
    ]
    assert written(trace, "burstgpt", folder)[1:] == [
        "5,GPT-4,600,1,601,Conversation log",
        "45.5,GPT-4,600,2,602,Conversation log",
    ]


def test_libcachesim_gets_a_row_a_block(folder):
    trace = requests(0, 2_500_000_000_000, hash_block_tokens=512, hash_ids=Ragged.of_ids([[7, 9], [7, 8]]))
    assert written(trace, "libcachesim_csv", folder) == ["time,obj_id,obj_size", "0,0,1", "0,1,1", "2,0,1", "2,2,1"]
    stream = read_trace(folder / "out")  # which has a request a block
    assert stream.hash_ids.values.tolist() == [0, 1, 0, 2]
    with pytest.raises(InputError, match="does not tell which prompts share a prefix"):
        write_trace_as("libcachesim_csv", requests(0), folder / "none")
    assert not (folder / "none").exists()


def test_turns_that_come_by_the_clock_are_a_loss_where_only_delays_are_told():
    """As in Bailian: when a turn was sent is known, how long after the answer is not."""
    turns = requests(0, 5, session_id=np.array([0, 0]), parent=np.array([-1, 0]), think_time_ps=np.array([-1, -1]))
    assert not_carried(turns, "kvtwin") == not_carried(turns, "parquet") == []
    (loss,) = not_carried(turns, "mooncake_sessions")
    assert loss.startswith("when turns were sent whose think time is not told")
    assert not_carried(replace(turns, think_time_ps=np.array([-1, 7])), "mooncake_sessions") == []


def test_what_a_format_cannot_carry_is_named(folder):
    columns = {"priority": np.array([0, 1]), "num_samples": np.array([1, 2]), "cancel_after_ps": np.array([-1, 5])}
    trace = requests(10**12, 10**12 + 3, tenant=np.array([0, 0]), **columns)
    assert not_carried(trace, "mooncake") == ["priority", "num_samples", "cancel_after_s"]
    assert not_carried(trace, "azure")[-2:] == [
        "the time before the first arrival",
        "times finer than 1e-07 s (rounded down)",
    ]
    assert not_carried(requests(0), "vidur") == []
    shared = replace(requests(0), prompt_segments=Ragged.of_segments([[[0, 600]]]))
    assert not_carried(shared, "vidur") == ["which prompts share a prefix"]
    with pytest.raises(InputError, match="no format 'mooncak' to write; expected one of: kvtwin"):
        not_carried(trace, "mooncak")


def test_salts_are_told_by_ids_of_their_own():
    trace = requests(
        0, 1, 2, hash_block_tokens=512, hash_ids=Ragged.of_ids([[0, 1]] * 3), hash_salt=np.array([1, 2, 1])
    )
    hashed = with_hash_ids(trace)
    assert hashed.hash_salt is None
    assert [hashed.hash_ids.row(row).tolist() for row in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert prefix_ceiling(hashed) == prefix_ceiling(trace)


def test_private_ids_share_nothing():
    private = with_private_ids(requests(0, 1), 512)
    private.validate()
    assert prefix_ceiling(private).hit_blocks == 0
    with pytest.raises(InputError, match="expected one that does not"):
        with_private_ids(private, 512)


def test_a_name_that_ends_in_gz_is_packed_and_the_same_every_time(folder):
    trace = requests(0, 10**12)
    write_trace_as("azure", trace, folder / "a.csv.gz")
    first = (folder / "a.csv.gz").read_bytes()
    write_trace_as("azure", trace, folder / "a.csv.gz")
    assert (folder / "a.csv.gz").read_bytes() == first
    assert gzip.decompress(first).decode().startswith("TIMESTAMP,")
    assert read_trace(folder / "a.csv.gz").num_requests == 2


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    write_trace(requests(0), tmp_path / "made" / "for" / "it.jsonl")
    assert [path.name for path in (tmp_path / "made" / "for").iterdir()] == ["it.jsonl"]
    with pytest.raises(InputError, match=r"it\.jsonl/x: cannot be written \(Not a directory\)"):
        write_trace(requests(0), tmp_path / "made" / "for" / "it.jsonl" / "x")
    with pytest.raises(InputError, match="does not tell which prompts share"):
        write_trace_as("libcachesim_csv", requests(0), tmp_path / "vain" / "it.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["made"], "neither a part of a file nor a folder for it"


def test_turns_of_a_session_wait_for_the_answer_before_them(folder):
    trace = requests(
        *(10**12, 2 * 10**12, 3 * 10**12),
        session_id=np.array([9, 4, 9]),
        parent=np.array([-1, -1, 0]),
        think_time_ps=np.array([-1, -1, 1_500_000_000]),
        hash_block_tokens=512,
        hash_ids=Ragged.of_ids([[0, 1], [2, 3], [0, 1]]),
    )
    rows = [json.loads(line) for line in written(trace, "mooncake_sessions", folder)]
    assert [row["session_id"] for row in rows] == ["0", "1", "0"]
    assert [row.get("timestamp") for row in rows] == [1000, 2000, None]
    assert [row.get("delay") for row in rows] == [None, None, 1.5]
    assert {row["context_mode"] for row in rows} == {"message_array_with_responses"}
    assert not_carried(trace, "mooncake_sessions") == []
    back = read_trace(folder / "out")  # a later turn is dated by its delay alone, so it comes earlier here
    assert back.parent.tolist() == [-1, 0, -1]
    assert back.think_time_ps.tolist() == [-1, 1_500_000_000, -1]
    assert back.num_prompt_tokens.tolist() == [600, 600, 600]
    assert prefix_ceiling(back) == prefix_ceiling(trace)
    with pytest.raises(InputError, match="row 2: waits for row -1; expected row 0, the one before it in its session"):
        written(replace(trace, parent=np.array([-1, -1, -1])), "mooncake_sessions", folder)
    with pytest.raises(InputError, match="has no turns that wait for one another; expected --to mooncake"):
        written(requests(0), "mooncake_sessions", folder)


def test_the_guide_names_every_format():
    guide = (Path(__file__).parents[1] / "docs" / "traces.md").read_text()
    named = {known.name for known in FORMATS} | {target.name for target in TARGETS}
    assert [name for name in sorted(named) if f"`{name}`" not in guide] == []


def test_a_replay_of_what_was_read_back_decides_the_same(folder):
    # 30 prompts of up to four 512-token blocks along a tree, on a pool that has to evict.
    paths = [[row % 2, row % 6 + 10, row % 9 + 100, row + 1000][: 1 + row % 4] for row in range(30)]
    trace = Trace(
        "t",
        np.arange(30) * 700_000_000_001,
        np.array([512 * len(path) - 100 for path in paths]),
        np.full(30, 40),
        hash_block_tokens=512,
        hash_ids=with_chained_ids(paths),
    )
    write_trace_as("mooncake", trace, folder / "replay.jsonl")
    runs = [simulate(each, pool={"num_blocks": 400}).summary for each in (trace, read_trace(folder / "replay.jsonl"))]
    assert runs[0]["metrics"]["prefix_hit_tokens"] > 0
    assert runs[0]["metrics"]["num_evictions"] > 0
    assert runs[0]["metrics"] == runs[1]["metrics"]


def with_chained_ids(paths) -> Ragged:
    names: dict[tuple[int, ...], int] = {}
    return Ragged.of_ids(
        [[names.setdefault(tuple(path[: k + 1]), 7 * len(names)) for k in range(len(path))] for path in paths]
    )
