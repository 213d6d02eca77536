"""First in, last out: the mirror image of FIFO."""

from __future__ import annotations

from core.interfaces import Block
from policies.eviction.fifo import FIFO


class FILO(FIFO):
    """Evicts the block whose content was registered last; SGLang's strategy `filo`. O(log n) each."""

    def priority(self, block: Block) -> float:
        return -super().priority(block)
