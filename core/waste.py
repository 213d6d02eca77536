"""Where the slots of the pool went: tokens, and waste told apart as by the PagedAttention paper (SOSP'23, section 3.1).

*Reserved*: will hold a token later. *Internal*: part of a sequence's blocks, but beyond its last token. *External*:
part of no sequence, and of no use: padding of a run, and, under contiguous allocation while somebody is refused memory,
whatever is free. Paged blocks have no external waste: any of them serves anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.step_totals import Load

SHARES = ("token", "reserved", "internal", "external", "free")


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Slots of each kind, summed over steps, each times the duration of its step in picoseconds."""

    busy_ps: int
    token: int
    reserved: int
    internal: int
    external: int

    @classmethod
    def of(cls, load: Load, block_size_tokens: int) -> SlotUse:
        reserved = load.referenced_blocks * block_size_tokens - load.internal_tokens - load.filled_tokens
        return cls(load.busy_ps, load.filled_tokens, reserved, load.internal_tokens, load.external_tokens)

    def waste_ratios(self) -> dict[str, float | None]:
        """Wasted slots over those that are taken out of use: of referenced blocks, and external ones."""
        wasted = {"reserved": self.reserved, "internal": self.internal, "external": self.external}
        return {name: self._of_taken(slots) for name, slots in wasted.items()}

    def waste_ratio(self) -> float | None:
        """Their sum; with the share that holds tokens it is 1."""
        return self._of_taken(self.reserved + self.internal + self.external)

    def _of_taken(self, slots: int) -> float | None:
        taken = self.token + self.reserved + self.internal + self.external
        return slots / taken if taken else None

    def pool_shares(self, pool_tokens: int | None) -> dict[str, float | None]:
        """Shares of the whole pool, which add up to 1. None without steps, or without an end of the pool."""
        if pool_tokens is None or not self.busy_ps:
            return dict.fromkeys(SHARES)
        pool = pool_tokens * self.busy_ps
        taken = (self.token, self.reserved, self.internal, self.external)
        return dict(zip(SHARES, [slots / pool for slots in (*taken, pool - sum(taken))], strict=True))
