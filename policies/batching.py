"""Batch policies: how a step's token budget is handed out."""

from __future__ import annotations

from typing import ClassVar

from core.interfaces import BatchPolicy, BatchRules, PolicyEnv, SchedulerView

_UNLIMITED = 1 << 62  # tokens: more than any step has


class Chunked(BatchPolicy):
    """Running requests first, prompts in chunks that fill the rest of the budget (Sarathi-Serve, OSDI'24; vLLM v1).

    The long-prefill threshold bounds one prompt's chunk. With `exempts_alone` (vLLM 0.33, not yet 0.29) it does not
    where the request is alone.
    """

    def __init__(self, env: PolicyEnv, exempts_alone: bool = True) -> None:
        super().__init__(env)
        self._exempts_alone = exempts_alone
        self._rules: dict[int, BatchRules] = {}  # by the limit of a chunk: all else stays as it is throughout a run

    def compose(self, view: SchedulerView) -> BatchRules:
        limit = view.long_prefill_threshold_tokens
        if limit and self._exempts_alone and view.num_running + view.num_waiting <= 1:
            limit = 0
        if limit not in self._rules:
            self._rules[limit] = BatchRules(view.max_batch_tokens, limit, view.chunked_prefill)
        return self._rules[limit]

    def fixed_rules(self, view: SchedulerView) -> BatchRules | None:
        has_exception = self._exempts_alone and view.long_prefill_threshold_tokens > 0
        return None if has_exception else self.compose(view)


class PrefillFirst(BatchPolicy):
    """While any prompt can be computed a step holds prompts only, and decodes stall (vLLM V0 without chunked prefill).

    With `scheduler.chunked_prefill` a prompt longer than the budget is split, and keeps decodes waiting until it is
    done.
    """

    def compose(self, view: SchedulerView) -> BatchRules:
        return BatchRules(view.max_batch_tokens, 0, view.chunked_prefill, prompts_alone=True)


class Orca(BatchPolicy):
    """Iteration-level scheduling with selective batching (Orca, OSDI'22): whole prompts beside decodes.

    A step is bounded by `scheduler.max_num_seqs` alone, not by a number of tokens.
    """

    exceeds_max_batch_tokens: ClassVar[bool] = True

    def compose(self, view: SchedulerView) -> BatchRules:
        return BatchRules(_UNLIMITED, 0, split_prompts=False)

    def fixed_rules(self, view: SchedulerView) -> BatchRules | None:
        return self.compose(view)


class Static(BatchPolicy):
    """A batch is formed when nothing runs, and runs until all of it is done (FasterTransformer; Orca's baseline).

    Who ends early keeps its blocks until then. Tokens appear as they are computed. What padding costs is not priced:
    a sequence that has ended costs no work, and prompts are not padded to the longest.
    """

    frees_with_batch: ClassVar[bool] = True
    exceeds_max_batch_tokens: ClassVar[bool] = True

    def compose(self, view: SchedulerView) -> BatchRules:
        return BatchRules(_UNLIMITED, 0, split_prompts=False, admits=view.num_running == 0)
