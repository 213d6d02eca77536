"""JSON-lines formats other than our own: aiperf's forms of Mooncake, Qwen-Bailian, LLMServingSim."""

import json

import pytest

from core.errors import InputError
from traces.chaining import chained
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.schema import Trace

MS, S = 10**9, 10**12  # in picoseconds


@pytest.fixture
def read(tmp_path):
    def read_rows(*rows: dict, **options) -> Trace:
        path = tmp_path / "trace.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return read_trace(path, **options)

    return read_rows


def ids_of(trace: Trace) -> list[list[int]]:
    return [trace.hash_ids.row(row).tolist() for row in range(trace.num_requests)]


def num_shared_blocks(trace: Trace, row: int, other: int) -> int:
    """Blocks at the start of two prompts that have the same ids."""
    pairs = list(zip(ids_of(trace)[row], ids_of(trace)[other], strict=False))
    return next((index for index, (one, two) in enumerate(pairs) if one != two), len(pairs))


# ---- ids that stand for a block and all before it ------------------------------------------------------------------


def test_times_with_the_noise_of_a_float_are_those_that_were_meant(read):
    """Programs write 3 * 0.1 as 0.30000000000000004."""
    trace = read({"timestamp": 3 * 0.1, "input_length": 1, "output_length": 1, "hash_ids": [0]})
    assert trace.arrival_ps.tolist() == [300_000_000]


def test_ids_that_form_a_tree_are_left_alone():
    ids = Ragged.of_ids([[7, 3, 9], [7, 3, 4], [5]])
    assert chained(ids) is ids


def test_ids_of_contents_come_to_stand_for_prefixes():
    """Block 2 stands behind 1 and behind 9, and 1 also in the second place: four different prefixes."""
    numbered = chained(Ragged.of_ids([[1, 2, 3], [9, 2, 3], [1, 2], [9, 1]]))
    rows = [numbered.row(row).tolist() for row in range(4)]
    assert rows[2] == rows[0][:2]
    assert rows[3][0] == rows[1][0]
    assert len({*rows[0], *rows[1], *rows[3]}) == 7


# ---- Mooncake, as aiperf takes it ----------------------------------------------------------------------------------


def test_mooncake_block_size_can_be_told(read):
    rows = [{"timestamp": 0, "input_length": 33, "output_length": 1, "hash_ids": [4, 5, 6]}]
    assert read(*rows, hash_block_tokens=16).hash_block_tokens == 16
    with pytest.raises(InputError, match=r"column hash_ids: '3 ids'; expected 1 = ceil\(33 / 512\)"):
        read(*rows)


def test_mooncake_rows_without_ids_share_with_nobody(read):
    trace = read(
        {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4, 5]},
        {"timestamp": 1, "input_length": 600, "output_length": 1},
        {"timestamp": 2, "input_length": 600, "output_length": 1},
    )
    assert ids_of(trace) == [[4, 5], [6, 7], [8, 9]]
    none = read({"timestamp": 0, "input_length": 600, "output_length": 1})
    assert not none.has_prefix_information, "an id for nobody would make a hit ratio of 0 out of an unknown one"


def test_mooncake_turns_wait_for_the_answer_and_carry_the_session_with_them(read):
    """aiperf sends what went before along: prompts of 300, 300 + 40 + 150 and 490 + 20 + 10 tokens."""
    turns = [{"session_id": "a", "input_length": 300, "output_length": 40}]
    turns += [{"session_id": "a", "delay": 2.5, "input_length": 150, "output_length": 20}]
    turns += [{"session_id": "a", "input_length": 10, "output_length": 7}]
    alone = {"timestamp": 1, "input_length": 8, "output_length": 1}

    trace = read(*turns, alone)

    assert trace.num_prompt_tokens.tolist() == [300, 8, 490, 520]
    assert trace.parent.tolist() == [-1, -1, 0, 2]
    assert trace.think_time_ps.tolist() == [-1, -1, 5 * MS // 2, 0]
    assert trace.arrival_ps.tolist() == [0, MS, 5 * MS // 2, 5 * MS // 2]
    assert trace.session_id.tolist() == [0, 1, 0, 0]
    assert trace.hash_block_tokens == 16
    assert num_shared_blocks(trace, 0, 2) == 300 // 16
    assert num_shared_blocks(trace, 2, 3) == 490 // 16


def test_mooncake_turns_with_their_whole_context(read):
    whole = {"session_id": "a", "context_mode": "message_array_with_responses", "output_length": 40}
    first = whole | {"timestamp": 100, "input_length": 600, "hash_ids": [1, 2]}
    second = whole | {"timestamp": 900, "input_length": 1100, "hash_ids": [1, 3, 4]}

    trace = read(first, second)

    assert trace.num_prompt_tokens.tolist() == [600, 1100]
    assert ids_of(trace) == [[1, 2], [1, 3, 4]]
    assert trace.parent.tolist() == [-1, 0]
    assert trace.think_time_ps.tolist() == [-1, -1], "it comes at its own time: how long the user thought is not known"
    with pytest.raises(
        InputError, match="line 1, column context_mode: 'deltas_with_responses'; expected deltas_without"
    ):
        read(first | {"context_mode": "deltas_with_responses"})


def test_a_mooncake_turn_without_output_hands_its_delay_on(read):
    def turn(output: int, delay: int) -> dict:
        return {"session_id": "a", "delay": delay, "input_length": 100, "output_length": output}

    trace = read(turn(5, 0), turn(0, 3), turn(6, 4), on_error="skip")

    assert trace.num_dropped == {"zero_output": 1}
    assert trace.parent.tolist() == [-1, 0]
    assert trace.think_time_ps.tolist() == [-1, 7 * MS]
    assert trace.num_prompt_tokens.tolist() == [100, 205]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_length": 5, "hash_ids": [1]}, "column output_length is missing; expected the output tokens"),
        (
            {"messages": [{"role": "user"}], "output_length": 5},
            "column messages: .*; expected input_length or text_input",
        ),
        ({"session_id": 7, "input_length": 5, "output_length": 5}, "column session_id: 7; expected a text"),
        (
            {"session_id": "a", "timestamp": 5, "input_length": 5, "output_length": 5},
            "column timestamp: 5; expected no earl",
        ),
        (
            {"session_id": "a", "delay": -5, "input_length": 5, "output_length": 5},
            "column delay: -5; expected a number",
        ),
        (
            {"session_id": "b", "input_length": 2**31 - 1, "output_length": 5},
            "column input_length: 2147483647; expected at",
        ),
        ({"input_length": 5, "output_length": 5, "hash_ids": [-1]}, "column hash_ids: -1; expected ids from 0 on"),
    ],
)
def test_mooncake_mistakes(row, message, read):
    first = {"session_id": "a", "timestamp": 100, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    if "hash_ids" not in row:
        first = {key: first[key] for key in first if key != "hash_ids"}
    with pytest.raises(InputError, match=f"trace.jsonl, line 2, {message}"):
        read(first, row)
    assert sum(read(first, row, on_error="skip").num_dropped.values()) == 1


def test_mooncake_text_needs_a_tokenizer_and_shares_by_its_tokens(read):
    rows = [
        {"text_input": "x" * 20 + tail, "output_length": 3, "timestamp": at} for at, tail in enumerate(["aa", "bbb"])
    ]
    with pytest.raises(InputError, match=r"trace\.jsonl: holds text; expected a tokenizer: trace\.tokenizer="):
        read(*rows, on_error="skip")

    trace = read(*rows, encode=lambda text: list(text.encode()), hash_block_tokens=4)

    assert trace.num_prompt_tokens.tolist() == [22, 23]
    assert num_shared_blocks(trace, 0, 1) == 5


def test_options_that_a_format_has_no_use_for_are_refused(read, tmp_path):
    records = {"metadata": {"request_start_ns": 1}, "metrics": {}}
    with pytest.raises(
        InputError, match=r"trace.hash_block_tokens: .* aiperf_records has no use .*\(mooncake, bailian"
    ):
        read(records, hash_block_tokens=16)
    with pytest.raises(
        InputError, match=r"trace.tokenizer: .* bailian has no use for it; expected null \(mooncake, share"
    ):
        read(bailian(0), encode=list)


# ---- Qwen-Bailian --------------------------------------------------------------------------------------------------


def bailian(chat: int, parent: int = -1, timestamp: float = 0, **keys: object) -> dict:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": timestamp, "input_length": 40, "output_length": 3}
    return row | {"type": "text", "turn": 1, "hash_ids": [1, 2, 3]} | keys


def test_bailian_counts_seconds_and_blocks_of_16(read):
    trace = read(bailian(159, 55, 61.114, input_length=521, output_length=132, hash_ids=list(range(33)), turn=2))
    assert trace.arrival_ps.tolist() == [61_114_000_000_000]
    assert trace.hash_block_tokens == 16
    assert trace.num_prompt_tokens.tolist() == [521]
    assert trace.num_output_tokens.tolist() == [132]


def test_bailian_chats_are_sessions_and_keep_their_recorded_times(read):
    rows = [bailian(7, -1, 10), bailian(9, 8, 40), bailian(8, 7, 20), bailian(3, -1, 30), bailian(4, 99, 50)]

    trace = read(*rows)

    assert trace.arrival_ps.tolist() == [10 * S, 20 * S, 30 * S, 40 * S, 50 * S]
    assert trace.parent.tolist() == [-1, 0, -1, 1, -1], "chat 99 is not in the trace"
    assert trace.session_id.tolist() == [0, 0, 1, 0, 2]
    assert trace.think_time_ps.tolist() == [-1] * 5


def test_bailian_types_are_categories(read):
    rows = [bailian(0, type="search"), bailian(1, type="text"), bailian(2, type="search")]
    trace = read(*rows, {key: value for key, value in bailian(3).items() if key != "type"})
    assert trace.category_names == ("search", "text")
    assert trace.category.tolist() == [0, 1, 0, -1]
    assert trace.take([1, 0]).category.tolist() == [1, 0]


def test_bailian_rows_with_and_without_an_id_for_the_partial_block(read):
    trace = read(bailian(0, hash_ids=[1, 2]), bailian(1, hash_ids=[1, 2]), bailian(2, hash_ids=[1, 2, 3]))
    assert ids_of(trace) == [[1, 2, 4], [1, 2, 5], [1, 2, 3]]
    with pytest.raises(InputError, match=r"column hash_ids: '1 ids'; expected 2 = floor\(40 / 16\), or one more"):
        read(bailian(0, hash_ids=[1]))


def test_bailian_hashes_of_contents_share_only_as_prefixes(read):
    trace = read(bailian(0, hash_ids=[1, 2, 3]), bailian(1, hash_ids=[9, 2, 3]))
    assert num_shared_blocks(trace, 0, 1) == 0
    assert not set(ids_of(trace)[0]) & set(ids_of(trace)[1])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"output_length": 0}, "column output_length: 0; expected at least 1 output token"),
        ({"timestamp": -1}, "column timestamp: -1; expected a number from 0"),
        ({"parent_chat_id": -2}, "column parent_chat_id: -2; expected a whole number from -1"),
        ({"chat_id": "a"}, "column chat_id: 'a'; expected a whole number"),
        ({"type": 5}, "column type: 5; expected a text such as"),
    ],
)
def test_bailian_mistakes(keys, message, read):
    with pytest.raises(InputError, match=f"line 2, {message}"):
        read(bailian(0), bailian(1) | keys)


# ---- LLMServingSim -------------------------------------------------------------------------------------------------


def test_llmservingsim_counts_nanoseconds_and_shares_token_ids(read):
    tokens = list(range(40))
    rows = [{"input_toks": 40, "output_toks": 5, "arrival_time_ns": 46_926_808, "input_tok_ids": tokens}]
    rows += [
        {
            "input_toks": 40,
            "output_toks": 5,
            "arrival_time_ns": 1_026_970_077,
            "input_tok_ids": [*tokens[:35], *[7] * 5],
        }
    ]
    rows += [{"input_toks": 33, "output_toks": 5, "arrival_time_ns": 2_000_000_000}]

    trace = read(*rows)

    assert trace.arrival_ps.tolist() == [46_926_808_000, 1_026_970_077_000, 2 * S]
    assert trace.hash_block_tokens == 16
    assert num_shared_blocks(trace, 0, 1) == 2
    assert num_shared_blocks(trace, 0, 2) == 0
    assert trace.parent is None
    assert num_shared_blocks(read(*rows, hash_block_tokens=5), 0, 1) == 7


def test_llmservingsim_sessions_wait_for_their_tools(read):
    calls = [(1472, 133, 127_348_767), (1582, 0, 1000), (1600, 125, 0)]
    keys = ("input_toks", "output_toks", "tool_duration_ns")
    session = {"session_id": "t", "arrival_time_ns": 4_059_740}
    session["sub_requests"] = [dict(zip(keys, call, strict=True)) for call in calls]
    flat = {"input_toks": 10, "output_toks": 2, "arrival_time_ns": 0}

    with pytest.raises(InputError, match=r"line 2, column sub_requests\[1\].output_toks: 0; expected at least 1"):
        read(flat, session)
    trace = read(flat, session, on_error="skip")

    assert trace.num_dropped == {"zero_output": 1}
    assert not trace.has_prefix_information
    assert trace.num_prompt_tokens.tolist() == [10, 1472, 1600]
    assert trace.session_id.tolist() == [0, 1, 1]
    assert trace.parent.tolist() == [-1, -1, 1]
    assert trace.think_time_ps.tolist() == [-1, -1, 127_348_767_000 + 1_000_000]
    assert trace.arrival_ps.tolist() == [0, 4_059_740_000, 4_059_740_000 + 127_348_767_000 + 1_000_000]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"input_toks": 3, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [1, 2]},
            "column input_tok_ids: '2 ids'",
        ),
        (
            {"input_toks": 3, "output_toks": 1, "arrival_time_ns": -0.5},
            "column arrival_time_ns: .*; expected a number from 0",
        ),
        ({"arrival_time_ns": 0, "sub_requests": 5}, "column sub_requests: 5; expected a list of requests"),
        (
            {"arrival_time_ns": 0, "sub_requests": [{"input_toks": 1}]},
            r"column .*\[0\].output_toks is missing",
        ),
    ],
)
def test_llmservingsim_mistakes(row, message, read):
    with pytest.raises(InputError, match=f"line 2, {message}"):
        read({"input_toks": 3, "output_toks": 1, "arrival_time_ns": 0}, row)
