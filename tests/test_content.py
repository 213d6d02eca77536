"""Block keys: equal where the KV is equal, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest

from core.content import BlockKeys, ChainKeys, HashKeys, PrivateKeys, TokenKeys, key_chain, private_key
from core.errors import InputError
from core.interfaces import BlockKey


def all_keys(keys: BlockKeys, number: int) -> list[BlockKey]:
    found = [keys.key(index) for index in range(number)]
    assert keys.keys(0, number) == found, "a run of keys is the keys one by one"
    return found


def test_trace_blocks_split_into_pool_blocks() -> None:
    """Blocks of 512 tokens on a pool of 16: 32 keys for each id, shared exactly as far as the ids are."""
    first = HashKeys(0, [7, 8, 9], 512, 16, 1536)
    second = HashKeys(1, [7, 8, 5], 512, 16, 1536)
    ours, theirs = all_keys(first, 96), all_keys(second, 96)
    assert ours[:64] == theirs[:64]
    assert not set(ours[64:]) & set(theirs[64:])
    assert len(set(ours)) == 96


def test_trace_blocks_join_into_larger_pool_blocks() -> None:
    """An id stands for its block and all before it: of 2 x 512 tokens the second id is the key."""
    keys = HashKeys(0, [7, 8, 9, 10, 11], 512, 1024, 2400)
    assert all_keys(keys, 2) == [8, 10]
    assert keys.key(2) == private_key(0, 2), "not wholly inside the prompt"


def test_a_pool_block_that_does_not_fit_the_trace_is_refused() -> None:
    for block_size in (24, 768, 1000):
        with pytest.raises(InputError, match=f"pool.block_size_tokens={block_size} neither divides nor is a multiple"):
            HashKeys(0, [1], 512, block_size, 512)


def test_the_partial_last_block_is_private() -> None:
    """1000 tokens: 62 full blocks of 16; the 63rd holds outputs too."""
    first, second = (HashKeys(owner, [7, 8], 512, 16, 1000) for owner in (0, 1))
    assert first.key(61) == second.key(61)
    assert first.key(62) != second.key(62)


def test_a_salt_keeps_tenants_apart() -> None:
    def hashes(salt: int) -> BlockKeys:
        return HashKeys(0, [7], 16, 16, 16, salt)

    def tokens(salt: int) -> BlockKeys:
        return TokenKeys(0, range(16), 16, 16, salt)

    for keys in (hashes, tokens):
        assert len({keys(salt).key(0) for salt in (0, 1, 2, -1)}) == 4
        assert keys(5).key(0) == keys(5).key(0)


def test_token_keys_are_a_chain() -> None:
    """Equal as long as all tokens so far are; equal blocks after different beginnings differ."""
    first = TokenKeys(0, [1, 2, 3, 4, 5, 6, 9], 2, 7)
    second = TokenKeys(1, [1, 2, 3, 0, 5, 6, 9], 2, 7)
    assert first.key(0) == second.key(0)
    assert first.key(1) != second.key(1)
    assert first.key(2) != second.key(2), "5 6 in both, but not the same KV"
    assert first.key(3) != second.key(3), "beyond the known text"
    assert first.key(3) == private_key(0, 3)


@pytest.mark.parametrize("salt", [0, 7, -1])
def test_a_chain_made_before_is_that_of_the_tokens(salt: int) -> None:
    """23 tokens in blocks of 5: four full blocks; what follows is private."""
    tokens = range(100, 123)
    chained = ChainKeys(3, partial(key_chain, bytes_of(tokens), 5, salt), 4, 2)
    assert all_keys(chained, 7) == all_keys(TokenKeys(3, tokens, 5, 11, salt), 7)
    assert (chained.num_shared, chained.key(4)) == (4, private_key(3, 4))


def bytes_of(tokens: Iterable[int]) -> bytes:
    return np.array([*tokens], dtype="<i8").tobytes()


def test_tokens_are_not_run_together() -> None:
    assert TokenKeys(0, [1, 23], 2, 2).key(0) != TokenKeys(0, [12, 3], 2, 2).key(0)


def test_samples_share_the_prompt_and_nothing_after_it() -> None:
    makers = [
        TokenKeys(0, range(40), 4, 18),
        HashKeys(0, [3, 4, 5], 8, 4, 18),
        ChainKeys(0, partial(key_chain, bytes_of(range(40)), 4), 10, 4),
        PrivateKeys(0),
    ]
    for keys in makers[:3]:
        sample = keys.for_sample(1 << 31)
        assert all_keys(sample, 4) == all_keys(keys, 4)
        assert all(sample.key(index) != keys.key(index) for index in range(4, 10))
    assert makers[3].for_sample(9).key(0) == private_key(9, 0)


def test_private_keys_never_meet() -> None:
    """Owners are requests, and samples of requests; indices go as far as any text."""
    owners = [0, 1, 2, 1 << 20, (1 << 31), (1 << 31) + 1, (5 << 31) + 3]
    indices = [0, 1, 1000, (1 << 32) - 1]
    keys = {private_key(owner, index) for owner in owners for index in indices}
    assert len(keys) == len(owners) * len(indices)
    assert max(keys) < 0, "and never one of a trace's own ids"
    assert all_keys(PrivateKeys(3), 50) == [private_key(3, index) for index in range(50)]
