"""Block tables over a radix tree: the life cycle of a request's KV as SGLang 0.5.23's scheduler runs it."""

from __future__ import annotations

from collections.abc import Iterable

from core.block_pool import BlockPool
from core.block_tables import BlockTables
from core.decision_log import DecisionLog
from core.errors import InputError
from core.interfaces import AllocationPolicy, Block, BlockKey, LeafRanking
from core.kv_group import KVGroup
from core.plan import StepPlan
from core.prefix_hit import PrefixHit
from core.radix_tree import RadixNode
from core.request import Request, Sequence
from core.swap import HostPool, SwappedKV
from core.swapping import Swapping
from core.whole_leaves import WholeLeaves


class RadixTables(BlockTables):
    """What differs from the hash index: look-ups touch and split the tree, the path that a sequence has in the tree is
    locked, and content is kept only once. It goes with `core.publication.OnceComputed`.

    Invariants: the blocks of a table that are in the tree (its first `num_registered`) are whole nodes, from the root
    to the node that the sequence locks; so a node's locks are the references of each of its blocks. `pool.index` names
    the same blocks by their keys and serves look-ups that must change nothing.
    """

    serves_searches = False

    def __init__(
        self,
        pool: BlockPool,
        leaves: WholeLeaves,
        ranking: LeafRanking,
        allocation: AllocationPolicy,
        groups: tuple[KVGroup, ...],
        block_size: int,
        log: DecisionLog,
        prefix_caching: bool = True,
        max_batch_tokens: int = 1 << 62,
    ) -> None:
        """Raises InputError for KV that one tree cannot hold."""
        if len(groups) > 1 or groups[0].window_tokens is not None:
            raise InputError(
                "pool.prefix_index=radix: the tree holds one KV group of full attention, the model has "
                f"{len(groups)} group{'s' if len(groups) > 1 else ' with a sliding window'}; expected hash"
            )
        host = HostPool(0)
        super().__init__(pool, leaves, allocation, groups, block_size, log, host, prefix_caching, max_batch_tokens)
        self.swapping = _NoSwapping(pool, host, groups, block_size, log, prefix_caching)
        self.ignores_repeated_look_ups = ranking.ignores_repetition
        self.tree = leaves.tree
        self._locked: dict[Sequence, RadixNode[Block]] = {}
        self._num_counted: dict[Sequence, int] = {}  # blocks that it published: nodes within have counted it

    def look_up(self, sequence: Sequence) -> PrefixHit:
        """As `find_prefix`, but the tree is touched, and split where the hit ends."""
        keys = sequence.keys.keys(0, (sequence.num_known - 1) // self.block_size)
        hits = self.blocks.index.leading(keys)
        node = self.tree.match(keys).node
        return PrefixHit(len(hits) * self.block_size, [[*hits]], sum(block.ref_count == 0 for block in hits), node)

    def adopt(self, sequence: Sequence, hit: PrefixHit, readmission: bool) -> None:
        super().adopt(sequence, hit, readmission)
        assert hit.node is not None
        self._hold(sequence, hit.node)

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Inserts the full blocks among the first `num_tokens` tokens, which have KV.

        Of content that is there already, the tree's blocks are adopted and the sequence's own are freed: its table
        changes, what it reads does not.
        """
        num_held, num_blocks = sequence.num_registered, num_tokens // self.block_size
        if not num_blocks:
            return
        table, request = sequence.tables[0], sequence.request
        keys = self._held_keys(sequence) + sequence.keys.keys(num_held, num_blocks)
        num_counted = self._num_counted.get(sequence, 0)
        num_found, node = self.tree.insert(keys, table[:num_blocks], -request.priority, num_counted)
        if num_found > num_held:
            self._keep_once(sequence, self.blocks.index.leading(keys[:num_found])[num_held:])
        positions = range(num_found, num_blocks)
        blocks = table[num_found:num_blocks]
        self.blocks.register(blocks, keys[num_found:], request.request_id, positions, category=request.category)
        sequence.num_registered = self._num_counted[sequence] = num_blocks
        self._hold(sequence, node)

    def _keep_once(self, sequence: Sequence, kept: list[Block]) -> None:
        """Puts these blocks, which continue what the sequence holds of the tree, in the place of its own."""
        table, request_id = sequence.tables[0], sequence.request.request_id
        place = slice(sequence.num_registered, sequence.num_registered + len(kept))
        own, table[place] = table[place], kept
        self.blocks.adopt(kept, request_id, readmission=False)
        self.blocks.release(own[::-1], request_id)

    def fork(self, lead: Sequence, sibling: Sequence, num_blocks: int) -> None:
        super().fork(lead, sibling, num_blocks)
        self._num_counted[sibling] = sibling.num_registered
        self._hold(sibling, self.tree.match(self._held_keys(sibling)).node)

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._num_counted.pop(sequence, None)
        node = self._locked.pop(sequence, None)
        if node is not None:
            self.tree.unlock(node)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Proves the invariants above, too."""
        live = list(sequences)
        super().check_integrity(live)
        self.tree.check_integrity()
        cached: set[Block] = set()
        for node in self.tree.nodes():
            cached.update(node.slots)
            for block, key in zip(node.slots, node.pages, strict=True):
                assert (block.key, block.ref_count) == (key, node.num_locks), f"block {block.block_id} and its node"
                assert self.blocks.index.get(key) is block, f"block {block.block_id} is not in the index"
        assert len(cached) == len(self.blocks.index), "the tree and the index hold different blocks"
        assert self._locked.keys() <= set(live), "a sequence that is gone holds a lock"
        for sequence in live:
            held = self._locked.get(sequence, self.tree.root)
            assert held.end_pages == sequence.num_registered
            assert all(block in cached for block in sequence.tables[0][: held.end_pages])
            assert not any(block in cached for block in sequence.tables[0][held.end_pages :])

    def _held_keys(self, sequence: Sequence) -> list[BlockKey]:
        """Of its blocks in the tree. A sample's may be those of the one it was forked from."""
        return [block.key for block in sequence.tables[0][: sequence.num_registered]]

    def _hold(self, sequence: Sequence, node: RadixNode[Block]) -> None:
        """Locks the path to `node` in place of the one that the sequence locked before."""
        self.tree.lock(node)
        before = self._locked.get(sequence)
        if before is not None:
            self.tree.unlock(before)
        self._locked[sequence] = node


class _NoSwapping(Swapping):
    """A swapped block would come back outside of the tree."""

    def swap_out(self, request: Request, plan: StepPlan) -> SwappedKV | None:
        raise InputError(
            "pool.prefix_index=radix: a preempted request's KV cannot be swapped out; expected preemption=recompute"
        )
