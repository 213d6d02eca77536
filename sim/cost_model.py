"""What a step costs: models that turn a step's work into integer picoseconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from core.durations import EvenDurations
from core.plan import StepPlan


@dataclass(slots=True)
class StepWork:
    """What a cost model may know of a step. `chunks` are (new tokens, tokens with KV before them).

    `decode_context_tokens` are the KV tokens that the decodes read, their own new ones included.
    """

    step: int
    chunks: tuple[tuple[int, int], ...] = ()
    num_decodes: int = 0
    decode_context_tokens: int = 0
    num_swapped_blocks: int = 0
    num_copied_blocks: int = 0

    @property
    def num_prefill_tokens(self) -> int:
        total = 0
        for num_new, _ in self.chunks:
            total += num_new
        return total

    @property
    def prefill_pairs(self) -> int:
        """Query-key pairs of causal prefill attention."""
        return sum(num_new * num_computed + num_new * (num_new + 1) // 2 for num_new, num_computed in self.chunks)


def work_of(plan: StepPlan) -> StepWork:
    return StepWork(
        plan.step,
        tuple((chunk.num_new, chunk.num_computed) for chunk in plan.chunks),
        plan.num_decodes,
        plan.decode_context_tokens,
        len(plan.swap_outs) + len(plan.swap_ins),
        len(plan.copies) + len(plan.moves),
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class CostModel(ABC):
    """Prices steps. Where decode steps grow evenly a model says so by `growth_ps`; one that knows them otherwise
    overrides `decode_span_ps`; with neither, a run takes single steps."""

    @abstractmethod
    def step_ps(self, work: StepWork) -> int:
        """Duration of one step, in picoseconds; at least 1."""

    @property
    def least_step_ps(self) -> int:
        """No step is shorter than this, whatever it has to do; the nearer it is, the less a fleet has to look."""
        return 1

    @property
    def has_even_spans(self) -> bool:
        """Does `growth_ps` know?"""
        return type(self).growth_ps is not CostModel.growth_ps

    def growth_ps(self, work: StepWork) -> int | None:
        """What each further step in which the batch of `work` decodes takes longer than the one before it (at least 0);
        None: that is not known.
        """
        return None

    def decode_span_ps(self, work: StepWork, max_steps: int) -> Sequence[int]:
        """Durations of the next steps, at most `max_steps`, in which the batch of `work` decodes."""
        growth_ps = self.growth_ps(work)
        if growth_ps is None:
            return (self.step_ps(work),)
        return EvenDurations(self.step_ps(work), growth_ps, max_steps)
