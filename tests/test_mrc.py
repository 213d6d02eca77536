"""`kvtwin mrc`: curves against independent simulations, bounds that nobody beats, and what the command tells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import shapes
from eviction_policies import CAUSAL
from hypothesis import given, settings
from hypothesis import strategies as st
from test_block_replay import CAPACITIES, MODES, needs_oracles, oracle, references, trace_of, trees

from core.errors import InputError
from core.interfaces import EvictionPolicy
from kvtwin.app import main
from kvtwin.block_flops import with_flops
from kvtwin.block_replay import Mode, Touch, replay_blocks
from kvtwin.bounds import min_hit_blocks, most_hit_value
from kvtwin.mrc import LruCurve, MrcOptions, auto_capacities, log_spaced, measure
from kvtwin.naming import options_of
from kvtwin.policy_words import policy_choices
from kvtwin.reachability import Reachability
from policies.eviction.fifo import FIFO
from policies.eviction.lru import LRU
from traces.block_references import BlockReferences, block_references
from traces.reading import read_trace
from traces.samples import sample_path
from traces.transforms import limit

EVERY_MODE = [*MODES.values(), (Mode.LEAF, Touch.TAIL)]


# ---- LRU in one pass ------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(found=trees(), how=st.sampled_from(EVERY_MODE))
def test_the_curve_is_what_replays_find_at_every_capacity(found: BlockReferences, how: tuple[Mode, Touch]) -> None:
    """Also where requests are longer than the capacity."""
    curve = LruCurve(found, *how)
    for capacity in range(1, found.num_unique + 2):
        assert curve.at(capacity) == replay_blocks(found, LRU, capacity, *how), capacity


@settings(deadline=None, derandomize=True)
@given(found=trees(), capacity=st.integers(1, 20))
def test_leaf_lru_is_lru_touched_tail_first(found: BlockReferences, capacity: int) -> None:
    leaf = replay_blocks(found, LRU, capacity, Mode.LEAF)
    assert leaf == replay_blocks(found, LRU, capacity, Mode.PREFIX, Touch.TAIL)


@needs_oracles
@pytest.mark.parametrize("mode", MODES)
def test_the_curve_of_the_synthetic_trace(mode: str) -> None:
    """All eleven capacities of the file, hit blocks and hit tokens."""
    curve = LruCurve(references("synthetic_trace"), *MODES[mode])
    for capacity, expected in oracle("synthetic_trace_own")["finite"].items():
        told, found = expected[f"{mode}.LRU"], curve.at(int(capacity))
        assert (found.hit_blocks, found.hit_tokens) == (told["hits"], told.get("hit_tokens", found.hit_tokens))


@needs_oracles
def test_leaf_lru_of_the_conversation_trace() -> None:
    """Catalogue J 78b: .0445, .2116, .3257 of 288,500 references."""
    trace = references("conversation_trace")
    curve = LruCurve(trace, Mode.LEAF, Touch.TAIL)
    ratios = [curve.at(capacity).hit_blocks / trace.num_references for capacity in (1000, 10_000, 30_000)]
    assert [round(ratio, 4) for ratio in ratios] == [0.0445, 0.2116, 0.3257]


def test_the_knee_is_where_the_curve_stands_highest_above_its_chord() -> None:
    """Three references hit with one block, the fourth only with four: the chord is at 1/4 where the curve is at 3/4."""
    found = block_references(trace_of([[1], [1], [1], [1], [2], [3], [4], [1]]))
    assert LruCurve(found, Mode.PLAIN, Touch.TAIL).knee() == {"capacity_blocks": 1, "hit_blocks": 3}
    never = block_references(trace_of([[1], [2]]))
    assert LruCurve(never, Mode.PLAIN, Touch.TAIL).knee() is None


# ---- every policy that has an oracle --------------------------------------------------------------------------------

# libcachesim 0.3.5, plain mode. Of lirs, slru, w_tinylfu and lfu_da the latter two differ, as their papers do from it.
BY_LIBCACHESIM = {
    "lru": "LRU",
    "fifo": "FIFO",
    "lfu": "LFU",
    "clock": "CLOCK",
    "sieve": "SIEVE",
    "arc": "ARC",
    "two_q": "2Q",
    "s3fifo[warmup=true]": "S3FIFO",
    "lirs": "LIRS",
    "slru": "SLRU",
    "belady": "BELADY",
}
SIZES = [1000, 10_000, 30_000]  # from 43,924 on, the distinct content, all are equal
THERE = [word for word in BY_LIBCACHESIM if word.partition("[")[0] in options_of("eviction")]


@needs_oracles
@pytest.mark.parametrize("word", THERE)
def test_policies_miss_as_often_as_those_of_libcachesim(word: str) -> None:
    """On the whole trace, to the last one."""
    expected = oracle("synthetic_trace_libcachesim")["algs"][BY_LIBCACHESIM[word]]
    options = MrcOptions(Mode.PLAIN, Touch.TAIL, seed=0, num_jobs=1, with_bound=False)
    found = measure(references("synthetic_trace"), policy_choices(word), SIZES, options)
    assert [row["miss_blocks"] for row in found["results"]] == [expected[str(size)]["misses"] for size in SIZES]


# ---- bounds ---------------------------------------------------------------------------------------------------------


@needs_oracles
def test_belady_on_the_synthetic_trace() -> None:
    trace, expected = references("synthetic_trace"), oracle("synthetic_trace_own")["finite"]
    for capacity in ("439", *CAPACITIES):
        hits = min_hit_blocks(trace.blocks, int(capacity), may_bypass=False)
        assert hits == expected[capacity]["plain.BELADY"]["hits"]


def best_hits(blocks: Sequence[int], capacity: int, may_bypass: bool) -> int:
    """The most hits that any choice of victims gives, by trying them all."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for block in blocks:
        after: dict[frozenset[int], int] = {}
        for kept, hits in states.items():
            if block in kept:
                options = [(kept, hits + 1)]
            elif len(kept) < capacity:
                options = [(kept | {block}, hits)]
            else:
                options = [(kept - {victim} | {block}, hits) for victim in kept] + [(kept, hits)] * may_bypass
            for state, num in options:
                after[state] = max(num, after.get(state, 0))
        states = after
    return max(states.values())


@settings(deadline=None, derandomize=True)
@given(blocks=st.lists(st.integers(0, 5), min_size=1, max_size=14), capacity=st.integers(1, 4), bypass=st.booleans())
def test_belady_is_the_best_there_is(blocks: list[int], capacity: int, bypass: bool) -> None:
    assert min_hit_blocks(np.array(blocks), capacity, bypass) == best_hits(blocks, capacity, bypass)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    found=trees(),
    capacity=st.integers(1, 20),
    policy=st.sampled_from(CAUSAL),
    how=st.sampled_from(EVERY_MODE),
    seed=st.integers(0, 3),
)
def test_nobody_beats_the_bound(
    found: BlockReferences, capacity: int, policy: type[EvictionPolicy], how: tuple[Mode, Touch], seed: int
) -> None:
    may_bypass = how[0] is not Mode.PLAIN and capacity < found.num_blocks.max()
    assert replay_blocks(found, policy, capacity, *how, seed).hit_blocks <= min_hit_blocks(
        found.blocks, capacity, may_bypass
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(found=trees(), policy=st.sampled_from(CAUSAL), how=st.sampled_from(EVERY_MODE))
def test_all_are_equal_where_everything_fits(
    found: BlockReferences, policy: type[EvictionPolicy], how: tuple[Mode, Touch]
) -> None:
    assert replay_blocks(found, policy, found.num_unique, *how).miss_blocks == found.num_unique


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    found=trees(),
    capacity=st.integers(1, 20),
    policy=st.sampled_from(CAUSAL),
    how=st.sampled_from(EVERY_MODE),
    model=st.sampled_from(["tiny", "llama3_8b"]),
)
def test_nobody_saves_more_flops_than_the_bound(
    found: BlockReferences, capacity: int, policy: type[EvictionPolicy], how: tuple[Mode, Touch], model: str
) -> None:
    weighted = with_flops(found, shapes.model(model))
    (most,) = most_hit_value(weighted.blocks, weighted.flops, [capacity])
    saved = replay_blocks(weighted, policy, capacity, *how).hit_flops
    everything = replay_blocks(weighted, policy, found.num_unique, *how).hit_flops
    assert saved is not None
    assert everything is not None
    assert saved <= most * (1 + 1e-12)
    assert most <= everything * (1 + 1e-12)


def test_the_flop_bound_takes_what_is_worth_most_for_its_time() -> None:
    """Six references and one block: room for six steps. The hit of 3 takes one, that of 2 three, that of 1 five, of
    which two are left. Two blocks have room for all three.
    """
    blocks, values = np.array([1, 2, 3, 3, 2, 1]), np.array([0.0, 0.0, 0.0, 6.0, 6.0, 5.0])
    assert most_hit_value(blocks, values, [1, 2]) == [6 + 6 + 5 * 2 / 5, 17]


def test_a_block_saves_more_the_deeper_it_lies() -> None:
    """The sum is what the whole prompt costs."""
    model = shapes.model("llama3_8b")
    flops = with_flops(block_references(trace_of([[1, 2, 3]], num_tokens=[11])), model).flops
    assert flops.sum() == model.linear_flops(11) + model.causal_attention_flops(11)
    assert flops[0] < flops[1]
    assert flops[2] > flops[1] * 3 / 4


# ---- orphans --------------------------------------------------------------------------------------------------------


def test_what_no_look_up_reaches() -> None:
    """0-1-2-3 and 0-4: without 1, both 2 and 3 are out of reach; only 2 is an orphan."""
    tree = Reachability(block_references(trace_of([[1, 2, 3, 4], [1, 5]])))
    assert tree.num_unreachable([0, 1, 2, 3, 4]) == 0
    assert tree.num_unreachable([0, 2, 3, 4]) == 2
    assert tree.num_unreachable([1, 2, 3, 4]) == 4
    assert tree.num_unreachable([]) == 0


@needs_oracles
def test_orphans_of_fifo_on_the_conversation_trace() -> None:
    """Catalogue B: .037 of the pool at 10,000 blocks. Few of them are orphans themselves."""
    found = replay_blocks(references("conversation_trace"), FIFO, 10_000, Mode.PREFIX)
    assert found.unreachable_block_ratio == pytest.approx(0.037, abs=0.001)
    assert found.orphan_block_ratio == pytest.approx(0.00504, abs=1e-5)


# ---- policies by words ----------------------------------------------------------------------------------------------


def test_policies_are_written_with_their_parameters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_fifo.py").write_text(
        "from policies.eviction.fifo import FIFO\n"
        "class Mine(FIFO):\n    def __init__(self, env, depth=1, name=''):\n        super().__init__(env)\n"
        "        self.depth, self.name = depth, name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    lru, clock, mine = policy_choices("lru,clock[bits=2],my_fifo.Mine[depth=3, name=x]")
    assert [choice.label for choice in (lru, clock, mine)] == ["lru", "clock[bits=2]", "my_fifo.Mine[depth=3, name=x]"]
    made = mine.make(None)  # type: ignore[arg-type]
    assert (lru.policy, made.depth, made.name) == (LRU, 3, "x")  # type: ignore[attr-defined]


def test_all_are_those_that_do_not_see_the_future() -> None:
    choices = policy_choices("all")
    assert {"lru", "fifo", "sieve"} <= {choice.label for choice in choices}
    assert not any(choice.policy.clairvoyant for choice in choices)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("lru,lruu", "eviction=lruu: no such eviction; did you mean lru"),
        ("lru,lru", "policies: lru stands there twice"),
        ("clock[bits]", "expected key=value"),
        ("clock[bitz=1]", "eviction.bitz: Clock has no such parameter; did you mean bits"),
        ("clock[bits=1", r"policies: cannot read 'clock\[bits=1'; expected a name"),
        ("", "policies: cannot read ''"),
        ("no_such.Policy", "no module no_such"),
    ],
)
def test_a_word_that_names_no_policy_is_refused(words: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        policy_choices(words)


# ---- the command ----------------------------------------------------------------------------------------------------


def json_of(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    assert main(["mrc", *args, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_documented_shape(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "--policies", "lru,clock[bits=2]", "--capacities", "1000,200", "--mode", "leaf")
    assert (found["trace"], found["mode"], found["references"]) == ("agent_sessions", "leaf", 41_633)
    points = [(row["policy"], row["capacity_blocks"]) for row in found["results"]]
    assert points == [(name, capacity) for name in ("lru", "clock[bits=2]") for capacity in (200, 1000)]
    for row in found["results"]:
        assert row["hit_blocks"] + row["miss_blocks"] == found["references"]
        assert 0 < row["hit_tokens"] <= row["hit_blocks"] * 16
        assert row["orphan_block_ratio"] == 0
    assert found["infinite"]["hit_blocks"] == found["references"] - found["unique_blocks"]
    most = {row["capacity_blocks"]: row["hit_blocks"] for row in found["bound"]}
    for row in found["results"]:
        assert row["regret_blocks"] == most[row["capacity_blocks"]] - row["hit_blocks"] >= 0
    assert [row["hit_blocks"] for row in found["bound"]] > [row["hit_blocks"] for row in found["results"][:2]]


def test_what_is_seen_now_and_then_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    """By the screen, and so by the page, which has the same remarks."""
    assert main(["mrc", "--policies", "fifo", "--capacities", "700", "--no-bound"]) == 0
    told = " ".join(capsys.readouterr().out.split()).partition("Orphans: ")[2]
    assert told.startswith("up to 34.0 % of the blocks (fifo at 700) cannot be hit")
    assert told.endswith("(mean of up to 64 looks, evenly spread over the requests).")


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtwin.mrc._WORTH_A_PROCESS", 1)
    trace = limit(read_trace(sample_path("agent_sessions")), 30)
    found, choices = block_references(trace), policy_choices("random,fifo,lru")
    one, two = (
        measure(found, choices, [50, 300], MrcOptions(Mode.PREFIX, Touch.TAIL, 7, num_jobs, True))
        for num_jobs in (1, 2)
    )
    assert one == two


def test_without_a_trace_a_bundled_one_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mrc", "--no-bound", "--policies", "lru"]) == 0
    told = capsys.readouterr().out
    assert "agent_sessions: hit ratio by block, mode prefix, touched tail first; 299 requests" in told
    assert "An infinite cache hits 82.9 %." in told
    assert "LRU's knee" in told


def test_the_page_holds_the_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "mrc.html"
    assert main(["mrc", "--policies", "lru,fifo", "--capacities", "100,1000", "--html", str(page)]) == 0
    text = page.read_text()
    marks = '"tickvals":[50,100,200,500,1000,2000]'
    for words in ("Belady&#x27;s bound", "infinite cache", "Hits against capacity", '"name":"fifo"', marks):
        assert words in text


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--capacities", "0,5"], "--capacities 0,5: expected numbers of blocks from 1 on"),
        (["--capacities", "many"], "--capacities many: expected numbers of blocks from 1 on"),
        (["--mode", "suffix"], "mrc: argument --mode: invalid choice: 'suffix'"),
        (["--mode", "plain", "--touch", "head"], "--touch head says how prefixes are touched; expected --mode prefix"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--jobs", "0"], "mrc: argument --jobs: 0; expected a whole number of at least 1"),
        (["--limit", "0"], "mrc: argument --limit: 0; expected a whole number of at least 1"),
        (["--seed", "x"], "mrc: argument --seed: x; expected a whole number from 0"),
        (["--polices", "lru"], "no option --polices; did you mean --policies"),
    ],
)
def test_bad_words_are_told_in_one_line(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mrc", *args]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err
    assert printed.err.count("\n") == 1


def test_a_trace_that_tells_nothing_of_prefixes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bare.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    assert main(["mrc", "--trace", str(file)]) == 2
    assert "does not tell which prompts share a prefix" in capsys.readouterr().err


def test_capacities_are_log_spaced_up_to_all_blocks() -> None:
    found = block_references(read_trace(sample_path("agent_sessions")))
    capacities = auto_capacities(found)
    assert (capacities[0], capacities[-1], len(capacities)) == (7, 7129, 10)
    assert log_spaced(1, 3, 10) == [1, 2, 3]
