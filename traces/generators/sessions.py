"""How one request leads to the next: not at all, turn by turn, step by step, or branch by branch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traces.generators.blocks import Block, Place, key, number, optional, whole
from traces.generators.distributions import Distribution, Exponential, FloatArray, Geometric, counts, distribution
from traces.generators.streams import Streams
from traces.ragged import IntArray

MAX_SESSION_REQUESTS = 1_000_000


class Shapes(NamedTuple):
    """The requests of sessions, session by session, a parent before its children."""

    session: IntArray  # [num_requests]
    parent: IntArray  # an earlier request, -1: the session's first
    level: IntArray  # how many requests precede it on the way from the first


class Sessions(Block, ABC):
    """A way in which requests follow each other."""

    @property
    @abstractmethod
    def repeats_output(self) -> bool:
        """Whether a prompt holds the output of its parent beside the parent's prompt."""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Prompts that would get longer are left out, and so is what would follow them."""
        return None

    @abstractmethod
    def shapes(self, num_requests: int, streams: Streams) -> Shapes:
        """As many sessions as it takes for `num_requests` requests; the last one is whole."""

    @abstractmethod
    def added_tokens(self, num_requests: int, streams: Streams) -> IntArray:
        """Tokens that later requests of a session add, their parent's output aside."""

    @abstractmethod
    def think_s(self, num_requests: int, streams: Streams) -> FloatArray:
        """Seconds from the end of the parent to each of `num_requests` later requests."""


@dataclass(frozen=True, kw_only=True)
class Single(Sessions):
    """Every request stands for itself."""

    repeats_output = False

    def shapes(self, num_requests: int, streams: Streams) -> Shapes:
        alone = np.arange(num_requests)
        return Shapes(alone, np.full(num_requests, -1), np.zeros(num_requests, dtype=np.int64))

    def added_tokens(self, num_requests: int, streams: Streams) -> IntArray:
        return np.ones(num_requests, dtype=np.int64)

    def think_s(self, num_requests: int, streams: Streams) -> FloatArray:
        return np.zeros(num_requests)


class Chain(Sessions):
    """One request after the other; each prompt is the whole conversation so far and something new."""

    repeats_output = True

    def shapes(self, num_requests: int, streams: Streams) -> Shapes:
        lengths = np.minimum(counts(self.lengths, num_requests, streams.of("sessions.lengths")), MAX_SESSION_REQUESTS)
        num_sessions = int(np.searchsorted(np.cumsum(lengths), num_requests)) + 1
        lengths = lengths[:num_sessions]
        ends = np.cumsum(lengths)
        level = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        parent = np.where(level > 0, np.arange(ends[-1]) - 1, -1)
        return Shapes(np.repeat(np.arange(num_sessions), lengths), parent, level)

    @property
    @abstractmethod
    def lengths(self) -> Distribution:
        """Requests in a session."""


@dataclass(frozen=True, kw_only=True)
class MultiTurn(Chain):
    """A chat: the user reads the answer, thinks, and says something new (`turn_tokens`)."""

    turns: Distribution = key(distribution, Geometric(mean=3))
    turn_tokens: Distribution = key(distribution)
    think_time_s: Distribution = key(distribution, Exponential(mean=30))
    max_prompt_tokens: int | None = key(optional(whole(least=1)), None)

    @property
    def lengths(self) -> Distribution:
        return self.turns

    def added_tokens(self, num_requests: int, streams: Streams) -> IntArray:
        return counts(self.turn_tokens, num_requests, streams.of("sessions.added"))

    def think_s(self, num_requests: int, streams: Streams) -> FloatArray:
        return self.think_time_s.draws(num_requests, streams.of("sessions.think"))


@dataclass(frozen=True, kw_only=True)
class AgentLoops(Chain):
    """An agent: each output calls a tool, whose result comes after the tool's time and joins the context.

    With `user_ratio`, so many of the steps come from the user instead, after `user_time_s`.
    """

    steps: Distribution = key(distribution)
    tool_result_tokens: Distribution = key(distribution)
    tool_time_s: Distribution = key(distribution)
    user_ratio: float = key(number(least=0, most=1), 0.0)
    user_time_s: Distribution = key(distribution, Exponential(mean=60))
    max_prompt_tokens: int | None = key(optional(whole(least=1)), None)

    @property
    def lengths(self) -> Distribution:
        return self.steps

    def added_tokens(self, num_requests: int, streams: Streams) -> IntArray:
        return counts(self.tool_result_tokens, num_requests, streams.of("sessions.added"))

    def think_s(self, num_requests: int, streams: Streams) -> FloatArray:
        tool_s = self.tool_time_s.draws(num_requests, streams.of("sessions.think"))
        user_s = self.user_time_s.draws(num_requests, streams.of("sessions.user"))
        return np.where(streams.of("sessions.who").random(num_requests) < self.user_ratio, user_s, tool_s)


@dataclass(frozen=True, kw_only=True)
class TreeOfThought(Sessions):
    """A search (Yao et al. 2023): `branching` thoughts follow each one, `depth` levels below the problem.

    A prompt is its parent's and one more thought. All children start when their parent has ended.
    """

    repeats_output = False

    branching: int = key(whole(least=1, most=64))
    depth: int = key(whole(least=1, most=30))
    thought_tokens: Distribution = key(distribution)

    def check(self, place: Place) -> None:
        if self.tree_requests > MAX_SESSION_REQUESTS:
            raise place.of("depth").refusal(self.depth, f"a tree of at most {MAX_SESSION_REQUESTS} requests")

    @property
    def tree_requests(self) -> int:
        return sum(self.branching**level for level in range(self.depth + 1))

    def shapes(self, num_requests: int, streams: Streams) -> Shapes:
        num_sessions = -(-num_requests // self.tree_requests)
        node = np.arange(self.tree_requests)  # level by level
        parent = np.where(node > 0, (node - 1) // self.branching, -1)
        level = np.repeat(np.arange(self.depth + 1), [self.branching**level for level in range(self.depth + 1)])
        first = np.arange(num_sessions)[:, None] * self.tree_requests
        parents = np.where(parent >= 0, first + parent, -1)
        return Shapes(
            np.repeat(np.arange(num_sessions), self.tree_requests), parents.ravel(), np.tile(level, num_sessions)
        )

    def added_tokens(self, num_requests: int, streams: Streams) -> IntArray:
        return counts(self.thought_tokens, num_requests, streams.of("sessions.added"))

    def think_s(self, num_requests: int, streams: Streams) -> FloatArray:
        return np.zeros(num_requests)


SESSIONS: dict[str, type[Sessions]] = {
    "single": Single,
    "multi_turn": MultiTurn,
    "agent_loops": AgentLoops,
    "tree_of_thought": TreeOfThought,
}
