"""Traces of text (ShareGPT) and records that load tools wrote (vllm bench, aiperf)."""

import json

import pytest

from core.errors import InputError
from kvtwin.tokenizing import encoder, read_with_tokenizer
from traces.reading import read_trace
from traces.schema import Trace

S = 10**12  # in picoseconds


@pytest.fixture
def read(tmp_path):
    def read_document(document: object, **options) -> Trace:
        path = tmp_path / "trace.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_trace(path, **options)

    return read_document


def letters(text: str) -> list[int]:
    """A token a character."""
    return [ord(character) for character in text]


# ---- ShareGPT ------------------------------------------------------------------------------------------------------


def conversation(*texts: str, name: str = "c") -> dict:
    """A human and the model in turns."""
    speakers = ["human", "gpt"] * len(texts)
    messages = [{"from": who, "value": text} for who, text in zip(speakers, texts, strict=False)]
    return {"id": name, "conversations": messages}


def test_every_answer_is_a_request_whose_prompt_is_all_before_it(read):
    trace = read([conversation("hello", "hi", "why", "because")], encode=letters, hash_block_tokens=2)
    assert trace.num_prompt_tokens.tolist() == [5, 10]
    assert trace.num_output_tokens.tolist() == [2, 7]
    assert trace.session_id.tolist() == [0, 0]
    assert trace.parent.tolist() == [-1, 0]
    assert trace.think_time_ps.tolist() == [-1, 0]
    assert trace.arrival_ps.tolist() == [0, 0]
    rows = [trace.hash_ids.row(row).tolist() for row in range(2)]
    assert [len(row) for row in rows] == [3, 5]
    assert rows[0][:2] == rows[1][:2]
    assert rows[0][2] != rows[1][2], "the partial block of one is full in the other"


def test_conversations_that_begin_alike_share_that(read):
    trace = read(
        [conversation("abcdefgh", "x"), conversation("abcdxxxx", "x"), conversation("xbcd", "x")], encode=letters
    )
    assert trace.hash_block_tokens == 16
    fine = read(
        [conversation("abcdefgh", "x"), conversation("abcdxxxx", "x"), conversation("xxcd", "x")],
        encode=letters,
        hash_block_tokens=2,
    )
    first, second, third = (fine.hash_ids.row(row).tolist() for row in range(3))
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])
    assert not set(third) & set(first), "the same letters behind others are another prefix"


def test_what_has_no_question_or_no_answer_is_counted(read):
    odd = [
        conversation("only asked"),
        {"id": "b", "conversations": [{"from": "gpt", "value": "unasked"}, *conversation("q", "a")["conversations"]]},
        {"id": "c", "conversations": []},
        conversation("q", "", "r", "b"),
    ]
    trace = read(odd, encode=letters, on_error="skip")
    assert trace.num_dropped == {"no_answer": 1, "no_turn": 1, "zero_output": 1, "zero_prompt": 1}
    assert trace.num_prompt_tokens.tolist() == [1, 2]
    with pytest.raises(InputError, match=r"trace.json, column \[0\]\.conversations: '1 messages'; expected an answer"):
        read(odd, encode=letters)


def test_system_messages_and_other_names_of_the_model(read):
    messages = [("system", "be good"), ("user", "q"), ("assistant", "abc"), ("user", "r"), ("chatgpt", "d")]
    document = [{"id": "x", "conversations": [{"from": who, "value": text} for who, text in messages]}]
    trace = read(document, encode=letters)
    assert trace.num_prompt_tokens.tolist() == [8, 12]
    assert trace.num_output_tokens.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([conversation("q", "a"), 5], r"column \[1\]: 5; expected an object"),
        (
            [{"conversations": [{"from": "human", "value": 5}]}],
            r"column \[0\]\.conversations\[0\]\.value: 5; expected a text",
        ),
        ([{"conversations": ["hello"]}], r"column \[0\]\.conversations\[0\]: 'hello'; expected an object"),
    ],
)
def test_sharegpt_mistakes(document, message, read):
    with pytest.raises(InputError, match=f"trace.json, {message}"):
        read(document, encode=letters)


def test_text_without_a_tokenizer_is_refused_whatever_becomes_of_bad_rows(read):
    with pytest.raises(InputError, match=r"trace\.json: holds text; expected a tokenizer: trace\.tokenizer=FILE"):
        read([conversation("q", "a")], on_error="skip")


# ---- tokenizers ----------------------------------------------------------------------------------------------------


def test_four_bytes_a_token_rounds_up_and_keeps_beginnings():
    encode = encoder("bytes/4")
    assert [len(encode(text)) for text in ("", "a", "abcd", "abcde", "äöü")] == [0, 1, 1, 2, 2]
    assert encode("abcdefgh")[:1] == encode("abcdxxxx")[:1]
    assert len(encode("\ud800")) == 1


def test_estimated_lengths_show_in_the_name(tmp_path):
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([conversation("12345", "abc")]))
    trace = read_with_tokenizer(path, "auto", "fail", None, "bytes/4")
    assert trace.name == "chats (bytes/4 tokens)"
    assert (trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist()) == ([2], [1])


def test_a_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is in the extra `engine`")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    assert encoder(str(tmp_path / "tokenizer.json"))("to be or") == [0, 1, 2]

    with pytest.raises(InputError, match=r"trace\.tokenizer=.*absent\.json: no such file; expected a tokenizer\.json"):
        encoder(str(tmp_path / "absent.json"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match=r"trace\.tokenizer=.*bad\.json: .*; expected a tokenizer\.json, or bytes/4"):
        encoder(str(tmp_path / "bad.json"))


# ---- vllm bench ----------------------------------------------------------------------------------------------------

BENCH = {
    "date": "20261129-204500",
    "input_lens": [100, 200, 300],
    "output_lens": [10, 0, 30],
    "ttfts": [0.1, 0.0, 0.2],
    "itls": [[0.01], [], [0.02]],
    "start_times": [9000.5, 9000.25, 9000.125],
    "errors": ["", "Timeout", ""],
}


def test_vllm_bench_requests_start_at_the_earliest(read):
    """To the nearest picosecond: a clock has more digits than that."""
    trace = read(json.dumps(BENCH).replace("9000.125", "9000.1234567890119999"), on_error="skip")
    assert trace.num_dropped == {"failed_request": 1}
    assert trace.arrival_ps.tolist() == [0, 376_543_210_988]
    assert trace.num_prompt_tokens.tolist() == [300, 100]
    assert trace.num_output_tokens.tolist() == [30, 10]
    assert not trace.has_prefix_information
    with pytest.raises(InputError, match=r"column errors\[1\]: 'Timeout'; expected no error \(trace\.on_error=skip"):
        read(BENCH)


def test_vllm_bench_on_a_machine_that_has_run_for_a_year(read):
    """The clock counts from boot; 64 bits of picoseconds hold 106 days of it."""
    up = {"input_lens": [1, 2], "output_lens": [3, 4], "start_times": [31_536_000.5, 31_536_002.75]}
    assert read(up).arrival_ps.tolist() == [0, 2_250_000_000_000]
    with pytest.raises(InputError, match="the requests span more than 106 days"):
        read(up | {"start_times": [0, 31_536_000.5]})


def test_vllm_bench_without_errors_tells_failures_by_their_outputs(read):
    assert read({key: BENCH[key] for key in BENCH if key != "errors"}, on_error="skip").num_dropped == {
        "zero_output": 1
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"start_times": None}, "key start_times: None; expected a list"),
        ({"start_times": [1, 2]}, "key start_times: expected a list of 3, as input_lens has"),
        ({"start_times": [1, 2, -3]}, r"column start_times\[2\]: -3; expected seconds from 0"),
        ({"output_lens": [1, 2, 1.5]}, r"column output_lens\[2\]: .*1.5.*; expected a whole number"),
    ],
)
def test_vllm_bench_mistakes(keys, message, read):
    with pytest.raises(InputError, match=f"trace.json, {message}"):
        read(BENCH | {"errors": ["", "", ""], "output_lens": [1, 2, 3]} | keys)


# ---- aiperf --------------------------------------------------------------------------------------------------------


def record(
    start_ns: int, num_in: object = 550, num_out: object = 9, phase: str = "profiling", error: object = None
) -> dict:
    metrics = {"input_sequence_length": {"value": num_in, "unit": "tokens"}}
    metrics |= {"output_sequence_length": {"value": num_out, "unit": "tokens"}}
    metadata = {"request_start_ns": start_ns, "benchmark_phase": phase}
    return {"metadata": metadata, "metrics": {} if error else metrics, "error": error}


def test_aiperf_records_start_at_the_earliest_that_counts(read):
    start = 1_759_813_207_532_900_363
    rows = [
        record(start + 7, 550.0),
        record(start),
        record(start - 5, phase="warmup"),
        record(start + 1, error={"code": 499}),
    ]
    text = "\n".join(map(json.dumps, rows))

    trace = read(text, on_error="skip")

    assert trace.num_dropped == {"failed_request": 1, "warm_up": 1}
    assert trace.arrival_ps.tolist() == [0, 7000]
    assert trace.num_prompt_tokens.tolist() == [550, 550]
    assert trace.num_output_tokens.tolist() == [9, 9]
    with pytest.raises(InputError, match=r"line 3, column metadata\.benchmark_phase: 'warmup'; expected profiling"):
        read(text)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (record(0, 1.5), r"column metrics\.input_sequence_length\.value: .*1.5.*; expected a whole number"),
        (record(0, num_out=0), r"column metrics\.output_sequence_length\.value: 0; expected at least 1"),
        (record(-1), r"column metadata\.request_start_ns: -1; expected a whole number from 0"),
        (
            record(0) | {"metrics": {}},
            r"column metrics\.input_sequence_length\.value is missing; expected the prompt tokens",
        ),
    ],
)
def test_aiperf_mistakes(row, message, read):
    with pytest.raises(InputError, match=f"line 2, {message}"):
        read(json.dumps(record(0)) + "\n" + json.dumps(row))


def test_aiperf_times_that_leave_64_bits_are_refused(read):
    with pytest.raises(InputError, match="span more than 106 days"):
        read(json.dumps(record(0)) + "\n" + json.dumps(record(2**62)))
