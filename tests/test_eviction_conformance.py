"""What every eviction policy owes its pool, whichever it is: random lives of tables, checked after every move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from eviction_policies import shipped
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from omegaconf import OmegaConf
from shapes import CONF, bundled

from core.block_pool import BlockPool, FreeOrder
from core.decision_log import DecisionLog
from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv
from core.prefix_index import HashIndex

FAMILIES = 3
LONGEST = 5


class Prophecy:
    """A future that stays as it is: some content is never asked for again."""

    def next_use(self, key: BlockKey) -> int | None:
        family, depth = key  # type: ignore[misc]
        return None if family == 0 else 10 * family + depth


def pool_of(num_blocks: int, policy: type[EvictionPolicy], free_order: FreeOrder) -> BlockPool:
    future = Prophecy() if policy.clairvoyant else None
    env = PolicyEnv(now=lambda: 0, num_blocks=num_blocks, block_size_tokens=4, seed=7, future=future)
    return BlockPool(num_blocks, policy(env), DecisionLog(), HashIndex(), free_order)


class Lives(RuleBasedStateMachine):
    """Requests come with a known text, adopt what is cached of it, take the rest, publish it, and go.

    Two pools live the same lives: what the second decides differently is no function of seed and history.
    """

    def __init__(self, policy: type[EvictionPolicy]) -> None:
        super().__init__()
        self.policy = policy

    @initialize(num_blocks=st.integers(1, 14), free_order=st.sampled_from(list(FreeOrder)))
    def build(self, num_blocks: int, free_order: FreeOrder) -> None:
        self.pools = [pool_of(num_blocks, self.policy, free_order) for _ in range(2)]
        self.tables: list[list[int]] = []  # block ids

    @property
    def pool(self) -> BlockPool:
        return self.pools[0]

    def blocks(self, ids: list[int]) -> Iterator[tuple[BlockPool, list[Block]]]:
        for pool in self.pools:
            yield pool, [pool.block(block_id) for block_id in ids]

    def taken(self, number: int, incoming: list[Any]) -> list[int]:
        """Takes from both pools, and sees that no referenced block is handed out, none twice, and both are agreed."""
        held = {block_id for table in self.tables for block_id in table}
        ids = [[block.block_id for block in pool.take(number, 0, incoming)] for pool in self.pools]
        assert ids[0] == ids[1], "the same history, and other victims"
        assert len(set(ids[0])) == number, "a block was handed out twice"
        assert not held & set(ids[0]), "a referenced block was evicted"
        return ids[0]

    @rule(number=st.integers(1, 4))
    def decode(self, number: int) -> None:
        number = min(number, self.pool.num_available)
        if number:
            foreseen = self.pool.free_queue()[:number]
            self.tables.append(self.taken(number, []))
            assert self.tables[-1] == foreseen, "eviction_order tells another order"

    @rule(family=st.integers(0, FAMILIES - 1), length=st.integers(1, LONGEST), readmission=st.booleans())
    def prefill(self, family: int, length: int, readmission: bool) -> None:
        keys = [(family, depth) for depth in range(length)]
        hits = [block.block_id for block in self.pool.index.leading(keys)]
        missing = keys[len(hits) :]
        num_idle = sum(self.pool.block(block_id).ref_count == 0 for block_id in hits)
        if len(missing) + num_idle > self.pool.num_available or not keys:
            return
        if hits:
            for pool, blocks in self.blocks(hits):
                pool.adopt(blocks, 0, readmission)
            self.tables.append(hits)
        fresh = self.taken(len(missing), missing) if missing else []
        if fresh:
            for pool, blocks in self.blocks(fresh):
                pool.register(blocks, missing, 0, range(len(hits), length), category=family)
            self.tables.append(fresh)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), family=st.integers(0, FAMILIES - 1))
    def publish(self, data: st.DataObject, family: int) -> None:
        """Content that may be resident already: equal keys in several blocks."""
        table = data.draw(st.sampled_from(self.tables))
        places = [place for place, block_id in enumerate(table) if self.pool.block(block_id).key is None]
        if places:
            for pool, blocks in self.blocks([table[place] for place in places]):
                pool.register(blocks, [(family, place) for place in places], 0, places, family)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        """A prefill was cancelled within its step."""
        for block_id in data.draw(st.sampled_from(self.tables)):
            if self.pool.block(block_id).key is not None and self.pool.block(block_id).ref_count == 1:
                for pool, (block,) in self.blocks([block_id]):
                    pool.unregister(block)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        for pool, blocks in self.blocks(table):
            pool.release(blocks[::-1], 0)

    @invariant()
    def nothing_is_lost(self) -> None:
        for pool, tables in ((pool, self.tables) for pool in getattr(self, "pools", ())):
            pool.check_integrity([[pool.block(block_id) for block_id in table] for table in tables])

    def teardown(self) -> None:
        """In the end everybody goes, and every block comes out exactly once."""
        for table in getattr(self, "tables", ()):
            for pool, blocks in self.blocks(table):
                pool.release(blocks[::-1], 0)
        self.tables = []
        if hasattr(self, "pools"):
            assert self.pool.num_blocks is not None
            assert sorted(self.taken(self.pool.num_blocks, [])) == list(range(self.pool.num_blocks))


@pytest.mark.parametrize("policy", shipped())
def test_every_policy_keeps_its_promises(policy: type[EvictionPolicy]) -> None:
    run_state_machine_as_test(
        lambda: Lives(policy),
        settings=settings(max_examples=20, stateful_step_count=30, deadline=None, derandomize=True),
    )


@pytest.mark.parametrize("policy", shipped())
def test_every_policy_lives_in_an_unbounded_pool(policy: type[EvictionPolicy]) -> None:
    """Nothing is ever evicted, and shares of the capacity are shares of nothing."""
    env = PolicyEnv(now=lambda: 0, num_blocks=None, block_size_tokens=4, future=Prophecy())
    pool = BlockPool(None, policy(env), DecisionLog(), HashIndex())
    blocks = pool.take(3, 0)
    pool.register(blocks, [(1, 0), (1, 1), (1, 2)], 0)
    pool.release(blocks[::-1], 0)
    pool.adopt(blocks[:2], 1, readmission=False)
    pool.check_integrity([blocks[:2]])
    pool.release(blocks[1::-1], 1)
    assert sorted(block.block_id for block in pool._eviction.eviction_order()) == [0, 1, 2]


def test_every_policy_can_be_chosen_by_name() -> None:
    files = [OmegaConf.load(CONF / "eviction" / f"{name}.yaml") for name in bundled("eviction") if name != "own"]
    assert {file["_target_"] for file in files} >= {
        f"{policy.__module__}.{policy.__qualname__}" for policy in shipped()
    }
