"""The kit to write a policy: what is wrong is named with its block or request, what is right passes, shipped or new."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import wrong_policies as wrong
from command import Kvtwin, in_folder, refusals

from kvtwin.binding import find_class
from kvtwin.conformance import FAST, PolicyFault, Subject, check_policy, checks_of, findings, subject_of
from kvtwin.conformance.costs import times_stay_bounded
from kvtwin.new_policy import draft_policy, write_draft
from kvtwin.policy_catalogue import catalogue
from kvtwin.policy_kinds import KINDS
from kvtwin.policy_target import bind_target

ROOT = Path(__file__).parents[1]
QUICK = replace(FAST, num_lives=6, num_workloads=2, many_blocks=256)
SOME = replace(FAST, num_lives=30, num_workloads=40)


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return in_folder(tmp_path, monkeypatch, capsys)


def fault_of(policy: type, effort=SOME) -> PolicyFault:
    with pytest.raises(PolicyFault) as caught:
        check_policy(policy, effort=effort)
    return caught.value


def test_the_one_that_the_wrong_ones_derive_from_is_right():
    check_policy(wrong.OldestFirst, effort=SOME)


def test_the_policy_of_the_readme_keeps_its_promises(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "readme_policy.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    check_policy(find_class("readme_policy.EarliestRegistered", "eviction"), effort=QUICK)


@pytest.mark.parametrize(
    ("policy", "rule", "what"),
    [
        (wrong.NamesReferenced, "never names a referenced block", r"pop_victim returned block 0, which is referenced"),
        (wrong.NamesTwice, "names each block once", r"pop_victim returned block 1 again, which it had named before"),
        (wrong.NamesStranger, "names only what it was given", r"pop_victim returned block 99, which it was not given"),
        (wrong.KeepsOne, "drains fully", r"pop_victim with 1 evictable raised IndexError: nothing to evict \(.*line"),
        (wrong.ReturnsNothing, "drains fully", r"pop_victim returned None with 1 evictable"),
        (wrong.WritesBlocks, "only reads its blocks", r"on_hit changed block 0; a policy may write its `link` alone"),
        (wrong.Raises, "raises nothing", r"on_hit for block 0 raised LookupError: never seen it \(.*wrong_policies.py"),
        (wrong.NeedsASize, "can be made for any pool", r"eviction: NeedsASize cannot be made: TypeError: unsupported"),
        (wrong.NeverEnds, "comes to an end", r"pop_victim with 2 evictable does not end"),
        (
            wrong.DrawsAtLarge,
            "same seed and history, same victims",
            r"one copy of the policy gave up blocks \[.*another",
        ),
        (
            wrong.ForetellsWrongly,
            "tells the order it evicts in",
            r"eviction_order foretold blocks \[.\], then \[.\] went",
        ),
        (
            wrong.ForetellsTooFew,
            "tells the order it evicts in",
            r"eviction_order tells no block, evictable are block 0",
        ),
        (wrong.ForetellsByIterator, "tells the order it evicts in", r"eviction_order returned \w+; expected a list"),
        (wrong.CannotBeSpared, "raises nothing", r"on_hit for blocks? .* raised KeyError"),
        (wrong.ScansInPython, "its cost per block is bounded", r"\d+ lines of Python per block in a pool of 64 blocks"),
    ],
)
def test_a_wrong_eviction_policy_is_named_with_its_block(policy, rule, what):
    fault = fault_of(policy)
    assert fault.rule == rule
    assert re.search(what, fault.what), fault.what


@pytest.mark.parametrize(
    ("policy", "rule", "what"),
    [
        (wrong.ClaimsTailsFirst, "spans decide as single steps do", r"single steps: step \d+: \w+"),
        (wrong.Unready, "spans decide as single steps do", r"single steps: step \d+: \w+"),
        (
            wrong.WantsScarcity,
            "more free blocks never turn ADMIT into WAIT",
            r"step 0: request 0 needs 8 blocks: ADMIT with 22 free, WAIT with 10022",
        ),
        (wrong.LetsNobodyIn, "everybody gets done", r"request 0 waits for ever, and the machine idles"),
        (wrong.AnswersYes, "answers what its kind answers", r"request 0: True; expected an Admission"),
        (wrong.NamesTheAbsent, "names a running request", r"it names request \d, which does not run"),
        (wrong.NamesNobody, "everybody gets done", r"waits for ever|goes on after"),
        (wrong.NamesARequest, "answers what its kind answers", r"for request \d it names Request\("),
        (wrong.NamesByLot, "same inputs, same decisions", r"one run: step \d+: .*; the same again: step \d+"),
        (wrong.MixedKeys, "all keys compare", r"request \d has key .*, request \d .*: '<' not supported"),
        (wrong.NotANumber, "keys are in one order", r"request 0 has key nan, request 0 nan: neither one is less"),
        (wrong.RockPaperScissors, "keys are in one order", r"request . \(\w+\) is before request . \(\w+\), and that"),
        (wrong.ByLot, "same inputs, same decisions", r"one run: step \d+: .*; the same again: step \d+"),
        (wrong.NoBudget, "the budget is positive", r"budget_tokens=0; expected a whole number of at least 1"),
        (wrong.ATuple, "answers what its kind answers", r"\(8, 0, True\); expected BatchRules"),
        (wrong.NotFixed, "spans decide as single steps do", r"single steps: step \d+: \w+"),
        (
            wrong.Counting,
            "enough blocks for the tokens",
            r"request 0: 3 blocks for \d+ tokens, of . tokens each; expected at",
        ),
        (wrong.GivesBack, "never fewer blocks for more tokens", r"request 0: 3 blocks for \d tokens, 2 for one more"),
        (
            wrong.Fractions,
            "answers what its kind answers",
            r"request 0: .* blocks for 1 tokens; expected a whole number",
        ),
        (wrong.RanksMixed, "all keys compare", r"leaf of . blocks at depth 0 .*'<' not supported"),
        (wrong.RanksByLot, "same inputs, same decisions", r"one run: step \d+: evict"),
        (wrong.NamesNoReplica, "names a replica", r"request \d: 3; expected a whole number, 0 to 2"),
        (wrong.MarksReplicas, "only looks at the replicas", r"route sets num_mine of a replica"),
        (wrong.RoutesByLot, "same inputs, same decisions", r"request \d to replica \d; the same again: to \d"),
        (
            wrong.NotStatic,
            "a static routing answers by the request alone",
            r"request \d goes to replica \d in its turn",
        ),
        (
            wrong.LooksAtMore,
            "a static routing answers by the request alone",
            r"request \d goes to replica \d in its turn",
        ),
    ],
)
def test_a_wrong_policy_of_any_kind_is_named_with_its_step(policy, rule, what):
    fault = fault_of(policy)
    assert fault.rule == rule, fault
    assert re.search(what, fault.what), fault.what


def test_a_fault_comes_with_the_shortest_operations_that_show_it():
    fault = fault_of(wrong.Raises)
    assert str(fault).splitlines() == [
        f"raises nothing: {fault.what}",
        "    pool.num_blocks=1, pool.free_order=unhashed_first, seed=0",
        "    1. a request asks for text 0, 1 block: adopts what is cached, takes the rest",
        "    2. a readmitted request asks for text 0, 1 block: adopts what is cached, takes the rest",
    ]
    assert fault.what.startswith("operation 2: on_hit for block 0 raised LookupError: never seen it (")


def test_a_loop_inside_one_call_shows_in_cpu_time():
    with pytest.raises(PolicyFault, match=r"CPU time per block in a pool of 64 blocks, .* or more in one of 8,192"):
        times_stay_bounded(subject_of(wrong.ScansInC), 64, 8192)


def test_a_policy_may_say_that_it_scans():
    class Says(wrong.ScansInPython):
        scans_candidates = True

    told = {finding.name: finding.not_checked for finding in findings(subject_of(Says, QUICK))}
    assert told["its cost per block does not grow with the pool"] == "it says that it scans its candidates"


# ---- what ships, and what is new --------------------------------------------------------------------------------

SHIPPED = [pytest.param(each, id=f"{each.kind}-{each.name}") for kind in KINDS.values() for each in catalogue(kind)]


@pytest.mark.parametrize("shipped", SHIPPED)
def test_every_policy_that_ships_keeps_its_promises(shipped):
    if any("${" in str(value) for value in shipped.parameters.values()):  # what comes from other config groups
        factory, kind = bind_target(shipped.name, [], shipped.kind)
        subject = Subject(kind, factory, QUICK)
    else:
        subject = subject_of(find_class(shipped.policy, shipped.kind), QUICK, **shipped.parameters)
    assert [finding.fault for finding in findings(subject)] == [None] * len(checks_of(subject))


def test_new_policies_pass_their_own_tests_outside_of_the_repository(tmp_path):
    """All of them decide what they are for; that one of them keeps its promises is enough here, the rest is below."""
    for kind in KINDS.values():
        write_draft(draft_policy(f"own_{kind.name}", kind), tmp_path)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not promises or queue"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
    assert f"{len(KINDS) + 2} passed" in finished.stdout


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_new_policy_keeps_its_promises(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    draft = draft_policy(f"own_{kind.name}", kind)
    write_draft(draft, tmp_path)
    subject = subject_of(find_class(draft.target, kind.group), QUICK)
    sys.modules.pop(draft.module)
    assert subject.kind is kind
    assert [finding.fault for finding in findings(subject)] == [None] * len(checks_of(subject))


def test_a_new_policy_is_told_with_its_next_steps(kvtwin):
    finished = kvtwin("policy", "new", "DepthFirst", "--kind", "eviction", "--dir", "mine")
    assert finished.status == 0
    assert finished.out.splitlines() == [
        "mine/depth_first.py",
        "mine/test_depth_first.py",
        "",
        "in YAML: eviction: {_target_: depth_first.DepthFirst}",
        "",
        "cd mine",
        "kvtwin policy check depth_first.DepthFirst",
        "python -m pytest test_depth_first.py",
        "kvtwin sim eviction._target_=depth_first.DepthFirst",
    ]
    assert sorted(path.name for path in Path("mine").iterdir()) == ["depth_first.py", "test_depth_first.py"]
    assert "eviction: {_target_: depth_first.DepthFirst}" in Path("mine/depth_first.py").read_text()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("random", "policy new random: there is a module random already; expected another name"),
        ("lambda", "policy new lambda: a word of Python's own; expected a name such as my_policy"),
        ("my-policy", "policy new my-policy: no Python identifier; expected a name such as my_policy"),
        ("BlockKey", "policy new BlockKey: BlockKey is a name of kvtwin's or Python's own; expected a name such as"),
    ],
)
def test_a_name_that_cannot_be_is_refused(kvtwin, name, line):
    assert refusals(kvtwin)("policy", "new", name, "--kind", "queue").startswith(line)


def test_nothing_is_overwritten_and_nothing_half_written(kvtwin):
    Path("test_mine.py").write_text("kept")
    line = refusals(kvtwin)("policy", "new", "mine", "--kind", "queue")
    assert line == "test_mine.py exists already; expected another name, or another folder (--dir)"
    assert Path("test_mine.py").read_text() == "kept"


# ---- the command ------------------------------------------------------------------------------------------------


def test_a_check_tells_each_promise(kvtwin):
    finished = kvtwin("policy", "check", "clock", "bits=2", "--fast")
    assert (finished.status, finished.errors) == (0, [])
    assert finished.out.splitlines() == [
        "eviction policy policies.eviction.clock.Clock",
        "  ok     gives up evictable blocks only, each once, all in the end; same seed, same victims",
        "  ok     the same under pool.leaf_first",
        "  ok     its cost per block does not grow with the pool",
        "  ok     spans decide as single steps do",
    ]


def test_a_file_is_checked_and_its_fault_told(kvtwin):
    Path("stingy.py").write_text(STINGY)
    finished = kvtwin("policy", "check", "stingy.py:Stingy", "--fast")
    sys.modules.pop("stingy")
    assert finished.status == 1
    assert finished.out.splitlines() == [
        "allocation policy stingy.Stingy",
        "  FAILS  enough blocks for the tokens",
        *finished.out.splitlines()[2:5],
        "  -      spans decide as single steps do (not reached)",
    ]
    assert re.search(r"step 0: request 0: 1 blocks for \d tokens, of . tokens each; expected at least 2", finished.out)


STINGY = """
from kvtwin import AllocationPolicy

class Stingy(AllocationPolicy):
    def target_blocks(self, request, num_tokens):
        return 1
"""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["lruu"], "policy check lruu: no policy of this name; did you mean lru"),
        (["priority", "--kind", "eviction"], "policy check priority: no policy of this name; expected one of"),
        (["lru", "depth=3"], "eviction.depth: LRU has no such parameter; it takes none"),
        (["lru", "depth"], "policy check: cannot read 'depth'; expected key=value, a parameter of the policy"),
        (["os.py:Mine"], "policy check os.py: os is the name of another module; expected another name for the file"),
        (["nothing.py:Mine"], "policy check nothing.py: no such Python file; expected file.py:MyClass"),
        (["nothing_like_it.Mine"], "policy._target_=nothing_like_it.Mine: no module nothing_like_it in the working"),
        (
            ["core.request.Request"],
            "Request is no policy; expected a class derived from one of kvtwin's EvictionPolicy,",
        ),
    ],
)
def test_a_target_that_is_none_is_refused(kvtwin, words, line):
    Path("os.py").touch()
    assert refusals(kvtwin)("policy", "check", *words).startswith(line)


def test_the_list_tells_what_can_be_chosen(kvtwin):
    finished = kvtwin("policy", "list", "--json")
    by_use = {policy["use"]: policy for policy in json.loads(finished.out)}
    assert by_use["eviction=clock"] == {
        "kind": "eviction",
        "name": "clock",
        "use": "eviction=clock",
        "policy": "policies.eviction.clock.Clock",
        "parameters": {"bits": 1},
        "clairvoyant": False,
        "summary": "A ring in order of registration.",
        "source": "Corbató, A paging experiment with the Multics system, 1968; with 1 bit",
        "origin": "kvtwin",
    }
    assert by_use["admission=greedy"]["parameters"]["full_prompt"] is False  # the file's; the class says true
    assert by_use["eviction=radix/slru pool.prefix_index=radix"]["parameters"] == {"protected_hits": 2}
    assert not any("own" in policy["name"] for policy in by_use.values())
    shipped = [policy for policy in by_use.values() if policy["origin"] == "kvtwin"]
    assert not [policy["use"] for policy in shipped if not policy["source"]], "every option says where it is from"
    of_one_class = [by_use[f"admission={name}"]["source"] for name in ("greedy", "vllm_v0", "reservation")]
    assert len(set(of_one_class)) == 3, "each option its own"


def test_the_list_is_a_table_of_one_kind_where_asked_for(kvtwin):
    lines = kvtwin("policy", "list", "--kind", "preemption").out.splitlines()
    assert lines[0].startswith("preemption, such as preemption=")
    assert any(line.startswith(" swap ") and "mode=swap" in line for line in lines)
