"""What prompts begin with: shared texts, in an order. A session's first prompt is that and its own tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traces.generators.blocks import Block, Place, key, number, optional, whole
from traces.generators.distributions import Distribution, counts, distribution, zipf_draws
from traces.generators.streams import Streams
from traces.ragged import IntArray

NO_TEXT = -1
MAX_TEXTS = 10_000_000


class Beginnings(NamedTuple):
    """The texts that each prompt begins with, in order; rows with fewer texts end with NO_TEXT, of 0 tokens."""

    text_id: IntArray  # [num_prompts, most_texts]; equal ids mean equal texts
    num_tokens: IntArray  # likewise

    @property
    def total_tokens(self) -> IntArray:
        total: IntArray = self.num_tokens.sum(axis=1)
        return total

    def take(self, rows: IntArray) -> Beginnings:
        """Those of the given prompts, in the given order."""
        return Beginnings(self.text_id[rows], self.num_tokens[rows])


class Prefix(Block, ABC):
    """A way to begin prompts."""

    @abstractmethod
    def beginnings(self, num_prompts: int, streams: Streams) -> Beginnings:
        """What `num_prompts` prompts begin with."""


@dataclass(frozen=True, kw_only=True)
class NoPrefix(Prefix):
    """Prompts have nothing in common."""

    def beginnings(self, num_prompts: int, streams: Streams) -> Beginnings:
        nothing = np.zeros((num_prompts, 0), dtype=np.int64)
        return Beginnings(nothing, nothing)


@dataclass(frozen=True, kw_only=True)
class SystemPrompts(Prefix):
    """One of `count` system prompts; the k-th most popular is as likely as k ** -zipf."""

    count: int = key(whole(least=1, most=MAX_TEXTS))
    tokens: Distribution = key(distribution)
    zipf: float = key(number(least=0, most=10), 1.0)

    def beginnings(self, num_prompts: int, streams: Streams) -> Beginnings:
        tokens = counts(self.tokens, self.count, streams.of("prefix.tokens"))
        chosen = zipf_draws(self.count, self.zipf, num_prompts, streams.of("prefix.chosen"))[:, None]
        return Beginnings(chosen, tokens[chosen])


@dataclass(frozen=True, kw_only=True)
class FewShot(Prefix):
    """An instruction and its first few examples: prompts of one template share as many examples as the shorter has."""

    templates: int = key(whole(least=1, most=10_000))
    instruction_tokens: Distribution = key(distribution)
    example_tokens: Distribution = key(distribution)
    max_examples: int = key(whole(least=1, most=1000))
    examples: Distribution = key(distribution)  # in a prompt
    zipf: float = key(number(least=0, most=10), 1.0)

    def beginnings(self, num_prompts: int, streams: Streams) -> Beginnings:
        width = 1 + self.max_examples
        tokens = np.empty((self.templates, width), dtype=np.int64)
        tokens[:, 0] = counts(self.instruction_tokens, self.templates, streams.of("prefix.tokens"))
        num_examples = self.templates * self.max_examples
        tokens[:, 1:] = counts(self.example_tokens, num_examples, streams.of("prefix.examples")).reshape(
            self.templates, self.max_examples
        )
        template = zipf_draws(self.templates, self.zipf, num_prompts, streams.of("prefix.chosen"))
        shots = np.rint(self.examples.draws(num_prompts, streams.of("prefix.shots")))
        is_there = np.arange(width) <= np.minimum(shots, self.max_examples)[:, None]
        text_id = template[:, None] * width + np.arange(width)
        return Beginnings(np.where(is_there, text_id, NO_TEXT), np.where(is_there, tokens[template], 0))


@dataclass(frozen=True, kw_only=True)
class Rag(Prefix):
    """A system prompt that all share, then retrieved documents, each at most once, some more popular than others.

    Their order is as retrieved: only prompts that begin with the same documents in the same order share them.
    """

    documents: int = key(whole(least=1, most=MAX_TEXTS))
    document_tokens: Distribution = key(distribution)
    documents_per_prompt: int = key(whole(least=1, most=100), 1)
    zipf: float = key(number(least=0, most=10), 1.0)
    system_tokens: int | None = key(optional(whole(least=1)), None)

    def check(self, place: Place) -> None:
        if self.documents_per_prompt * 2 > self.documents + 1:
            expected = f"at least {self.documents_per_prompt * 2 - 1}, to draw {self.documents_per_prompt} of them"
            raise place.of("documents").refusal(self.documents, expected)

    def beginnings(self, num_prompts: int, streams: Streams) -> Beginnings:
        tokens = counts(self.document_tokens, self.documents, streams.of("prefix.tokens"))
        chosen = self._chosen(num_prompts, streams.of("prefix.chosen"))
        if self.system_tokens is None:
            return Beginnings(chosen, tokens[chosen])
        system = np.full((num_prompts, 1), self.documents)
        system_tokens = np.full((num_prompts, 1), self.system_tokens)
        return Beginnings(np.hstack((system, chosen)), np.hstack((system_tokens, tokens[chosen])))

    def _chosen(self, num_prompts: int, rng: np.random.Generator) -> IntArray:
        """`[num_prompts, documents_per_prompt]` documents; a repeated one is drawn again until it is none."""
        chosen = np.empty((num_prompts, self.documents_per_prompt), dtype=np.int64)
        for place in range(self.documents_per_prompt):
            rows = np.arange(num_prompts)
            while len(rows):
                chosen[rows, place] = zipf_draws(self.documents, self.zipf, len(rows), rng)
                rows = rows[(chosen[rows, :place] == chosen[rows, place][:, None]).any(axis=1)]
        return chosen


@dataclass(frozen=True, kw_only=True)
class AgentTools(Prefix):
    """A system prompt that all agents share, then the tool definitions of one of `toolsets` kinds of agent."""

    system_tokens: int = key(whole(least=1))
    toolsets: int = key(whole(least=1, most=MAX_TEXTS))
    tools_tokens: Distribution = key(distribution)
    zipf: float = key(number(least=0, most=10), 1.0)

    def beginnings(self, num_prompts: int, streams: Streams) -> Beginnings:
        tokens = np.append(counts(self.tools_tokens, self.toolsets, streams.of("prefix.tokens")), self.system_tokens)
        chosen = zipf_draws(self.toolsets, self.zipf, num_prompts, streams.of("prefix.chosen"))
        text_id = np.column_stack((np.full(num_prompts, self.toolsets), chosen))
        return Beginnings(text_id, tokens[text_id])


PREFIXES: dict[str, type[Prefix]] = {
    "none": NoPrefix,
    "system_prompts": SystemPrompts,
    "few_shot": FewShot,
    "rag": Rag,
    "agent_tools": AgentTools,
}


class Shared(NamedTuple):
    """For every prompt an earlier one that begins alike, and with how many tokens; -1 and 0 where there is none."""

    row: IntArray
    num_tokens: IntArray


def first_alike(beginnings: Beginnings) -> Shared:
    """The first prompt that shares the most texts with each one. O(prompts * texts * log prompts)."""
    num_prompts, most_texts = beginnings.text_id.shape
    row, shared_tokens = np.full(num_prompts, -1), np.zeros(num_prompts, dtype=np.int64)
    path = np.zeros(num_prompts, dtype=np.int64)  # the texts so far, numbered
    so_far = np.zeros(num_prompts, dtype=np.int64)
    for depth in range(most_texts):
        text = beginnings.text_id[:, depth]
        _, first, path = np.unique(path * (text.max(initial=0) + 2) + text + 1, return_index=True, return_inverse=True)
        so_far = so_far + beginnings.num_tokens[:, depth]
        is_shared = (first[path] < np.arange(num_prompts)) & (text != NO_TEXT)
        row, shared_tokens = np.where(is_shared, first[path], row), np.where(is_shared, so_far, shared_tokens)
    return Shared(row, shared_tokens)
