"""Batch policies: how a step's token budget is handed out."""

from __future__ import annotations

from core.interfaces import BatchPolicy, BatchRules, SchedulerView


class Chunked(BatchPolicy):
    """Running requests first, prompts in chunks that fill the rest of the budget (Sarathi-Serve, OSDI'24; vLLM 0.33).

    The long-prefill threshold bounds one prompt's chunk, unless the request is alone.
    """

    def compose(self, view: SchedulerView) -> BatchRules:
        limit = view.long_prefill_threshold_tokens
        if limit and view.num_running + view.num_waiting <= 1:
            limit = 0
        return BatchRules(view.max_batch_tokens, limit, view.chunked_prefill)
