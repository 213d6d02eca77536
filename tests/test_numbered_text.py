"""Contents by number: what a text shares with an earlier one is a piece of it, and equal numbers mean equal keys."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.content import BlockKeys, ChainKeys, HashKeys, TokenKeys, key_chain
from core.numbered_text import NO_TEXT, ContentNumbers, NumberedText
from core.run_index import RunIndex


def numbers_of(text: NumberedText) -> list[int]:
    pieces = text.pieces(0, text.num_numbered)
    numbers = [place + shift for begin, end, shift in pieces for place in range(begin, end)]
    assert numbers == [text.number(place) for place in range(text.num_numbered)]
    return numbers


def test_a_turn_is_the_turn_before_it_and_one_piece_more() -> None:
    """Trace blocks of 32 tokens on a pool of 16, two pool blocks each. The other text parts from it in its second."""
    numbers = ContentNumbers()
    first = numbers.text(HashKeys(0, [70, 31, 50], 32, 16, 90))
    assert (first.bounds, first.shifts) == ([0, 5], [0]), "90 tokens: five whole blocks"
    other = numbers.text(HashKeys(1, [70, 99], 32, 16, 64))
    assert other.pieces(0, 4) == [(0, 2, 0), (2, 4, 4)], "6 and 7: the partial block has its number, too"
    longer = numbers.text(HashKeys(2, [70, 31, 50, 12], 32, 16, 128))
    assert longer.pieces(1, 8) == [(1, 6, 0), (6, 8, 2)]
    assert longer.pieces(7, 8) == [(7, 8, 2)]
    assert (longer.pieces(3, 3), NO_TEXT.pieces(0, 0)) == ([], [])


def test_its_own_text_gets_numbers_when_it_stops() -> None:
    numbers = ContentNumbers()
    text = numbers.text(HashKeys(0, [5], 16, 16, 16))
    numbers.extend(text, 3)
    numbers.text(HashKeys(1, [6], 16, 16, 16))
    numbers.extend(text, 5)
    numbers.extend(text, 4)
    assert numbers_of(text) == [0, 1, 2, 4, 5]
    assert (text.num_shared, text.num_numbered, numbers.num_numbers) == (1, 5, 6)


def test_a_look_from_outside_leaves_nothing_behind() -> None:
    index = RunIndex()
    text = index.text(HashKeys(0, [1, 2], 32, 16, 64))
    index.insert(text, 0, 3, array("q", [8, 9, 7]))
    for hash_ids, num_blocks, num_leading in (([1, 2, 3], 6, 3), ([1, 3], 4, 2), ([1, 2], 1, 1), ([4], 2, 0)):
        assert index.num_leading(HashKeys(1, hash_ids, 32, 16, len(hash_ids) * 32), num_blocks) == num_leading
    assert index.numbers.num_numbers == 4


def test_losses_are_told_by_the_order_of_evictions() -> None:
    """Two tables hold the first two of five contents. The older one is evicted from its leaf on, in three goes."""
    index = RunIndex()
    text = index.text(HashKeys(0, [1, 2, 3, 4, 5], 16, 16, 80))
    older, younger = array("q", range(10, 15)), array("q", [20, 21])
    index.insert(text, 0, 5, older)
    index.insert(text, 0, 2, younger)
    index.forget(text, 4, 5, older)
    index.forget(text, 2, 4, older)
    assert (index.losses(text, 2, 5), index.losses(text, 0, 5)) == ([2, 1, 0], []), "what is held is not lost"
    index.forget(text, 0, 2, older)
    assert index.leading(text, 5).tolist() == [20, 21], "the younger ones serve from now on"
    index.forget(text, 0, 2, younger)
    other = index.text(HashKeys(1, [1, 2, 9], 16, 16, 48))
    assert index.losses(other, 0, 3) == [6, 5], "the last time counts; 9 never was there"


Make = Callable[[list[int], int, int], BlockKeys]
IDS = st.lists(st.integers(1, 2), min_size=0, max_size=5)


def hashed(tokens: list[int], salt: int, pool_block: int) -> BlockKeys:
    """An id for every block of 4 tokens and all before it; tokens come in fours."""
    chain = [int("".join(map(str, tokens[: n + 1]))) for n in range(len(tokens))]
    return HashKeys(0, chain, 4, pool_block, len(chain) * 4, salt)


def chained(tokens: list[int], salt: int, pool_block: int) -> BlockKeys:
    text = b"".join(token.to_bytes(8, "little") for token in tokens)
    return ChainKeys(0, lambda: key_chain(text, 1, salt), len(tokens), 0)


def from_tokens(tokens: list[int], salt: int, pool_block: int) -> BlockKeys:
    return TokenKeys(0, tokens, 2, 0, salt)


FORMS = [(hashed, 2), (hashed, 4), (hashed, 8), (chained, 1), (from_tokens, 2)]


@pytest.mark.parametrize(("make", "pool_block"), FORMS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(texts=st.lists(st.tuples(IDS, st.integers(0, 1)), min_size=1, max_size=6))
def test_equal_numbers_are_equal_keys(make: Make, pool_block: int, texts: list[tuple[list[int], int]]) -> None:
    numbers = ContentNumbers()
    all_keys = [make(tokens, salt, pool_block) for tokens, salt in texts]
    pairs = {
        pair
        for keys in all_keys
        for pair in zip(keys.keys(0, keys.num_shared), numbers_of(numbers.text(keys)), strict=True)
    }
    assert len(pairs) == len({key for key, _ in pairs}) == len({number for _, number in pairs})
    assert all(0 <= number < numbers.num_numbers for _, number in pairs)
