"""What a policy may see of the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from core.interfaces import Running
    from core.request import Request


class SchedulerView(Protocol):
    """The scheduler as a policy may see it: read-only, O(1) each where nothing else is said."""

    @property
    def step(self) -> int:
        """Number of the step being decided, or running."""
        ...

    @property
    def running(self) -> Running:
        """In running order. To walk it costs O(running)."""
        ...

    @property
    def num_running(self) -> int: ...
    @property
    def num_running_sequences(self) -> int:
        """Samples of all running requests."""
        ...

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_free_blocks(self) -> int:
        """Free and cached-but-unreferenced blocks."""
        ...

    @property
    def num_blocks(self) -> int | None: ...
    @property
    def num_full_blocks(self) -> int:
        """What the *whole* known text of the request being admitted would use up, idle hits included."""
        ...

    @property
    def max_batch_tokens(self) -> int: ...
    @property
    def chunked_prefill(self) -> bool: ...
    @property
    def long_prefill_threshold_tokens(self) -> int: ...
    @property
    def prefix_caching(self) -> bool: ...
    @property
    def num_kv_groups(self) -> int:
        """Blocks that a block's tokens take in all: one in each group's table (of small pages: one for each layer)."""
        ...

    @property
    def num_missing_blocks(self) -> int:
        """What the running prompts have yet to take for the text that is known of them. O(running prompts)."""
        ...

    def peak_blocks(self, request: Request) -> int:
        """The most that `request` may come to hold, if it produces all the tokens it is allowed (`max_new_tokens`)."""
        ...

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts (and of preempted texts) that were scheduled so far."""
        ...

    def num_output_tokens(self, tenant: int) -> int:
        """Tokens that the tenant's requests have produced so far."""
        ...

    def num_cached_tokens(self, request: Request) -> int:
        """What a waiting request would find in the prefix cache now. A look-up that leaves no trace: O(its blocks)."""
        ...
