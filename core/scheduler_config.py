"""The switches of the scheduler. A file of its own, for other processes are sent it."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import InputError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Switches of the scheduler; those of a policy are the policy's.

    `keep_cancelled_registrations` mirrors vLLM: a prefill cancelled within its own step by a priority preemption leaves
    blocks in the prefix index whose KV was never computed. Off, they are taken back. `publication`: full blocks enter
    the prefix index at `schedule`, at `step_end`, or (in a radix tree, and only there) once they are `computed`.
    `admit_after_preemption`: also a step that preempted admits. `own_preemption_ends_step`: when a running request is
    its own victim, those after it get nothing in that step (vLLM before 0.33; fcfs victims are last anyway). With
    `async_scheduling`, `build_scheduler` makes an `AsyncScheduler`. `single_steps` turns spans off.
    """

    max_num_seqs: int = 256
    max_batch_tokens: int = 8192
    chunked_prefill: bool = True
    long_prefill_threshold_tokens: int = 0
    max_model_len: int | None = None
    keep_cancelled_registrations: bool = False
    publication: str = "schedule"
    admit_after_preemption: bool = False
    own_preemption_ends_step: bool = False
    async_scheduling: bool = False
    single_steps: bool = False

    def __post_init__(self) -> None:
        if self.async_scheduling and self.admit_after_preemption:
            raise InputError("scheduler.admit_after_preemption=true: async scheduling never does; expected false")
        if self.async_scheduling and self.publication != "schedule":
            raise InputError("scheduler.publication=step_end: async scheduling publishes at schedule")
