"""Agentic sessions: who waits for whom, sub-agents, requests left out, folders; the six public sessions, exactly."""

import gzip
import json
from pathlib import Path

import pytest
from world import Settings, simulate

from core.errors import InputError
from traces.reading import read_trace
from traces.replay import Arrivals
from traces.schema import Trace
from traces.sharing import prefix_ceiling

SHARED = Path(__file__).parents[1].parent / "shared"
S = 10**12  # in picoseconds
needs_public_traces = pytest.mark.skipif(
    not (SHARED / "traces").is_dir(), reason="no public traces beside this checkout"
)
SESSIONS = ["trace_0187", "trace_0317", "trace_0365", "trace_0373", "trace_0504", "trace_0711"]


@pytest.fixture(scope="module")
def expected() -> dict[str, dict]:
    return json.loads((SHARED / "oracles" / "agentic_infinite.json").read_text())


@needs_public_traces
@pytest.mark.parametrize("name", SESSIONS)
def test_public_sessions_have_the_oracles_sharing(name, expected):
    trace = read_trace(SHARED / "traces" / "agentic" / f"{name}.json")
    oracle = expected[f"{name}.json"]

    assert trace.num_requests == oracle["requests"]
    assert trace.num_prompt_tokens.sum() == oracle["input_tokens"]
    whole_blocks = trace.num_prompt_tokens // 64
    assert whole_blocks.sum() == oracle["refs"]
    whole_ids = [set(trace.hash_ids.row(row)[: whole_blocks[row]].tolist()) for row in range(trace.num_requests)]
    assert len(set.union(*whole_ids)) == oracle["unique"]
    ceiling = prefix_ceiling(trace)
    assert ceiling.hit_blocks == oracle["prefix_hit_blocks"]
    assert ceiling.hit_tokens == oracle["prefix_hit_tokens"]


@needs_public_traces
@pytest.mark.parametrize("name", SESSIONS)
def test_a_sequential_replay_hits_what_the_oracle_hits(name, expected):
    trace = read_trace(SHARED / "traces" / "agentic" / f"{name}.json")
    run = simulate(trace, Settings(num_blocks=4000, block_size=64), arrivals=Arrivals.SEQUENTIAL)
    hits = sum(request.num_cached_tokens for request in run.requests())
    assert hits == expected[f"{name}.json"]["prefix_hit_tokens"]


@needs_public_traces
def test_a_public_session_is_a_closed_loop():
    trace = read_trace(SHARED / "traces" / "agentic" / "trace_0187.json")
    assert trace.arrival_ps.tolist() == [0, 6 * S, 12 * S]
    assert trace.parent.tolist() == [-1, 0, 1]
    assert trace.think_time_ps.tolist() == [-1, 3 * S, 3 * S]
    assert trace.num_prompt_tokens.tolist() == [10261, 11443, 14126]
    assert trace.num_output_tokens.tolist() == [251, 280, 257]
    assert trace.hash_block_tokens == 64
    assert trace.hash_ids.row_lengths.tolist() == [161, 179, 221], "one more than whole blocks"


@needs_public_traces
def test_the_folder_of_public_sessions_keeps_them_apart(expected):
    trace = read_trace(SHARED / "traces" / "agentic")
    sums = {key: sum(expected[f"{name}.json"][key] for name in SESSIONS) for key in expected["trace_0187.json"]}
    assert trace.num_requests == sums["requests"] == 167
    assert sorted(set(trace.session_id.tolist())) == [0, 1, 2, 3, 4, 5]
    assert prefix_ceiling(trace).hit_blocks == sums["prefix_hit_blocks"]
    assert (trace.parent == -1).sum() == 6
    assert trace.name == "agentic"


# ---- sessions made for the purpose ---------------------------------------------------------------------------------


def call(t: float, ids: list[int] | None = None, **keys: object) -> dict:
    """A request of two and a half blocks that took 2 s."""
    return {"t": t, "type": "n", "in": 10, "out": 3, "hash_ids": ids or [1, 2], "api_time": 2.0} | keys


def agent(t: float, *requests: dict, **keys: object) -> dict:
    return {"t": t, "type": "subagent", "agent_id": "a", "status": "completed", "requests": list(requests)} | keys


def session(*requests: dict, **keys: object) -> dict:
    return {"id": "s", "block_size": 4, "hash_id_scope": "local", "requests": list(requests)} | keys


@pytest.fixture
def read(tmp_path):
    def read_session(document: object, **options) -> Trace:
        path = tmp_path / "session.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_trace(path, **options)

    return read_session


def links(trace: Trace) -> list[tuple[float, int, float]]:
    """(arrival, parent, think time) of every row, in seconds; -1 for none."""
    thinks = [-1 if think < 0 else think / S for think in trace.think_time_ps.tolist()]
    return list(zip((trace.arrival_ps / S).tolist(), trace.parent.tolist(), thinks, strict=True))


def test_the_partial_block_is_nobody_elses(read):
    trace = read(session(call(0, think_time=0), call(5, think_time=3), call(9, [1, 2, 3], **{"in": 12}, think_time=2)))
    rows = [trace.hash_ids.row(row).tolist() for row in range(3)]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert rows[0][:2] == rows[1][:2] == rows[2][:2]
    assert len({row[2] for row in rows}) == 3


def test_think_times_without_any_told_are_those_of_the_clock(read):
    """From the end of the request before; one without `api_time` is taken to end as it starts."""
    requests = [call(0), call(5), call(6), call(10)]
    del requests[2]["api_time"]
    assert links(read(session(*requests))) == [(0, -1, -1), (5, 0, 3), (6, 1, 0), (10, 2, 4)]


def test_sub_agents_wait_for_the_call_and_the_next_request_waits_for_the_last_of_them(read):
    """The call ends at 2. Two agents: 3 to 5, then 6 to 8; and 3 to 9. The next request comes 1 s after the last."""
    first = agent(3, call(0), call(3))
    second = agent(3, call(0, api_time=6.0))
    trace = read(session(call(0), first, second, call(10, think_time=8), call(14, think_time=2)))
    assert links(trace) == [(0, -1, -1), (3, 0, 1), (3, 0, 1), (6, 1, 1), (10, 2, 1), (14, 4, 2)]
    assert trace.session_id.tolist() == [0] * 6


def test_times_inside_sub_agents_may_count_from_the_start_of_the_session(read):
    from_spawn = session(call(0), agent(3, call(0), call(3)), call(10))
    from_start = session(call(0), agent(3, call(3), call(6)), call(10))
    assert links(read(from_spawn)) == links(read(from_start)) == [(0, -1, -1), (3, 0, 1), (6, 1, 1), (10, 2, 2)]


def test_sub_agents_in_sub_agents(read):
    inner = agent(5, call(5), call(8))
    trace = read(session(call(0), agent(3, call(3), inner, call(11)), call(15)))
    assert links(trace) == [(0, -1, -1), (3, 0, 1), (5, 1, 0), (8, 2, 1), (11, 3, 1), (15, 4, 2)]


def test_a_sub_agent_may_end_with_a_sub_agent(read):
    """Whoever waits for the outer one waits for the inner one, too."""
    trace = read(session(call(0), agent(3, call(3), agent(5, call(6))), call(15)))
    assert links(trace) == [(0, -1, -1), (3, 0, 1), (6, 1, 1), (15, 2, 7)]


def test_sub_agents_that_still_run_hold_nobody_up(read):
    """One runs on beyond the next request, one was launched without waiting, one has no request."""
    running = agent(3, call(3), call(30))
    launched = agent(3, call(4), status="async_launched")
    trace = read(session(call(0), running, launched, agent(3), call(10, think_time=8)))
    assert links(trace) == [(0, -1, -1), (3, 0, 1), (4, 0, 2), (10, 0, 8), (30, 1, 25)]


def test_a_session_may_start_with_a_sub_agent(read):
    assert links(read(session(agent(1, call(1)), call(5)))) == [(1, -1, -1), (5, 0, 2)]


def test_a_request_without_output_hands_its_waits_on(read):
    """Left out: 2 s thought and a call of 2 s. Whoever came 1 s after it comes 5 s after the request before it."""
    document = session(call(0), call(4, out=0, think_time=2), call(7, think_time=1), call(11, think_time=2))
    with pytest.raises(
        InputError, match=r"session\.json, column requests\[1\]\.out: 0; expected at least 1 output token"
    ):
        read(document)

    trace = read(document, on_error="skip")

    assert trace.num_dropped == {"zero_output": 1}
    assert links(trace) == [(0, -1, -1), (7, 0, 5), (11, 1, 2)]


def test_waits_by_the_clock_are_not_counted_twice(read):
    trace = read(session(call(0), call(4, out=0), call(7), call(20, think_time=2)), on_error="skip")
    assert links(trace) == [(0, -1, -1), (7, 0, 5), (20, 1, 2)]


def test_a_first_request_without_output_makes_the_next_one_first(read):
    trace = read(session(call(0, out=0), call(4, think_time=2), call(7, think_time=1)), on_error="skip")
    assert links(trace) == [(4, -1, -1), (7, 0, 1)]


def test_a_sub_agent_spawned_by_a_request_that_was_left_out(read):
    """It hangs on the request before, at the time that lay between them: from 2 to 9."""
    trace = read(session(call(0), call(4, out=0), agent(8, call(9)), call(14)), on_error="skip")
    assert links(trace) == [(0, -1, -1), (9, 0, 7), (14, 1, 3)]


def test_requests_out_of_order_are_sorted(read):
    assert links(read(session(call(9), call(0), call(5)))) == [(0, -1, -1), (5, 0, 3), (9, 1, 2)]


def test_a_request_that_names_no_blocks_shares_with_nobody(read):
    trace = read(session(call(0), call(5, hash_ids=[]), call(9)))
    rows = [set(trace.hash_ids.row(row).tolist()) for row in range(3)]
    assert not rows[1] & (rows[0] | rows[2])


@pytest.mark.parametrize("scope", ["local", None, "global"])
def test_ids_of_a_folders_files_are_their_own_unless_said_otherwise(scope, tmp_path):
    keys = {"hash_id_scope": scope} if scope else {}
    document = session(call(0)) | keys
    if scope is None:
        del document["hash_id_scope"]
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "LICENSE").write_text("not a session")
    trace = read_trace(tmp_path)
    assert trace.session_id.tolist() == [0, 1]
    assert (trace.hash_ids.row(0)[0] == trace.hash_ids.row(1)[0]) == (scope == "global")


def test_packed_sessions_of_a_folder_are_read_too(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(session(call(0))))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(session(call(0), call(5))).encode()))
    assert read_trace(tmp_path).num_requests == 3


def test_a_folder_of_other_things_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read as a trace; expected a file, or a folder with agentic"):
        read_trace(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(session(call(0))))
    (tmp_path / "b.json").write_text(json.dumps(session(call(0), block_size=8)))
    with pytest.raises(InputError, match=r"b\.json, key block_size: 8; expected 4, as in the files before it"):
        read_trace(tmp_path)
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(InputError, match=r"b\.json: not an agentic session; expected a folder of nothing else"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match=r"is a folder, which only the format agentic can be; trace\.format=azure"):
        read_trace(tmp_path, format="azure")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (session(call(0), "x"), r"column requests\[1\]: 'x'; expected an object"),
        (session(call(0), {"in": 1, "out": 1}), r"column requests\[1\]\.t is missing; expected seconds"),
        (session(call(0), call(-1)), r"column requests\[1\]\.t: -1; expected a number from 0"),
        (session(call(0), call(1, api_time="x")), r"column requests\[1\]\.api_time: 'x'; expected a number"),
        (session(call(0), call(1, hash_ids=[1])), r"column requests\[1\]\.hash_ids: '1 ids'; expected 2 = floor"),
        (
            session(call(0), agent(1, call(0, out=0))),
            r"column requests\[1\]\.requests\[0\]\.out: 0; expected at least 1",
        ),
        (
            session(call(0), agent(1) | {"requests": 5}),
            r"column requests\[1\]\.requests: 5; expected a list of requests",
        ),
    ],
)
def test_mistakes_are_named_by_their_place_in_the_document(document, message, read):
    with pytest.raises(InputError, match=f"session.json, {message}"):
        read(document)
    assert sum(read(document, on_error="skip").num_dropped.values()) == 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (session(block_size=0), "key block_size: 0; expected a whole number from 1"),
        (session(hash_id_scope="mine"), "key hash_id_scope: 'mine'; expected local or global"),
        (session(call(0, out=0)), "no request in it"),
        ('{"block_size": 4, "requests": 5}', "key requests: 5; expected a list"),
        ('{"block_size": 4, "requests": [1,', "line 1, character 34: Expecting value; expected one JSON document"),
    ],
)
def test_documents_that_are_no_session(document, message, read):
    with pytest.raises(InputError, match=f"session.json.*{message}"):
        read(document, on_error="skip")
