"""Watches over the one method of a policy: each hands on the question, and looks at the answer."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from core.interfaces import (
    Admission,
    BatchRules,
    Leaf,
    Policy,
    Preemption,
    PreemptMode,
    Running,
    SchedulerView,
    Shortage,
)
from core.request import Request
from kvtwin.conformance.fault import PolicyFault
from kvtwin.conformance.workloads import ENDS

COMPARES = "all keys compare"
ONE_ORDER = "keys are in one order"
RUNNING = "names a running request"
MONOTONE = "more free blocks never turn ADMIT into WAIT"
BUDGET = "the budget is positive"
ENOUGH = "enough blocks for the tokens"
GROWS = "never fewer blocks for more tokens"
ANSWERS = "answers what its kind answers"
MOST_SELECTIONS = 2_000  # at one moment: each takes a running request away
MORE_BLOCKS = (1, 3, 10_000)


class Watch(ABC):
    """One a policy. `check` raises PolicyFault, naming the request, where the answer breaks a rule."""

    @abstractmethod
    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        """The policy's answer."""


class _Order:
    """Keys met so far, and whether they are in one order."""

    def __init__(self) -> None:
        self._met: list[tuple[str, Any]] = []

    def add(self, name: str, key: Any) -> None:
        for other, theirs in [*self._met, (name, key)]:
            self._compare(name, key, other, theirs)
        self._check_transitive(name, key)
        self._met.append((name, key))

    def _compare(self, name: str, key: Any, other: str, theirs: Any) -> None:
        told = f"{name} has key {key!r}, {other} {theirs!r}"
        try:
            is_less, is_greater, is_equal = key < theirs, theirs < key, key == theirs
        except TypeError as error:
            raise PolicyFault(COMPARES, f"{told}: {error}") from error
        if is_less + is_greater + bool(is_equal) != 1:
            raise PolicyFault(ONE_ORDER, f"{told}: neither one is less, nor are they equal")

    def _check_transitive(self, name: str, key: Any) -> None:
        below = [met for met in self._met if met[1] < key]
        above = [met for met in self._met if key < met[1]]
        for low, least in below:
            for high, most in above:
                if not least < most:
                    told = f"{low} ({least!r}) is before {name} ({key!r}), and that before {high} ({most!r})"
                    raise PolicyFault(ONE_ORDER, f"{told}, but {low} is not before {high}")


class QueueWatch(Watch):
    def __init__(self) -> None:
        self._order = _Order()

    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        (request,) = question
        key = ask(request)
        self._order.add(f"request {request.request_id}", key)
        return key


class LeafWatch(Watch):
    """Ranks are compared with those before; how long a leaf has been one does not matter."""

    def __init__(self) -> None:
        self._order = _Order()
        self._num_ranked = 0

    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        leaf: Leaf = question[0]
        rank = ask(leaf)
        self._num_ranked += 1
        if self._num_ranked <= 30:
            place = f"leaf of {leaf.num_pages} blocks at depth {leaf.depth_pages} (no. {self._num_ranked})"
            self._order.add(place, rank)
        return rank


class PreemptionWatch(Watch):
    def __init__(self) -> None:
        self._now_ps = -1
        self._num_asked = 0

    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        running: Running = question[0]
        shortage: Shortage = question[1]
        for_request: Request = question[2]
        place = f"asked for {shortage.blocks} blocks for request {for_request.request_id}"
        self._count(policy.env.now(), place)
        answer = ask(running, shortage, for_request)
        if answer is None:
            return answer
        if not isinstance(answer, Preemption) or not isinstance(answer.mode, PreemptMode):
            raise PolicyFault(ANSWERS, f"{place} it names {answer!r}; expected a Preemption(request, mode) or None")
        if answer.request not in list(running):
            named = getattr(answer.request, "request_id", answer.request)
            raise PolicyFault(RUNNING, f"{place} it names request {named}, which does not run")
        return answer

    def _count(self, now_ps: int, place: str) -> None:
        self._num_asked = self._num_asked + 1 if now_ps == self._now_ps else 1
        self._now_ps = now_ps
        if self._num_asked > MOST_SELECTIONS:
            raise PolicyFault(ENDS, f"{place} it has preempted {MOST_SELECTIONS:,} times at one moment")


class _MoreFree:
    """The scheduler's view with more free blocks than there are."""

    def __init__(self, view: SchedulerView, num_more: int) -> None:
        self._view = view
        self.num_free_blocks = view.num_free_blocks + num_more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class AdmissionWatch(Watch):
    """An admission is asked for again of copies of the policy, which see more free blocks."""

    def __init__(self) -> None:
        self._met: list[Any] = []  # what a copy must share with its original

    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        request, num_new_blocks, view = question
        self._met += [request] if request not in self._met else []
        copies = [_copied(policy, "admit", [policy.env, view, *self._met]) for _ in MORE_BLOCKS]
        answer = ask(request, num_new_blocks, view)
        if not isinstance(answer, Admission):
            raise PolicyFault(ANSWERS, f"request {request.request_id}: {answer!r}; expected an Admission")
        if answer is Admission.ADMIT:
            for num_more, twin in zip(MORE_BLOCKS, copies, strict=True):
                self._ask_again(twin, request, num_new_blocks, _MoreFree(view, num_more))
        return answer

    def _ask_again(self, twin: Any, request: Request, num_new_blocks: int, view: Any) -> None:
        if twin is not None and twin.admit(request, num_new_blocks, view) is Admission.WAIT:
            few, many = view._view.num_free_blocks, view.num_free_blocks
            told = (
                f"request {request.request_id} needs {num_new_blocks} blocks: ADMIT with {few} free, WAIT with {many}"
            )
            raise PolicyFault(MONOTONE, told)


def _copied(policy: Policy, method: str, shared: list[Any]) -> Any:
    """A twin in the same state, without the watch; None of a policy that cannot be copied."""
    memo = {id(each): each for each in shared}
    state = {name: value for name, value in vars(policy).items() if name != method}
    twin = object.__new__(type(policy))
    try:
        vars(twin).update(copy.deepcopy(state, memo))
    except TypeError:
        return None
    return twin


class BatchWatch(Watch):
    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        rules = ask(*question)
        if not isinstance(rules, BatchRules):
            raise PolicyFault(ANSWERS, f"{rules!r}; expected BatchRules")
        if not _is_whole(rules.budget_tokens) or rules.budget_tokens < 1:
            raise PolicyFault(BUDGET, f"budget_tokens={rules.budget_tokens!r}; expected a whole number of at least 1")
        if not _is_whole(rules.chunk_limit_tokens) or rules.chunk_limit_tokens < 0:
            limit = rules.chunk_limit_tokens
            raise PolicyFault(ANSWERS, f"chunk_limit_tokens={limit!r}; expected a whole number, 0 for no limit")
        return rules


class AllocationWatch(Watch):
    """On the first question about a request, all that could follow are asked."""

    def __init__(self) -> None:
        self._met: set[Request] = set()

    def check(self, policy: Policy, ask: Callable[..., Any], *question: Any) -> Any:
        request, num_tokens = question
        if request not in self._met:
            self._met.add(request)
            self._ask_ahead(policy, ask, request)
        return self._target(policy, ask, request, num_tokens)

    def _ask_ahead(self, policy: Policy, ask: Callable[..., Any], request: Request) -> None:
        before = 0
        for num_tokens in range(1, request.num_prompt_tokens + request.num_output_tokens):
            target = self._target(policy, ask, request, num_tokens)
            if target < before:
                told = (
                    f"request {request.request_id}: {before} blocks for {num_tokens - 1} tokens, {target} for one more"
                )
                raise PolicyFault(GROWS, told)
            before = target

    def _target(self, policy: Policy, ask: Callable[..., Any], request: Request, num_tokens: int) -> Any:
        target, size = ask(request, num_tokens), policy.env.block_size_tokens
        told = f"request {request.request_id}: {target!r} blocks for {num_tokens} tokens"
        if not _is_whole(target):
            raise PolicyFault(ANSWERS, f"{told}; expected a whole number")
        if target * size < num_tokens:
            raise PolicyFault(ENOUGH, f"{told}, of {size} tokens each; expected at least {-(-num_tokens // size)}")
        return target


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


WATCHES: dict[str, tuple[str, Callable[[], Watch]]] = {
    "leaf": ("rank", LeafWatch),
    "preemption": ("select", PreemptionWatch),
    "queue": ("key", QueueWatch),
    "admission": ("admit", AdmissionWatch),
    "batching": ("compose", BatchWatch),
    "allocation": ("target_blocks", AllocationWatch),
}
"""By kind: the method that decides, and who watches it."""
