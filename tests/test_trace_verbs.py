"""`kvtwin trace`: its verbs as a newcomer meets them, on small files and on the public ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Kvtwin, in_folder, refusals, row, write_trace

from core.errors import InputError
from kvtwin.arguments import Arguments
from traces.reading import read_trace
from traces.sharing import prefix_ceiling

SHARED = Path(__file__).parents[1].parent / "shared"


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def refused(kvtwin):
    return refusals(kvtwin)


@pytest.mark.parametrize("words", [("trace",), ("trace", "--help")])
def test_help_lists_the_verbs(kvtwin, words):
    finished = kvtwin(*words)
    assert finished.status == 0
    assert finished.out.startswith("usage: kvtwin trace VERB")


def test_an_option_that_does_not_exist_is_told_with_its_near_ones():
    parser = Arguments("trace thing", "A thing.")
    parser.add_argument("--fraction")
    with pytest.raises(InputError) as caught:
        parser.parse_args(["--fracton", "1"])
    expected = "trace thing: no option --fracton; did you mean --fraction? (kvtwin trace thing --help tells how)"
    assert str(caught.value) == expected


def chat(path: Path, num_sessions: int = 4, num_turns: int = 3) -> Path:
    """Sessions of a few turns, every prompt the one before and more."""
    rows = []
    for session in range(num_sessions):
        for turn in range(num_turns):
            parts = [[0, 64], *([1000 * (session + 1) + 50 * part, 50] for part in range(turn + 1))]
            more = {"parent": len(rows) - 1, "think_time_s": 2.5} if turn else {}
            rows.append(
                row(session * 10 + turn, 64 + 50 * (turn + 1), 5, prompt_segments=parts, session_id=session, **more)
            )
    return write_trace(path, rows)


def test_all_verbs_are_listed_and_a_near_one_is_proposed(kvtwin, refused):
    assert all(f"  {verb} " in kvtwin("trace").out for verb in ("info", "convert", "export", "sample"))
    assert refused("trace", "exprt") == "no trace verb 'exprt'; did you mean export?"
    assert kvtwin("trace", "info", "--help").status == 0


def test_info_is_one_screen(kvtwin, tmp_path):
    finished = kvtwin("trace", "info", str(chat(tmp_path / "chat.jsonl")))
    assert (finished.status, finished.errors) == (0, [])
    assert "own: kvtwin, 12 requests" in finished.out
    assert "Sessions" in finished.out
    assert "Think time p50" in finished.out
    assert max(map(len, finished.out.splitlines())) < 160


def test_info_as_json_has_units_in_its_keys(kvtwin, tmp_path):
    finished = kvtwin("trace", "info", str(chat(tmp_path / "chat.jsonl")), "--json", "--block-size", "50")
    info = json.loads(finished.out)
    assert info["schema"] == "kvtwin.trace_info/1"
    assert (info["num_requests"], info["arrivals"]["span_s"]) == (12, 32.0)
    assert info["sessions"]["num_sessions"] == 4
    assert info["sessions"]["think_time_s"]["p50"] == 2.5
    # Per session: 114, 164, 214 tokens. Three later sessions find the shared 64 (one block); each second turn finds
    # two full blocks of 114, each third three of 164.
    assert info["sharing"]["engine_hit_tokens"] == 50 * (3 * 1 + 4 * 2 + 4 * 3)
    assert info["sharing"]["block_tokens"] == 50


def test_hits_that_a_trace_does_not_define_are_not_zero(kvtwin, tmp_path):
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,3,4\n")
    finished = kvtwin("trace", "info", "azure.csv")
    assert "undefined: this trace carries no prefix information" in finished.out
    assert "0.0 %" not in finished.out
    assert json.loads(kvtwin("trace", "info", "azure.csv", "--json").out)["sharing"] is None


def test_a_prefix_below_one_block_is_told(kvtwin, tmp_path):
    rows = [row(number, 300, 1, prompt_segments=[[0, 240], [1000 + 60 * number, 60]]) for number in range(9)]
    finished = kvtwin("trace", "info", str(write_trace(tmp_path / "t.jsonl", rows)), "--block-size", "256")
    assert "Shared prefix below one block: prompts share up to 240 tokens" in finished.out


def test_rows_left_out_are_told_by_reason(kvtwin, tmp_path):
    write_trace(tmp_path / "t.jsonl", [row(0), row(1, 5, 0), row(2, 0, 0)])
    finished = kvtwin("trace", "info", "t.jsonl", "--on-error", "skip")
    assert "zero_output: 1, zero_prompt: 1" in finished.out
    finished = kvtwin("trace", "convert", "t.jsonl", "u.jsonl", "--on-error", "skip")
    assert finished.errors == ["note: 2 rows were left out of t.jsonl: 1 zero_output, 1 zero_prompt"]


@pytest.mark.parametrize("words", [("trace", "info", "t.jsonl"), ("mrc", "--trace", "t.jsonl")])
def test_a_refusal_names_the_flag_that_its_own_command_has(kvtwin, tmp_path, words):
    write_trace(tmp_path / "t.jsonl", [row(0), row(1, 5, 0)])
    (error,) = kvtwin(*words).errors
    assert error.endswith("expected at least 1 output token (--on-error skip leaves such rows out)")
    (error,) = kvtwin("sim", "trace=file", "trace.path=t.jsonl").errors
    assert error.endswith("expected at least 1 output token (trace.on_error=skip leaves such rows out)")


def test_fit_tells_what_it_did_not_learn_from(kvtwin, tmp_path):
    header = "arrived_at,num_prefill_tokens,num_decode_tokens"
    (tmp_path / "t.csv").write_text(f"{header}\n0,5,1\n1,6,0\n2,7,2\n")
    finished = kvtwin("trace", "fit", "t.csv", "--on-error", "skip", "--out", "like.yaml")
    assert finished.errors == ["note: 1 row was left out of t.csv: 1 zero_output"]


def test_a_low_rate_is_not_shown_as_none(kvtwin, tmp_path):
    write_trace(tmp_path / "t.jsonl", [row(0), row(4000)])
    assert " 0.0005 req/s" in kvtwin("trace", "info", "t.jsonl").out


def test_sessions_of_a_folder_are_not_unsorted_rows(kvtwin, tmp_path):
    """Each starts at 0 on a clock of its own."""
    for name in ("a", "b"):
        requests = [{"t": time_s, "in": 64, "out": 2, "hash_ids": [1]} for time_s in (0, 5)]
        folder = tmp_path / "sessions"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps({"block_size": 64, "requests": requests}))
    assert "sorted by arrival" not in kvtwin("trace", "info", "sessions").out


def test_a_page_is_one_file_that_asks_the_network_for_nothing(kvtwin, tmp_path):
    pytest.importorskip("plotly", reason="pages need the extra `report`")
    assert kvtwin("trace", "info", str(chat(tmp_path / "c.jsonl")), "--html", "out/page.html").status == 0
    page = Path("out/page.html").read_text()
    assert "default-src 'none'" in page
    for title in ("Arrivals over time", "Gaps between arrivals", "What an LRU cache hits", "Reuse distance"):
        assert title in page
    write_trace(tmp_path / "one.jsonl", [row(0)])
    assert kvtwin("trace", "info", "one.jsonl", "--html", "one.html").status == 0


def test_convert_and_sample_say_what_they_did(kvtwin, tmp_path):
    chat(tmp_path / "chat.jsonl")
    finished = kvtwin("trace", "convert", "chat.jsonl", "out.jsonl", "--to", "mooncake", "--block-size", "16")
    assert finished.out == "out.jsonl: mooncake, 12 requests over 32.0 s\n"
    assert finished.errors == [
        "note: mooncake cannot carry: session_id; parent; think_time_s",
        "note: a mooncake file does not tell that its blocks have 16 tokens; readers expect 512",
    ]
    finished = kvtwin("trace", "sample", "chat.jsonl", "few.jsonl", "--num-requests", "4", "--seed", "1")
    assert finished.errors == ["note: 6 of 12 requests kept"]
    sampled = read_trace("few.jsonl")
    assert sampled.parent.tolist() == [-1, 0, 1, -1, 3, 4]


def test_transforms_are_options(kvtwin, tmp_path):
    chat(tmp_path / "chat.jsonl")
    words = ["--window", "10:20", "--rate-scale", "2", "--max-prompt-tokens", "100", "--max-output-tokens", "3"]
    assert kvtwin("trace", "convert", "chat.jsonl", "out.jsonl", *words).status == 0
    out = read_trace("out.jsonl")
    assert (out.arrival_ps // 10**9).tolist() == [0, 500, 1000]
    assert out.num_prompt_tokens.tolist() == [100, 100, 100]
    assert out.num_output_tokens.tolist() == [3, 3, 3]
    kvtwin(
        "trace",
        "convert",
        "chat.jsonl",
        "out.jsonl",
        "--merge",
        "chat.jsonl",
        "--tenant",
        "1",
        "--prompt-tokens",
        ":114",
    )
    assert read_trace("out.jsonl").num_requests == 4
    kvtwin("trace", "convert", "chat.jsonl", "out.jsonl", "--max-prompt-tokens", "120", "--long", "drop")
    assert read_trace("out.jsonl").num_requests == 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["convert", "chat.jsonl", "out"],
            "the ending of out tells no format to write; expected --to kvtwin, mooncake",
        ),
        (["convert", "chat.jsonl", "out.csv", "--to", "azur"], "--to azur tells no format to write"),
        (["convert", "chat.jsonl", "chat.jsonl"], "chat.jsonl is a file that is read; expected another name"),
        (["convert", "chat.jsonl"], "trace convert: the following arguments are required: OUT"),
        (
            ["convert", "chat.jsonl", "o.jsonl", "--windw", "3"],
            "trace convert: no option --windw; did you mean --window?",
        ),
        (["convert", "chat.jsonl", "o.jsonl", "--window", "3"], "trace convert: argument --window: '3' is no window"),
        (
            ["convert", "chat.jsonl", "o.jsonl", "--tenant", "a"],
            "trace convert: argument --tenant: 'a'; expected whole",
        ),
        (["convert", "chat.jsonl", "o.jsonl", "--rate-scale", "0"], "--rate-scale 0; expected more than 0"),
        (["convert", "nothing.jsonl", "o.jsonl"], "nothing.jsonl: cannot be read"),
        # Told before anything is read.
        (["convert", "nothing.jsonl", "chat.jsonl/o.jsonl"], "chat.jsonl/o.jsonl: cannot be written; expected a file"),
        (["fit", "nothing.jsonl", "--out", "chat.jsonl/r.yaml"], "chat.jsonl/r.yaml: cannot be written; expected a"),
        (["synth", "rag", "--out", "chat.jsonl/o.jsonl"], "chat.jsonl/o.jsonl: cannot be written; expected a file"),
        (["export", "nothing.jsonl", "--for", "aiperf", "--out", "chat.jsonl"], "chat.jsonl: is a file; expected a"),
        (["export", "nothing.jsonl", "--for", "aiperf", "--out", "chat.jsonl/x"], "chat.jsonl/x: cannot be written to"),
        (["export", "nothing.jsonl", "--for", "guidellm", "--out", "a,b"], "a,b: guidellm takes no comma in a path;"),
        (["export", "nothing.jsonl", "--for", "aiprf", "--out", "x"], "--for aiprf: no such load tool; did you mean"),
        (["sample", "nothing.jsonl", "chat.jsonl", "--fraction", "1"], "nothing.jsonl: cannot be read"),
        (
            ["info", "chat.jsonl", "--block-size", "-3"],
            "trace info: argument --block-size: -3; expected a whole number",
        ),
        (["convert", "chat.jsonl", ".", "--to", "azure"], ". is a folder; expected a file to write to"),
        (
            ["sample", "chat.jsonl", "o.jsonl", "--fraction", "0.5", "--seed", "-5"],
            "trace sample: argument --seed: -5; expected a whole number from 0",
        ),
        (
            ["sample", "chat.jsonl", "o.jsonl", "--fraction", "0.5", "--num-requests", "5"],
            "sample: expected a number of requests or a fraction, and not both",
        ),
        (
            ["convert", "chat.jsonl", "o.jsonl", "--prompt-tokens", "9:5"],
            "trace convert: argument --prompt-tokens: '9:5' is empty; expected an end",
        ),
        (
            ["convert", "chat.jsonl", "o.jsonl", "--max-prompt-tokens", "5", "--long", "drop"],
            "trace 'own': every request has more than 5 prompt tokens; expected a cap",
        ),
        (["sample", "chat.jsonl", "o.jsonl"], "trace sample: how many? expected --fraction"),
        (["sample", "chat.jsonl", "o.jsonl", "--fraction", "2"], "--fraction 2; expected more than 0 and at most 1"),
        (["sample", "chat.jsonl", "o.jsonl", "--num-requests", "13"], "--num-requests 13; expected 1 to 12, as many"),
        (["sample", "chat.jsonl", "o.jsonl", "--window", "a:"], "--window a; expected a number such as 30"),
        (
            ["export", "chat.jsonl", "--for", "vlm-bench", "--out", "x"],
            "--for vlm-bench: no such load tool; did you mean vllm",
        ),
        (["export", "chat.jsonl", "--out", "x"], "trace export: the following arguments are required: --for"),
    ],
)
def test_a_wrong_word_is_told_with_what_would_be_right(refused, tmp_path, words, line):
    chat(tmp_path / "chat.jsonl")
    assert refused("trace", *words).startswith(line)


def test_no_verb_writes_over_what_it_reads(refused, tmp_path):
    chat(tmp_path / "chat.jsonl")
    chat(tmp_path / "aiperf.jsonl")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for words in (
        ["convert", "chat.jsonl", "aiperf.jsonl", "--merge", "aiperf.jsonl"],
        ["export", "aiperf.jsonl", "--for", "aiperf", "--out", "."],
        ["info", "chat.jsonl", "--format", "azure", "--html", "chat.jsonl"],  # told before it is read as what it is not
        ["fit", "chat.jsonl", "--out", "chat.jsonl"],
    ):
        assert refused("trace", *words).endswith(".jsonl is a file that is read; expected another name to write to")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_verb_writes_over_a_session_of_the_folder_that_it_reads(refused, tmp_path):
    (tmp_path / "all").mkdir()
    session = tmp_path / "all" / "a.json"
    session.write_text('{"block_size": 64, "requests": [{"t": 0, "in": 5, "out": 2}]}')
    assert refused("trace", "convert", "all", "all/a.json", "--to", "kvtwin").startswith("all/a.json is a file that is")
    assert "block_size" in session.read_text()


@pytest.mark.parametrize(
    ("tool", "file", "options"),
    [
        (
            "aiperf",
            "aiperf.jsonl",
            ["--custom-dataset-type mooncake_trace", "--fixed-schedule", "--isl-block-size 512"],
        ),
        ("vllm-bench", "vllm-bench.jsonl", ["--timed-trace-sec-multiplier 0.001", "--timed-trace-chunk-hash-size 512"]),
        ("guidellm", "guidellm.jsonl", ["kind=mooncake,", "time_scale=0.001", "hash_id_block_size=512"]),
        ("inference-perf", "inference-perf.csv", ["--config_file dir/inference-perf.yml"]),
    ],
)
def test_export_prints_the_command_with_unit_and_block_size(kvtwin, tmp_path, tool, file, options):
    chat(tmp_path / "chat.jsonl")
    finished = kvtwin("trace", "export", "chat.jsonl", "--for", tool, "--out", "dir")
    assert finished.status == 0
    assert all(option in finished.out for option in options)
    assert f"dir/{file}" in finished.out or tool == "inference-perf"
    assert read_trace(f"dir/{file}").num_requests == 12
    assert any("cannot carry: " in line for line in finished.errors)


def test_export_has_the_traces_own_block_size_and_number_of_requests(kvtwin, tmp_path):
    chat(tmp_path / "chat.jsonl")
    out = kvtwin("trace", "export", "chat.jsonl", "--for", "vllm-bench", "--out", "dir", "--block-size", "16").out
    assert "--timed-trace-chunk-hash-size 16" in out
    assert "--num-prompts 12" in out


def test_a_trace_without_prefix_information_is_exported_as_prompts_that_share_nothing(kvtwin, tmp_path):
    write_trace(tmp_path / "bare.jsonl", [row(0, 600), row(1, 40)])
    assert (
        "says nothing on prefixes"
        in kvtwin("trace", "export", "bare.jsonl", "--for", "vllm-bench", "--out", "d").errors[0]
    )
    assert prefix_ceiling(read_trace("d/vllm-bench.jsonl")).hit_blocks == 0
    assert "--isl-block-size" not in kvtwin("trace", "export", "bare.jsonl", "--for", "aiperf", "--out", "d").out
    assert "kind=trace_synthetic" in kvtwin("trace", "export", "bare.jsonl", "--for", "guidellm", "--out", "d").out


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no public traces beside this checkout")
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_info_of_the_public_traces_is_the_oracles(kvtwin, name):
    file = SHARED / "traces" / "mooncake" / f"{name}_trace.jsonl"
    info = json.loads(kvtwin("trace", "info", str(file), "--json").out)
    infinite = json.loads((SHARED / "oracles" / "mooncake_infinite.json").read_text())[name]
    stats = json.loads((SHARED / "oracles" / "trace_stats.json").read_text())[f"mooncake/{name}_trace"]
    sharing = info["sharing"]
    assert (info["format"], info["sha256"], info["num_requests"]) == ("mooncake", stats["sha256"], stats["rows"])
    assert (sharing["hit_blocks"], sharing["hit_tokens"]) == (
        infinite["prefix_hit_blocks"],
        infinite["prefix_hit_tokens"],
    )
    assert sharing["engine_hit_tokens"] == infinite["full_only_tokens"]
    assert sharing["num_unique_blocks"] == sharing["num_first_references"] == stats["unique_blocks"]
    assert sharing["blocks_per_request"]["max"] == stats["hash_ids_per_req"]["max"]
    assert sharing["lru_hits"][-1]["hit_blocks"] == infinite["prefix_hit_blocks"]
    assert sum(bucket["num_references"] for bucket in sharing["reuse_distance_blocks"]) == infinite["prefix_hit_blocks"]
    assert info["arrivals"]["num_ties"] == stats["tied_steps"]


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no public traces beside this checkout")
def test_info_of_the_agentic_sessions_is_the_oracles(kvtwin):
    expected = json.loads((SHARED / "oracles" / "agentic_infinite.json").read_text())
    expected.pop("method")
    assert len(expected) == 6
    for name, figures in expected.items():
        file = SHARED / "traces" / "agentic" / name
        info = json.loads(kvtwin("trace", "info", str(file), "--on-error", "skip", "--json").out)
        sharing = info["sharing"]
        assert sharing["num_full_block_references"] == figures["refs"]
        assert sharing["num_unique_full_blocks"] == figures["unique"]
        assert (sharing["hit_blocks"], sharing["hit_tokens"]) == (
            figures["prefix_hit_blocks"],
            figures["prefix_hit_tokens"],
        )
