"""GreedyDual-Size with Frequency: uses times cost, and an age that everything new is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mypy_extensions import mypyc_attr

from core.batch_eviction import Ints
from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv, PriorityEviction
from policies.eviction.gdsf_batches import GDSFBatches
from policies.eviction.recompute_cost import LLAMA3_8B_TOKENS, RecomputeCost


@mypyc_attr(allow_interpreted_subclasses=True)
class GDSF(PriorityEviction):
    """Evicts the least H = L + uses * cost / size, where L is the H of what was evicted last and H is set anew at each
    use. Of equals, the one released longest ago. Cherkasova, HP Labs report 98-69, 1998. O(log n) each.

    All blocks have one size. `cost="unit"` makes it LFU with aging; `cost="recompute"` is the modelled cost per token
    of computing the block at its depth (`attention_equals_linear_tokens` is the model's, see `RecomputeCost`). Uses are
    counted from the registration. L never falls: a block that was referenced for long may come with an old H.
    """

    def __init__(
        self,
        env: PolicyEnv,
        cost: Literal["unit", "recompute"] = "unit",
        attention_equals_linear_tokens: float = LLAMA3_8B_TOKENS,
    ) -> None:
        super().__init__(env)
        if cost not in ("unit", "recompute"):
            raise InputError(f"eviction.cost={cost}: expected unit or recompute")
        self._cost = RecomputeCost(env, attention_equals_linear_tokens) if cost == "recompute" else None
        self._age = 0.0
        self._num_uses: list[int] = []  # by block id

    def in_batches(self, contents: Ints) -> GDSFBatches | None:
        return GDSFBatches(len(contents)) if self._cost is None else None

    def on_insert(self, blocks: Sequence[Block]) -> None:
        num_uses = self._num_uses
        for block in blocks:
            while block.block_id >= len(num_uses):
                num_uses.append(0)
            self._use(block, 1)

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            self._use(block, self._num_uses[block.block_id] + 1)

    def _use(self, block: Block, num_uses: int) -> None:
        self._num_uses[block.block_id] = num_uses
        block.link = self._age + (num_uses if self._cost is None else num_uses * self._cost.at(block.position))

    def on_evict(self, block: Block) -> None:
        if block.ref_count == 0:
            self._age = max(self._age, block.link)
        block.link = None

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        victims = []
        for key in incoming:
            block = self.pop_victim(key)
            if block.key is not None:
                self.on_evict(block)
            victims.append(block)
        return victims

    def priority(self, block: Block) -> float:
        return block.link or 0  # 0: released without content (free_order=append_all)
