"""Block keys of tokens are made once for all runs that share a trace, and are those that a run alone would make."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from world import trace_of

import kvtwin
import traces.key_book as key_book
from core.interfaces import BlockKey
from traces.key_book import KeyBook
from traces.replay import ReplayConfig, TraceSource
from traces.schema import Trace
from traces.transforms import limit

PROMPTS = trace_of([0, 1, 2], [40, 40, 24], [8, 8, 8], segments=[[(0, 40)], [(0, 32), (90, 8)], [(7, 24)]])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The block size of every chain that is made."""
    if not str(key_book.__file__).endswith(".py"):
        pytest.skip("machine code calls the function that it was compiled with")
    sizes: list[int] = []
    make = key_book.key_chain

    def counted(tokens: bytes, block_size: int, salt: int) -> bytes:
        sizes.append(block_size)
        return make(tokens, block_size, salt)

    monkeypatch.setattr(key_book, "key_chain", counted)
    return sizes


def keys_of(trace: Trace, block_size: int = 16) -> list[list[BlockKey]]:
    source = TraceSource(trace, ReplayConfig(block_size))
    return [source.block_keys(row).keys(0, 3) for row in range(trace.num_requests)]


def test_keys_are_made_once_for_each_block_size(made: list[int]) -> None:
    trace = replace(PROMPTS, key_book=KeyBook())
    first = keys_of(trace)
    assert keys_of(trace) == first
    assert keys_of(limit(trace, 2)) == first[:2], "of a part, too"
    keys_of(trace, block_size=8)
    assert made == [16] * 3 + [8] * 3
    assert first == keys_of(PROMPTS), "as a run alone makes them"
    assert made[6:] == [16] * 3


def test_runs_from_python_share_a_trace_with_a_book(made: list[int]) -> None:
    """As docs/sweeps.md has it."""
    policies = ("lru", "fifo", "random")
    shared = replace(PROMPTS, key_book=KeyBook())
    runs = [kvtwin.simulate(shared, eviction=name, pool={"num_blocks": 9}) for name in policies]
    assert made == [16] * 3
    alone = [kvtwin.simulate(PROMPTS, eviction=name, pool={"num_blocks": 9}) for name in policies]
    assert made == [16] * (3 + 3 * 3)
    assert [run.summary["decisions"] for run in runs] == [run.summary["decisions"] for run in alone]


def test_a_request_that_never_runs_has_no_keys_made(made: list[int]) -> None:
    request = TraceSource(replace(PROMPTS, key_book=KeyBook()), ReplayConfig(16)).request(0, 0)
    assert (request.keys.num_shared, made) == (2, [])
    assert len(request.keys.keys(0, 3)) == 3
    assert made == [16]


def test_tenants_have_keys_of_their_own() -> None:
    trace = replace(PROMPTS.take([0, 0]), hash_salt=np.array([1, 2]), key_book=KeyBook())
    one, other = keys_of(trace)
    assert not {*one[:2]} & {*other[:2]}


def test_a_full_book_takes_no_more(made: list[int]) -> None:
    """Room for the first chain only: two keys of 16 bytes, under the 16 bytes of its segment."""
    trace = replace(PROMPTS, key_book=KeyBook(most_bytes=48))
    assert keys_of(trace) == keys_of(trace)
    assert len(made) == 3 + 2


def test_a_book_travels_empty(made: list[int]) -> None:
    trace = replace(PROMPTS, key_book=KeyBook())
    first = keys_of(trace)
    sent = pickle.loads(pickle.dumps(trace))
    assert keys_of(sent) == first
    assert len(made) == 6
