"""Token ids from block hashes and from segments of a text."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from traces.schema import Ragged, Trace
from traces.tokens import HashTokens, segment_tokens
from traces.transforms import limit


def hashed(rows: list[list[int]], block: int = 4, last_tokens: int = 4) -> Trace:
    lengths = np.array([(len(ids) - 1) * block + last_tokens for ids in rows])
    n = len(rows)
    ragged = Ragged.of_ids(rows)
    return Trace("t", np.arange(n), lengths, np.ones(n, dtype=int), hash_block_tokens=block, hash_ids=ragged)


@st.composite
def trees(draw) -> list[list[int]]:
    """Prompts over a random tree of chained ids; the ids are arbitrary numbers."""
    names = draw(st.lists(st.integers(0, 2**62), min_size=1, max_size=40, unique=True))
    paths: list[list[int]] = []
    for name in names:
        base = draw(st.sampled_from([[], *paths]))
        paths.append([*base, name])
    return draw(st.lists(st.sampled_from(paths), min_size=1, max_size=30))


@given(rows=trees(), block=st.integers(3, 9), vocab_size=st.integers(40, 300))
def test_same_id_same_tokens_and_siblings_differ_at_once(rows, block, vocab_size):
    tokens = HashTokens(hashed(rows, block, last_tokens=block), vocab_size, first_id=0)
    block_of: dict[int, tuple[int, ...]] = {}
    siblings: dict[int | None, set[int]] = {}
    for row, ids in enumerate(rows):
        prompt = tokens.prompt_tokens(row)
        assert prompt.dtype == np.int64
        assert len(prompt) == len(ids) * block
        assert ((prompt >= 0) & (prompt < vocab_size)).all()
        for parent, block_id, content in zip([None, *ids], ids, prompt.reshape(-1, block).tolist(), strict=False):
            assert block_of.setdefault(block_id, tuple(content)) == tuple(content)
            siblings.setdefault(parent, set()).add(block_id)
    assert len(set(block_of.values())) == len(block_of)
    for children in siblings.values():
        assert len({block_of[child][0] for child in children}) == len(children)


def test_prompts_share_exactly_the_tokens_of_their_shared_blocks():
    rows = [[0, 1, 2], [0, 1, 3], [0, 4], [5, 6]]
    tokens = HashTokens(hashed(rows, block=16, last_tokens=7), vocab_size=100)
    prompts = [tokens.prompt_tokens(row) for row in range(4)]
    for (a, b), shared_blocks in zip(combinations(range(4), 2), [2, 1, 0, 1, 0, 0], strict=True):
        common = min(len(prompts[a]), len(prompts[b]))
        differs = prompts[a][:common] != prompts[b][:common]
        assert int(np.argmax(differs)) == shared_blocks * 16


def test_a_partial_block_is_the_start_of_the_full_one():
    full = HashTokens(hashed([[7, 8]], block=16, last_tokens=16), 50).prompt_tokens(0)
    partial = HashTokens(hashed([[7, 8]], block=16, last_tokens=3), 50).prompt_tokens(0)
    assert partial.tolist() == full[:19].tolist()


def test_a_limited_trace_has_the_tokens_of_the_whole_one():
    trace = hashed([[5, 9], [5, 7], [2], [5, 1], [3, 4]])
    whole, start = HashTokens(trace, 6, first_id=1), HashTokens(limit(trace, 2), 6, first_id=1)
    for row in range(2):
        assert whole.prompt_tokens(row).tolist() == start.prompt_tokens(row).tolist()


def test_first_id_keeps_special_tokens_out():
    tokens = HashTokens(hashed([[0, 1], [0, 2], [3]], block=8), vocab_size=20, first_id=17)
    assert {int(token) for row in range(3) for token in tokens.prompt_tokens(row)} <= {17, 18, 19}


def test_a_vocabulary_smaller_than_the_fan_out_is_refused():
    trace = hashed([[0, child] for child in range(1, 8)])
    HashTokens(trace, vocab_size=7)
    with pytest.raises(
        InputError, match="7 different blocks follow the same prefix; expected a vocabulary of at least 7"
    ):
        HashTokens(trace, vocab_size=6)
    with pytest.raises(InputError, match="this one has 6"):
        HashTokens(trace, vocab_size=16, first_id=10)
    with pytest.raises(InputError, match="at least 2"):
        HashTokens(hashed([[0]]), vocab_size=1)


def test_ids_that_are_no_chain_are_refused():
    with pytest.raises(InputError, match="hash id 9 follows two different ids"):
        HashTokens(hashed([[1, 9], [2, 9]]), 50)
    with pytest.raises(InputError, match="hash id 1 follows two different ids"):
        HashTokens(hashed([[1, 1]]), 50)


def test_a_trace_without_hashes_is_refused():
    with pytest.raises(InputError, match="has no hash ids"):
        HashTokens(Trace("t", np.array([0]), np.array([1]), np.array([1])), 50)


def test_segments_of_a_text():
    text = np.arange(1000, 1100)
    assert segment_tokens(text, np.array([[5, 3], [0, 2], [97, 3]])).tolist() == [
        *(1005, 1006, 1007),
        *(1000, 1001),
        *(1097, 1098, 1099),
    ]


def test_a_segment_beyond_the_text_is_refused():
    with pytest.raises(InputError, match=r"segment \[98, 3\] ends beyond the text of 100 tokens"):
        segment_tokens(np.arange(100), np.array([[0, 5], [98, 3]]))
