"""Can a request ever run here? If not, it ends at once, with the reason: it would block the queue for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.block_tables import BlockTables
from core.interfaces import AllocationPolicy, BatchPolicy
from core.pool import UNBOUNDED
from core.request import Request

if TYPE_CHECKING:
    from core.scheduler import SchedulerConfig


def plain_limit_tokens(config: SchedulerConfig, tables: BlockTables) -> int:
    """How many tokens may have KV at the end of a request of one sample, if nothing else can stand in its way; 0 if it
    can.
    """
    stands_alone = type(tables.allocation).why_unservable is AllocationPolicy.why_unservable
    is_plain = tables.is_on_demand and tables.num_groups == 1 and not tables.is_windowed and stands_alone
    if not is_plain or config.max_model_len is not None or not config.chunked_prefill:
        return 0
    return UNBOUNDED if tables.pool.num_blocks is None else tables.pool.num_blocks * tables.block_size


def is_plainly_servable(request: Request, limit_tokens: int) -> bool:
    """Whether it can run under that limit, without asking further."""
    num_prompt, num_output = request.num_prompt_tokens, request.num_output_tokens
    return num_prompt > 0 < num_output and num_prompt + num_output - 1 <= limit_tokens and request.num_samples == 1


def why_unservable(request: Request, config: SchedulerConfig, tables: BlockTables, batching: BatchPolicy) -> str:
    """Why the request can never run; empty if it can. The watermark is no reason: it holds only while others run."""
    max_step_tokens = UNBOUNDED if batching.exceeds_max_batch_tokens else config.max_batch_tokens
    num_prompt, num_output = request.num_prompt_tokens, request.num_output_tokens
    if num_prompt < 1:
        return f"has {num_prompt} prompt tokens: there is nothing to compute"
    if config.max_model_len is not None and num_prompt >= config.max_model_len:
        return f"prompt of {num_prompt} tokens leaves no room for output in max_model_len={config.max_model_len}"
    if num_output < 1:
        return f"wants {num_output} output tokens: there is nothing to produce"
    if request.num_samples > config.max_num_seqs:
        return f"{request.num_samples} samples exceed max_num_seqs={config.max_num_seqs}"
    if not config.chunked_prefill and num_prompt > max_step_tokens:
        return f"prompt exceeds max_batch_tokens={config.max_batch_tokens} and chunked prefill is off"
    if request.num_samples > 1 and not tables.allocation.shares_blocks:
        return f"wants {request.num_samples} samples, which cannot share blocks under this allocation"
    if request.is_beam_search and request.num_samples > max_step_tokens:
        return f"{request.num_samples} beams advance together, and exceed max_batch_tokens={config.max_batch_tokens}"
    if request.is_beam_search and not tables.serves_searches:
        return "is a beam search, which pool.prefix_index=radix does not serve; expected hash"
    reason = tables.allocation.why_unservable(request)
    if reason:
        return reason
    num_needed, num_blocks = peak_blocks(request, tables, num_output), tables.pool.num_blocks
    if num_blocks is not None and num_needed > num_blocks:
        return f"needs {num_needed} blocks, the pool has {num_blocks}"
    return ""


def peak_blocks(request: Request, tables: BlockTables, num_output_tokens: int) -> int:
    """Blocks that it holds at most when it runs alone: its KV peaks at prompt + output - 1 tokens a sample.

    Samples share the full blocks of the prompt. A group with a window keeps the window and one step's tokens, which are
    a whole text where batches exceed `max_batch_tokens`: a preempted request, too, is then computed anew in one step.
    """
    size = tables.block_size
    per_sequence = tables.allocation.target_blocks(request, request.num_prompt_tokens + num_output_tokens - 1)
    num_shared = request.num_prompt_tokens // size if request.num_samples > 1 else 0
    num_held = []
    for group in tables.groups:
        if group.window_tokens is None or request.num_samples > 1:
            num_held.append(num_shared + request.num_samples * (per_sequence - num_shared))
        else:
            num_held.append(min(per_sequence, tables.most_window_blocks(group.window_tokens)))
    return tables.num_alone(num_held)
