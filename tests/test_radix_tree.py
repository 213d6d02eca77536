"""The radix tree by itself: splits, touches, locks, whole leaves evicted, and what must hold after any operations."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.candidate_heap import CandidateHeap
from core.interfaces import Block, PolicyEnv
from core.prefix_index import HashIndex
from core.radix_tree import RadixNode, RadixTree, SplitCreated
from kvtwin.parity.radix import RANKINGS
from policies.eviction.radix import RadixLRU, RadixSLRU

ENV = PolicyEnv(lambda: 0, None, 16)


def tree_of(policy: str = "lru", split_created: SplitCreated = SplitCreated.INHERITED) -> RadixTree[Any]:
    return RadixTree(RANKINGS[policy](ENV).rank, split_created)


def insert(tree: RadixTree[Any], text: str, **options: int) -> tuple[int, int]:
    """Inserts a text, a page a letter; slots are the letters with their places."""
    found = tree.insert(list(text), [f"{letter}{place}" for place, letter in enumerate(text)], **options)
    tree.check_integrity()
    return found.num_pages, found.node.node_id


def match(tree: RadixTree[Any], text: str) -> tuple[int, int]:
    found = tree.match(list(text))
    tree.check_integrity()
    return found.num_pages, found.node.node_id


def shape(tree: RadixTree[Any]) -> list[str]:
    """`id:run` of every node but the root, parents first."""
    return [f"{node.node_id}:{''.join(map(str, node.pages))}" for node in tree.nodes()][1:]


def node_of(tree: RadixTree[Any], node_id: int) -> RadixNode[Any]:
    return next(node for node in tree.nodes() if node.node_id == node_id)


def evict(tree: RadixTree[Any], num_pages: int) -> list[str]:
    runs = ["".join(node.pages) for node in tree.evict(num_pages)]
    tree.check_integrity()
    return runs


# ---- shape ----------------------------------------------------------------------------------------------------------


def test_a_text_is_one_leaf_and_a_longer_one_adds_another() -> None:
    tree = tree_of()
    assert insert(tree, "abc") == (0, 1)
    assert insert(tree, "abcde") == (3, 2)
    assert shape(tree) == ["1:abc", "2:de"]
    assert node_of(tree, 2).slots == ["d3", "e4"], "slots of what was there already stay the caller's"
    assert (tree.num_evictable_pages, tree.num_protected_pages) == (5, 0)


def test_where_texts_part_the_node_is_split() -> None:
    """The new node is the upper half; the lower keeps its id, its slots and its children."""
    tree = tree_of()
    insert(tree, "abcd")
    insert(tree, "abcdxy")
    assert insert(tree, "abz") == (2, 4)
    assert shape(tree) == ["3:ab", "1:cd", "2:xy", "4:z"]
    assert node_of(tree, 3).slots + node_of(tree, 1).slots == ["a0", "b1", "c2", "d3"]


def test_a_look_up_splits_too_so_that_a_lock_holds_no_more_than_was_found() -> None:
    tree = tree_of()
    insert(tree, "abcd")
    assert match(tree, "abx") == (2, 2)
    tree.lock(node_of(tree, 2))
    assert (tree.num_evictable_pages, tree.num_protected_pages) == (2, 2)
    assert evict(tree, 4) == ["cd"]


def test_an_empty_text_touches_nothing() -> None:
    tree = tree_of()
    before = tree.root.last_access
    assert match(tree, "") == (0, 0)
    assert tree.root.last_access == before


def test_a_look_up_refreshes_what_it_leaves_in_the_midst_of() -> None:
    """Of `abcd` only `ab` is found, yet the lower half `cd` now outlives `xy`, which was there later."""
    tree = tree_of()
    insert(tree, "abcd")
    insert(tree, "xy")
    match(tree, "abz")
    assert evict(tree, 1) == ["xy"]
    assert evict(tree, 1) == ["cd"]
    assert evict(tree, 1) == ["ab"]


# ---- eviction -------------------------------------------------------------------------------------------------------


def test_whole_leaves_go_and_so_more_than_was_wanted() -> None:
    tree = tree_of()
    insert(tree, "abcd")
    insert(tree, "xyz")
    assert evict(tree, 1) == ["abcd"]
    assert tree.num_evictable_pages == 3


def test_a_parent_is_a_candidate_as_soon_as_its_last_child_is_gone() -> None:
    tree = tree_of()
    insert(tree, "ab")
    insert(tree, "abcd")
    insert(tree, "abxy")
    insert(tree, "q")
    assert evict(tree, 5) == ["cd", "xy", "ab"], "`ab` was passed by `abxy`, before `q` came"
    assert evict(tree, 9) == ["q"]
    assert evict(tree, 1) == []


def test_a_locked_path_stays_and_locks_count() -> None:
    tree = tree_of()
    insert(tree, "ab")
    insert(tree, "abcd")
    leaf = node_of(tree, 2)
    tree.lock(leaf)
    tree.lock(leaf)
    assert evict(tree, 9) == []
    tree.unlock(leaf)
    assert evict(tree, 9) == []
    tree.unlock(leaf)
    assert evict(tree, 9) == ["cd", "ab"]
    with pytest.raises(ValueError, match="node 2 is not locked"):
        tree.unlock(leaf)


def test_a_split_below_a_lock_is_locked_on_both_sides() -> None:
    tree = tree_of()
    insert(tree, "abcd")
    tree.lock(node_of(tree, 1))
    insert(tree, "abx")
    assert [node.num_locks for node in tree.nodes()] == [1, 1, 1, 0]
    tree.unlock(node_of(tree, 1))
    assert tree.num_protected_pages == 0


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        ("lru", ["b", "c", "a"]),
        ("mru", ["a", "c", "b"]),
        ("fifo", ["a", "b", "c"]),
        ("filo", ["c", "b", "a"]),
        ("lfu", ["c", "a", "b"]),
        ("priority", ["b", "a", "c"]),
        ("slru", ["c", "b", "a"]),
    ],
)
def test_each_strategy_has_its_own_first_victim(policy: str, victims: list[str]) -> None:
    """`a` came first, was published twice and looked up last; `b` was published three times; `c` is important."""
    tree = tree_of(policy)
    insert(tree, "a", priority=1)
    insert(tree, "b")
    insert(tree, "c", priority=2)
    for text in ("a", "b", "b"):
        insert(tree, text)
    match(tree, "c")
    match(tree, "a")
    assert ["".join(node.pages) for node in tree.eviction_order()] == victims
    assert [evict(tree, 1) for _ in victims] == [[victim] for victim in victims]


def test_a_request_counts_once_in_each_node_it_published() -> None:
    """It publishes `ab` at its prefill's end and `abcd` at its own: what it counted before it tells by its length."""
    tree = tree_of("lfu")
    insert(tree, "ab")
    insert(tree, "abcd", num_counted_pages=2)
    assert [node.num_hits for node in tree.nodes()] == [0, 1, 1]
    insert(tree, "ab")
    assert [node.num_hits for node in tree.nodes()] == [0, 2, 1]


@pytest.mark.parametrize(
    ("split_created", "victims"), [(SplitCreated.INHERITED, ["cd", "ab", "x"]), (SplitCreated.FRESH, ["cd", "x", "ab"])]
)
def test_the_upper_half_of_a_split_is_as_old_as_the_switch_says(
    split_created: SplitCreated, victims: list[str]
) -> None:
    tree = tree_of("fifo", split_created)
    insert(tree, "abcd")
    insert(tree, "x")
    match(tree, "ab")
    assert evict(tree, 9) == victims


def test_slru_takes_its_threshold() -> None:
    ranking = RadixSLRU(ENV, protected_hits=3)
    tree: RadixTree[Any] = RadixTree(ranking.rank)
    for text in ("a", "a", "a", "b", "b"):
        insert(tree, text)
    match(tree, "b")
    assert evict(tree, 1) == ["b"]


# ---- any operations -------------------------------------------------------------------------------------------------

TEXTS = st.text("ab", min_size=0, max_size=9)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("match"), TEXTS),
        st.tuples(st.just("insert"), TEXTS, st.integers(0, 3)),
        st.tuples(st.just("lock"), TEXTS),
        st.tuples(st.just("unlock"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(0, 6)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(operations=OPERATIONS, policy=st.sampled_from(sorted(RANKINGS)), split_created=st.sampled_from(SplitCreated))
def test_any_operations_agree_with_a_plain_set_of_prefixes(
    operations: list[tuple[Any, ...]], policy: str, split_created: SplitCreated
) -> None:
    """What is there is a set of prefixes; who goes is found by looking at every node."""
    tree = tree_of(policy, split_created)
    present: set[str] = set()
    locked: list[RadixNode[Any]] = []

    def num_present(text: str) -> int:
        return max((n for n in range(1, len(text) + 1) if text[:n] in present), default=0)

    for kind, *arguments in operations:
        if kind == "match":
            assert match(tree, arguments[0])[0] == num_present(arguments[0])
        elif kind == "insert":
            text, priority = arguments
            assert insert(tree, text, priority=priority)[0] == num_present(text)
            present |= {text[:n] for n in range(1, len(text) + 1)}
        elif kind == "lock":
            found = tree.match(list(arguments[0]))
            tree.lock(found.node)
            locked.append(found.node)
        elif kind == "unlock" and locked:
            tree.unlock(locked.pop(arguments[0] % len(locked)))
        elif kind == "evict":
            expected = evict_by_scan(tree, RANKINGS[policy](ENV).rank, arguments[0])
            for node in tree.evict(arguments[0]):
                above = text_of(node.parent)
                present -= {above + "".join(node.pages[: n + 1]) for n in range(node.num_pages)}
                assert expected.pop(0) is node
            assert not expected
        tree.check_integrity()
        assert tree.num_evictable_pages + tree.num_protected_pages == len(present)
    assert {text_of(node)[:n] for node in tree.nodes() for n in range(1, node.end_pages + 1)} == present


def text_of(node: RadixNode[Any] | None) -> str:
    return "" if node is None else text_of(node.parent) + "".join(node.pages)


def evict_by_scan(tree: RadixTree[Any], rank: Any, num_pages: int) -> list[RadixNode[Any]]:
    """The rule, read off the whole tree: the least leaf that nobody locks, again and again."""
    gone: list[RadixNode[Any]] = []
    while num_pages > 0:
        left = [n for n in tree.nodes() if n not in gone and not n.num_locks]
        leaves = [n for n in left if all(child in gone for child in n.children.values())]
        if not leaves:
            break
        gone.append(min(leaves, key=rank))
        num_pages -= gone[-1].num_pages
    return gone


@settings(max_examples=100, deadline=None, derandomize=True)
@given(texts=st.lists(st.tuples(TEXTS, st.booleans()), max_size=25), policy=st.sampled_from(sorted(RANKINGS)))
def test_the_order_told_is_the_order_in_which_they_go(texts: list[tuple[str, bool]], policy: str) -> None:
    tree = tree_of(policy)
    for text, is_inserted in texts:
        (insert if is_inserted else match)(tree, text)
    order = tree.eviction_order()
    assert tree.evict(1 << 30) == order
    assert tree.num_evictable_pages == 0


# ---- the two forms of the prefix index, where they agree ------------------------------------------------------------


@settings(max_examples=100, deadline=None, derandomize=True)
@given(texts=st.lists(TEXTS, max_size=30))
def test_without_evictions_both_forms_find_the_same(texts: list[str]) -> None:
    tree, index = tree_of(), HashIndex()
    for text in texts:
        keys = [text[: n + 1] for n in range(len(text))]
        found = index.leading(keys)
        assert tree.match(keys).num_pages == len(found)
        missing = [Block(0) for _ in keys[len(found) :]]
        tree.insert(keys, [*found, *missing])
        index.insert(missing, keys[len(found) :])
        assert len(index) == tree.num_evictable_pages


@settings(max_examples=100, deadline=None, derandomize=True)
@given(texts=st.lists(st.text("ab", min_size=1, max_size=6), max_size=40), capacity=st.integers(6, 12))
def test_with_nodes_of_one_page_it_is_block_lru_touched_tail_to_head(texts: list[str], capacity: int) -> None:
    """One request at a time, every page a node of its own: then no leaf is longer than what is wanted.

    With longer nodes the forms part: a whole leaf goes where block LRU would take its last block only.
    """
    tree = tree_of()
    blocks: OrderedDict[str, None] = OrderedDict()  # block LRU: first to go first
    for text in texts:
        keys = [text[: n + 1] for n in range(len(text))]
        found = tree.match(keys)
        hits = [key for key in keys if key in blocks]
        assert found.num_pages == len(hits)
        tree.lock(found.node)
        for key in hits:
            del blocks[key]
        num_short = len(blocks) + len(keys) - capacity
        evicted = [node.pages[0] for node in tree.evict(num_short)]
        assert evicted == [blocks.popitem(last=False)[0] for _ in range(max(num_short, 0))]
        for n in range(1, len(keys) + 1):
            tree.insert(keys[:n], keys[:n])
        tree.unlock(found.node)
        blocks.update(dict.fromkeys(reversed(keys)))


def test_a_whole_leaf_goes_where_block_lru_takes_one_block() -> None:
    tree = tree_of()
    insert(tree, "abcdef")
    assert len(tree.evict(1)[0].pages) == 6


# ---- cost -----------------------------------------------------------------------------------------------------------


def test_candidates_keep_their_latest_rank_only() -> None:
    heap: CandidateHeap[str] = CandidateHeap()
    for round_ in range(200):
        for item in "abc":
            heap.put(item, -round_)
    heap.put("b", 1)
    heap.discard("c")
    assert ("c" in heap, len(heap), [item for _, _, item in heap.ranked()]) == (False, 2, ["a", "b"])
    assert [heap.pop(), heap.pop()] == ["a", "b"]
    with pytest.raises(IndexError):
        heap.pop()


def test_an_eviction_among_many_leaves_costs_little_more_than_among_few() -> None:
    """CPU time of 500 evictions and insertions among 1,000 leaves and among 32,000."""
    few, many = (min(churn_s(num_leaves) for _ in range(3)) for num_leaves in (1_000, 32_000))
    assert many < 6 * few


def churn_s(num_leaves: int) -> float:
    draw = random.Random(1)
    tree: RadixTree[int] = RadixTree(RadixLRU(ENV).rank)
    for text in range(num_leaves):
        tree.insert([text % 100, text], [0, 0])
    start_s = time.process_time()
    for text in range(num_leaves, num_leaves + 500):
        tree.evict(1)
        tree.insert([text % 100, text], [0, 0])
        last = num_leaves // 2 + draw.randrange(num_leaves // 2)
        tree.match([last % 100, last])
    return time.process_time() - start_s
