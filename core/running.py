"""The running requests in running order, and which of their sequences decode and which still compute their prompt."""

from __future__ import annotations

from collections.abc import Iterator

from core.decode_batch import DecodeBatch
from core.request import Request, Sequence


class RunningRequests:
    """Running order is order of admission. Every running sequence is either a prefill or a member of the decode batch.

    A sequence's `rank` is its place in running order; a request's is that of its first running sequence.
    """

    def __init__(self, block_size: int) -> None:
        self.batch = DecodeBatch(block_size)
        self.prefills: dict[int, Sequence] = {}  # by rank
        self.late: dict[int, Sequence] = {}  # decoding, but without a token from the last step
        self.has_shared_tails = False  # a fork has happened whose copies-on-write are not done yet
        self.retired: set[Sequence] = set()  # with blocks still, though nothing more is scheduled for them
        self.num_sequences = 0
        self.searches: dict[int, Request] = {}  # beam searches, by rank
        self.requests: dict[int, Request] = {}  # by rank
        self._next_rank = 0

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests.values())

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self.requests.values())

    def __contains__(self, request: Request) -> bool:
        return request.rank in self.requests

    @property
    def last_rank(self) -> int:
        """Rank of the last running sequence that computes or decodes."""
        request = next(reversed(self.requests.values()))
        return max(sequence.rank for sequence in request.sequences)

    def add(self, request: Request) -> None:
        """Last in running order; keeps a rank free for each of its samples."""
        request.rank = self._next_rank
        self.requests[request.rank] = request
        if request.is_beam_search:
            self.searches[request.rank] = request
        num_live = len(request.live)
        self._next_rank += num_live
        self.num_sequences += num_live

    def remove(self, request: Request, now_ps: int) -> None:
        """Takes the request and its sequences out of running order; `now_ps` is when their newest tokens appeared."""
        for sequence in request.live:
            if sequence.rank >= 0:
                self._leave(sequence, now_ps)
            self.retired.discard(sequence)
            self.num_sequences -= 1
        self._forget(request)

    def _forget(self, request: Request) -> None:
        del self.requests[request.rank]
        self.searches.pop(request.rank, None)
        request.rank = -1

    def end(self, sequence: Sequence, now_ps: int) -> None:
        """One sequence has its last token; its request leaves with its last sequence."""
        if sequence.rank >= 0:  # else it has retired
            self._leave(sequence, now_ps)
        self.retired.discard(sequence)
        self.num_sequences -= 1
        sequence.request.live.remove(sequence)
        if not sequence.request.live:
            self._forget(sequence.request)

    def retire(self, sequence: Sequence, now_ps: int) -> None:
        """Its last token is on its way: nothing more is scheduled for it, but it keeps its place and its blocks."""
        self._leave(sequence, now_ps)
        self.retired.add(sequence)

    def _leave(self, sequence: Sequence, now_ps: int) -> None:
        if sequence.batch is not None:
            if self.late.pop(sequence.rank, None) is None:
                sequence.last_token_ps = now_ps
            self.batch.leave(sequence)
        else:
            del self.prefills[sequence.rank]
        sequence.rank = -1

    def start(self, sequence: Sequence, rank: int) -> None:
        """The sequence has KV to compute; where only its newest output lacks it, it decodes.

        Not so a sequence on which other samples wait: they start from it when its prefill ends.
        """
        sequence.rank = rank
        lacks_one = sequence.num_known - sequence.num_computed == 1 and sequence.num_outputs > 0
        if lacks_one and all(other.rank >= 0 or other.stored_computed for other in sequence.request.live):
            self.batch.join(sequence)
            self.late[rank] = sequence
        else:
            self.prefills[rank] = sequence

    def hold(self, sequence: Sequence, now_ps: int) -> None:
        """The step that began at `now_ps` passed this decoding sequence over."""
        self.batch.hold(sequence)
        self.pause(sequence, now_ps)

    def pause(self, sequence: Sequence, now_ps: int) -> None:
        """No token of this decoding sequence is under way at `now_ps`."""
        if sequence.rank not in self.late:
            sequence.last_token_ps = now_ps
            self.late[sequence.rank] = sequence

    def num_regular_decodes(self, request: Request, held: set[int]) -> int:
        """Its sequences that had a token from the last step and get one from this; those of rank `held` get none."""
        decoding = [sequence.rank for sequence in request.live if sequence.batch is not None]
        return sum(rank not in self.late and rank not in held for rank in decoding)

    def to_decode(self, sequence: Sequence) -> None:
        """A prefill has sampled its token: one known token lacks KV."""
        del self.prefills[sequence.rank]
        self.batch.join(sequence)
        self.batch.count_output(sequence.request.tenant, 1)
