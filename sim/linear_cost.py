"""The calibrated model: a step's duration is linear in what it computes and reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mypy_extensions import mypyc_attr

from core.units import to_ps
from sim.cost_model import CostModel, StepWork


@mypyc_attr(allow_interpreted_subclasses=True)
class LinearCost(CostModel):
    """constant + prefill tokens + prefill query-key pairs + decode sequences + decode context + swapped and copied
    blocks.

    `knots` bend the cost in the number of new tokens: each (num_tokens, s) adds s for every token beyond num_tokens, so
    that small batches, which the weights dominate, and large ones have slopes of their own. A decode span is an
    arithmetic progression: its only varying term is the context, which grows by the batch each step.
    """

    def __init__(
        self,
        constant_s: float,
        prefill_token_s: float = 0.0,
        prefill_pair_s: float = 0.0,
        decode_sequence_s: float = 0.0,
        context_token_s: float = 0.0,
        swap_block_s: float = 0.0,
        copy_block_s: float = 0.0,
        knots: Sequence[Sequence[float]] = (),
    ) -> None:
        self._constant_ps = to_ps(constant_s)
        self._prefill_token_ps = to_ps(prefill_token_s)
        self._prefill_pair_ps = to_ps(prefill_pair_s)
        self._decode_sequence_ps = to_ps(decode_sequence_s)
        self._context_token_ps = to_ps(context_token_s)
        self._swap_block_ps = to_ps(swap_block_s)
        self._copy_block_ps = to_ps(copy_block_s)
        self._knots = [(int(num_tokens), to_ps(extra_s)) for num_tokens, extra_s in knots]

    def step_ps(self, work: StepWork) -> int:
        duration = (
            self._constant_ps
            + self._decode_sequence_ps * work.num_decodes
            + self._context_token_ps * work.decode_context_tokens
            + self._swap_block_ps * work.num_swapped_blocks
            + self._copy_block_ps * work.num_copied_blocks
        )
        num_prefill = 0
        if work.chunks:
            num_prefill = work.num_prefill_tokens
            duration += self._prefill_token_ps * num_prefill
            if self._prefill_pair_ps:
                duration += self._prefill_pair_ps * work.prefill_pairs
        num_new = num_prefill + work.num_decodes
        for knot, extra_ps in self._knots:
            if num_new > knot:
                duration += extra_ps * (num_new - knot)
        return max(duration, 1)

    @property
    def least_step_ps(self) -> int:
        """The constant, where nothing makes a step shorter."""
        terms = (self._prefill_pair_ps, self._context_token_ps, self._swap_block_ps, self._copy_block_ps)
        bends = accumulate([extra_ps for _, extra_ps in sorted(self._knots)], initial=0)
        slope_ps = min(self._prefill_token_ps, self._decode_sequence_ps) + min(bends)
        return max(self._constant_ps, 1) if min(slope_ps, *terms) >= 0 else 1

    def growth_ps(self, work: StepWork) -> int:
        return self._context_token_ps * work.num_decodes
