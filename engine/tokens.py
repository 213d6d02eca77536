"""The tokens of every sequence: prompts from the trace, outputs as they are sampled or forced."""

from __future__ import annotations

from copy import copy
from itertools import count, takewhile
from typing import Protocol

import numpy as np

from core.errors import InputError
from core.request import Request, Sequence
from engine.output_mode import OutputMode


class PromptTokens(Protocol):
    """Where prompts come from: filled by whoever knows the trace and the tokenizer."""

    def prompt_tokens(self, request_id: int) -> np.ndarray:
        """The prompt's token ids, int64 [num_prompt_tokens]."""

    def recorded_output_tokens(self, request_id: int) -> np.ndarray | None:
        """The output's token ids as recorded, int64 [at least num_output_tokens]; None where the trace has none."""


class SequenceTokens:
    """Prompt and outputs of one sample of a request, in one array with room for its last output."""

    __slots__ = ("_ids", "is_forced", "num_known", "num_prompt", "score")

    def __init__(self, prompt: np.ndarray, num_output_tokens: int, forced: np.ndarray | None) -> None:
        self.num_prompt = len(prompt)
        self.num_known = len(prompt)
        self._ids = np.empty(len(prompt) + num_output_tokens, dtype=np.int64)
        self._ids[: len(prompt)] = prompt
        self.is_forced = forced is not None
        if forced is not None:
            self._ids[len(prompt) :] = forced[:num_output_tokens]
        self.score = 0.0  # log probability of the outputs; kept where a request has several samples

    @property
    def known(self) -> np.ndarray:
        """Prompt and outputs so far, int64 [num_known]; a view."""
        return self._ids[: self.num_known]

    def at(self, position: int) -> int:
        """The token at one position; behind the known ones it means something where outputs are forced."""
        token: int = self._ids.item(position)
        return token

    @property
    def outputs(self) -> np.ndarray:
        return self._ids[self.num_prompt : self.num_known]

    @property
    def num_outputs(self) -> int:
        return self.num_known - self.num_prompt

    def copy(self) -> SequenceTokens:
        other = copy(self)
        other._ids = self._ids.copy()
        return other

    def append(self, sampled: int) -> int:
        """Appends the next output, which is the sampled token unless outputs are forced, and returns it."""
        token = self.at(self.num_known) if self.is_forced else sampled
        self._ids[self.num_known] = token
        self.num_known += 1
        return token


class TokenStore:
    """Tokens by (request id, sample), made when a sequence first runs. Preempted ones keep their outputs."""

    def __init__(self, source: PromptTokens, output: OutputMode, max_positions: int) -> None:
        self.output = output
        self._source = source
        self._max_positions = max_positions
        self._tokens: dict[tuple[int, int], SequenceTokens] = {}

    def of(self, sequence: Sequence) -> SequenceTokens:
        """The sequence's tokens. Raises InputError if its request does not fit model, trace or output mode."""
        key = (sequence.request.request_id, sequence.index)
        tokens = self._tokens.get(key)
        if tokens is None:
            tokens = self._tokens[key] = self._begin(sequence.request)
        return tokens

    def scheduled(self, sequence: Sequence) -> SequenceTokens:
        """As `of`, when a step has just been decided: a beam search that begins again forgets its outputs."""
        request = sequence.request
        tokens = self._tokens.get((sequence.request_id, sequence.index)) or self.of(sequence)
        if not request.is_beam_search or tokens.num_outputs <= sequence.num_outputs:
            return tokens
        for index in range(request.num_samples):
            self._tokens.pop((request.request_id, index), None)
        return self.of(sequence)

    def fork(self, parent: Sequence, sequence: Sequence) -> None:
        """From here on `sequence` has the text of `parent`, another sample of its request."""
        self._tokens[sequence.request.request_id, sequence.index] = self.of(parent).copy()

    def request_ids(self) -> list[int]:
        """Those that ran, in order."""
        return sorted({request_id for request_id, _ in self._tokens})

    def ranked(self, request_id: int) -> list[tuple[int, SequenceTokens]]:
        """Its samples, or the beams of a search, by number: the most likely outputs first (best-of is the first)."""
        indices = takewhile(lambda index: (request_id, index) in self._tokens, count())
        samples = [(index, self._tokens[request_id, index]) for index in indices]
        return sorted(samples, key=lambda sample: (-sample[1].score, sample[0]))

    def outputs(self, request_id: int, index: int = 0) -> list[int]:
        """What was produced so far for one sample; empty if it never ran."""
        tokens = self._tokens.get((request_id, index))
        return [] if tokens is None else tokens.outputs.tolist()

    def _begin(self, request: Request) -> SequenceTokens:
        prompt = self._source.prompt_tokens(request.request_id)
        if len(prompt) != request.num_prompt_tokens:
            raise InputError(
                f"request {request.request_id}: {len(prompt)} prompt tokens were made,"
                f" the trace says {request.num_prompt_tokens}"
            )
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        if num_tokens > self._max_positions:
            raise InputError(
                f"request {request.request_id}: {num_tokens} tokens exceed the model's {self._max_positions} positions;"
                " set scheduler.max_model_len"
            )
        return SequenceTokens(prompt, request.num_output_tokens, self.output.forced(request, self._source))
