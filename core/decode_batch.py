"""The decoding sequences, kept as sums: a step that advances all of them by one token costs no loop over them."""

from __future__ import annotations

import heapq

from core.request import Sequence


class DecodeBatch:
    """Members advance together: `clock` counts their scheduled steps, and a member's KV length is `clock + offset`.

    Members that need a new block in the same step share a bucket (KV length modulo block size), each bucket in running
    order. Ends are a heap with lazy deletion. Joining and leaving cost O(log n), a step costs the members that cross a
    block boundary.
    """

    def __init__(self, block_size: int) -> None:
        self.clock = 0  # steps scheduled
        self.num_emitted = 0  # steps whose tokens are out: `clock`, or one less while a step runs
        self.members: dict[int, Sequence] = {}  # by rank
        self._block_size = block_size
        self.buckets: list[dict[int, Sequence]] = [{} for _ in range(block_size)]
        self.occupied = bytearray(block_size)  # by bucket: whether it has members
        self.offset_sum = 0
        self._num_decoding: dict[int, int] = {}  # members by tenant
        self._output_base: dict[int, int] = {}  # by tenant: outputs = base + members x num_emitted
        self.ends: list[tuple[int, int]] = []  # (clock at the end, rank)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def context_tokens(self) -> int:
        """KV tokens of all members."""
        return self.offset_sum + self.clock * len(self.members)

    def num_output_tokens(self, tenant: int) -> int:
        """Tokens that the tenant's requests, running or not, have produced so far."""
        return self._output_base.get(tenant, 0) + self._num_decoding.get(tenant, 0) * self.num_emitted

    def count_output(self, tenant: int, num_tokens: int) -> None:
        """So many tokens came (or, below 0, did not come) beside one a step for each member, past or present."""
        self._output_base[tenant] += num_tokens

    def join(self, sequence: Sequence) -> None:
        """`sequence` has exactly one known token without KV."""
        sequence.offset = sequence.stored_computed - self.clock
        sequence.batch = self
        self.members[sequence.rank] = sequence
        self.offset_sum += sequence.offset
        tenant = sequence.request.tenant
        if tenant not in self._num_decoding:
            self._num_decoding[tenant] = self._output_base[tenant] = 0
        self._num_decoding[tenant] += 1
        self._output_base[tenant] -= self.num_emitted
        self._enter(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Writes the member's lengths back into it; the token of a step that still runs is not known."""
        rank, offset = sequence.rank, sequence.offset
        del self.members[rank]
        self._exit(sequence)
        self.offset_sum -= offset
        tenant = sequence.request.tenant
        self._num_decoding[tenant] -= 1
        self._output_base[tenant] += self.num_emitted
        sequence.batch = None
        sequence.stored_known, sequence.stored_computed = self.num_emitted + offset + 1, self.clock + offset

    def hold(self, sequence: Sequence) -> None:
        """The step whose tokens are just out passed this member over."""
        self._exit(sequence)
        sequence.offset -= 1
        self.offset_sum -= 1
        self.count_output(sequence.request.tenant, -1)
        self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        phase, rank = -sequence.offset % self._block_size, sequence.rank
        bucket = self.buckets[phase]
        in_order = not bucket or next(reversed(bucket)) < rank
        bucket[rank] = sequence
        self.occupied[phase] = 1
        if not in_order:
            ordered = sorted(bucket.items())
            bucket.clear()
            bucket.update(ordered)
        request = sequence.request
        # The KV of its last token is never computed.
        sequence.end_clock = request.num_prompt_tokens + request.num_output_tokens - 1 - sequence.offset
        heapq.heappush(self.ends, (sequence.end_clock, rank))

    def _exit(self, sequence: Sequence) -> None:
        phase = -sequence.offset % self._block_size
        bucket = self.buckets[phase]
        del bucket[sequence.rank]
        if not bucket:
            self.occupied[phase] = 0

    def crossing(self, num_steps_ahead: int = 0) -> dict[int, Sequence]:
        """Members whose next token (or the one `num_steps_ahead` later) starts a block, by rank in running order."""
        return self.buckets[(self.clock + num_steps_ahead) % self._block_size]

    def filling(self, num_steps_ahead: int = 0) -> dict[int, Sequence]:
        """Members whose next token fills its block."""
        return self.buckets[(self.clock + num_steps_ahead + 1) % self._block_size]

    def num_starts(self, num_steps: int) -> int:
        """Blocks that the members start in so many steps, from this clock on. O(block size)."""
        size, buckets, first = self._block_size, self.buckets, self.clock % self._block_size
        num_rounds, rest = divmod(num_steps, size)
        num_starts = num_rounds * len(self.members)
        for bucket in buckets[first : first + rest]:
            num_starts += len(bucket)
        if first + rest > size:
            for bucket in buckets[: first + rest - size]:
                num_starts += len(bucket)
        return num_starts

    def steps_to_next_start(self, at_most: int, clock: int) -> int:
        """Steps from this clock on, up to the first in which a member starts a block. There are members."""
        phase = clock % self._block_size
        place = self.occupied.find(1, phase)
        if place < 0:
            place = self.occupied.find(1) + self._block_size
        return place - phase if place - phase < at_most else at_most

    def steps_to_next_edge(self, at_most: int, clock: int) -> int:
        """Steps from this clock on, up to the first in which a member starts or fills a block. There are members."""
        num_steps = self.steps_to_next_start(at_most + 1, clock)
        return num_steps - 1 if num_steps else 0  # a block that starts with a step is full with the one before

    def steps_to_next_end(self) -> int:
        """Steps until the first member has all its outputs."""
        while self.ends:
            end_clock, rank = self.ends[0]
            if self.is_live(end_clock, rank):
                return end_clock - self.clock
            heapq.heappop(self.ends)
        raise ValueError("no member decodes")

    def pop_ended(self) -> list[Sequence]:
        """Members whose last output came out with the step just committed, in running order. They are still members."""
        ended = []
        while self.ends and self.ends[0][0] <= self.clock:
            end_clock, rank = heapq.heappop(self.ends)
            if self.is_live(end_clock, rank):
                ended.append(self.members[rank])
        return ended

    def is_live(self, end_clock: int, rank: int) -> bool:
        sequence = self.members.get(rank)
        return sequence is not None and sequence.end_clock == end_clock
