"""SWAP: what a preempted request's block tables leave on the host, and how they come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from core.block_pool import BlockPool
from core.decision_log import DecisionLog, Event
from core.interfaces import Block, BlockKey
from core.kv_group import KVGroup, group_key, num_usable_blocks
from core.plan import BlockCopy, StepPlan
from core.request import Request, Sequence
from core.swap import HostPool, SwappedBlock, SwappedKV


@dataclass(slots=True)
class Restoration:
    """How a swapped-out request would come back: per sequence its tables, of resident blocks and host copies."""

    num_computed: list[int]
    tables: list[list[list[Block | SwappedBlock | None]]]
    num_blocks: int = 0  # that it uses up: loads, adopted idle blocks, copies of tails that several samples write to


class Swapping:
    """Moves the KV of whole requests between the device's pool and the host's. It plans copies; others make them."""

    def __init__(
        self,
        pool: BlockPool,
        host: HostPool,
        groups: tuple[KVGroup, ...],
        block_size: int,
        log: DecisionLog,
        prefix_caching: bool,
    ) -> None:
        self.host = host
        self.num_requests = 0  # that are swapped out now
        self._pool = pool
        self._groups = groups
        self._block_size = block_size
        self._log = log
        self._prefix_caching = prefix_caching

    def swap_out(self, request: Request, plan: StepPlan) -> SwappedKV | None:
        """Plans the copies to the host; None, and nothing changed, where the host has no room.

        Only blocks that nobody else references move; of shared ones only the key is kept. Releasing the tables is the
        caller's part.
        """
        if self.host.num_blocks == 0:
            return None
        started = [sequence for sequence in request.live if sequence.stored_computed]
        kept = [[self._with_kv(sequence, table) for table in sequence.tables] for sequence in started]
        references = Counter(block for tables in kept for table in tables for block in table if block is not None)
        moving = [block for block, count in references.items() if block.ref_count == count]
        if len(moving) > self.host.num_available:
            return None
        host_ids = {block: self.host.take() for block in moving}
        plan.swap_outs.extend(BlockCopy(block.block_id, host_id) for block, host_id in host_ids.items())
        self._log.blocks(Event.SWAP_OUT, request.request_id, moving)
        self.num_requests += 1
        num_computed = [sequence.stored_computed for sequence in started]
        swapped = SwappedKV(started, num_computed, host_ids=list(host_ids.values()))
        for tables in kept:
            swapped.tables.append([[self._swapped(block, host_ids) for block in table] for table in tables])
        return swapped

    @staticmethod
    def _swapped(block: Block | None, host_ids: dict[Block, int]) -> SwappedBlock | None:
        return None if block is None else SwappedBlock(host_ids.get(block), block.key)

    def _with_kv(self, sequence: Sequence, table: list[Block | None]) -> list[Block | None]:
        return table[: -(-sequence.num_computed // self._block_size)]

    def find(self, request: Request) -> Restoration:
        """How the request would come back now: what is still resident is adopted, the rest loaded. Changes nothing.

        A shared block that was left behind and has been evicted since ends the restored prefix there, or before it if
        a window has left what the next token would attend to: the rest is recomputed.
        """
        assert request.swapped is not None
        found = Restoration([], [])
        loads: set[int] = set()
        idle: set[int] = set()
        tails: list[int | None] = []  # of host copies: what is resident is full
        for num_computed, tables in zip(request.swapped.num_computed, request.swapped.tables, strict=True):
            resident = [[self._resident(entry) for entry in table] for table in tables]
            num_blocks = min((len(table) for table in resident), default=0)
            for table in resident:
                lost = (i for i, e in enumerate(table) if isinstance(e, SwappedBlock) and e.host_id is None)
                num_blocks = min(num_blocks, next(lost, num_blocks))
            if num_blocks * self._block_size < num_computed:
                num_blocks = num_usable_blocks(self._groups, resident, num_blocks, self._block_size)
            restored = [table[:num_blocks] for table in resident]
            for entry in (entry for table in restored for entry in table):
                if isinstance(entry, Block):
                    idle.update({entry.block_id} if entry.ref_count == 0 else ())
                elif entry is not None and entry.host_id is not None:
                    loads.add(entry.host_id)
            num_kept = min(num_computed, num_blocks * self._block_size)
            tail = slice(num_kept // self._block_size, None)
            tails += [entry.host_id for table in restored for entry in table[tail] if isinstance(entry, SwappedBlock)]
            found.num_computed.append(num_kept)
            found.tables.append(restored)
        found.num_blocks = len(loads) + len(idle) + len(tails) - len(set(tails))
        return found

    def _resident(self, entry: SwappedBlock | None) -> Block | SwappedBlock | None:
        if entry is None or entry.key is None or not self._prefix_caching:
            return entry
        return self._pool.index.get(entry.key) or entry

    def swap_in(self, request: Request, restoration: Restoration, plan: StepPlan) -> None:
        """Rebuilds the tables: adopts what is resident, takes a block and plans a copy for each host copy."""
        assert request.swapped is not None
        loaded: dict[int, Block] = {}
        resident = [
            block for tables in restoration.tables for table in tables for block in table if isinstance(block, Block)
        ]
        if resident:
            self._pool.adopt(resident, request.request_id, readmission=True)
        for sequence, num_computed, tables in zip(
            request.swapped.sequences, restoration.num_computed, restoration.tables, strict=True
        ):
            for target, entries in zip(sequence.tables, tables, strict=True):
                target[:] = [self._restore(request, entry, loaded, plan) for entry in entries]
            sequence.stored_computed = num_computed
            sequence.num_registered = request.num_public(num_computed) // self._block_size
        self._log.blocks(Event.SWAP_IN, request.request_id, list(loaded.values()))
        if self._prefix_caching:
            self._publish_loaded(request.swapped.sequences)
        self.forget(request)

    def _publish_loaded(self, sequences: Iterable[Sequence]) -> None:
        """Registers the full blocks that came back from the host: among adopted ones, which are registered already."""
        for sequence in sequences:
            request, keys = sequence.request, sequence.keys.keys(0, sequence.num_registered)
            for group, table in enumerate(sequence.tables):
                places = [i for i, b in enumerate(table[: len(keys)]) if b is not None and b.key is None]
                if places:
                    blocks = [table[i] for i in places]
                    group_keys = [group_key(group, keys[i]) for i in places]
                    parents: list[BlockKey | None] = []
                    if self._pool.index.is_linked:
                        parents = [group_key(group, keys[i - 1]) if i else None for i in places]
                    self._pool.register(
                        blocks,
                        group_keys,
                        request.request_id,
                        places,
                        category=request.category,
                        parents=parents,
                    )

    def forget(self, request: Request) -> None:
        """Frees what it has on the host, if anything."""
        if request.swapped is not None:
            self.num_requests -= 1
            self.host.release(request.swapped.host_ids)
            request.swapped = None

    def _restore(
        self, request: Request, entry: Block | SwappedBlock | None, loaded: dict[int, Block], plan: StepPlan
    ) -> Block | None:
        if entry is None or isinstance(entry, Block):
            return entry
        assert entry.host_id is not None
        if entry.host_id in loaded:
            self._pool.share((loaded[entry.host_id],))
            return loaded[entry.host_id]
        block = loaded[entry.host_id] = self._pool.take(1, request.request_id)[0]
        plan.swap_ins.append(BlockCopy(entry.host_id, block.block_id))
        return block
