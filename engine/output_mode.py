"""Whose tokens a request produces, and when it ends: `engine.output=forced_tokens | forced_length | eos`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

import numpy as np

from core.errors import InputError
from core.request import Request

if TYPE_CHECKING:
    from engine.tokens import PromptTokens


class OutputMode(ABC):
    """Every mode ends a request at the trace's number of output tokens at the latest."""

    @abstractmethod
    def forced(self, request: Request, source: PromptTokens) -> np.ndarray | None:
        """The tokens to produce whatever the model says, int64 [at least num_output_tokens]; None: the model's own.

        Raises InputError if the request cannot be run in this mode.
        """

    def stopping(self, token_ids: SequenceOf[int]) -> SequenceOf[int]:
        """Places of those tokens that end their sequence although its length is not reached."""
        return ()


class ForcedTokens(OutputMode):
    """The recorded outputs, so that the next turn of a session finds the KV of its prompt."""

    def forced(self, request: Request, source: PromptTokens) -> np.ndarray:
        if request.is_beam_search:
            raise InputError(
                f"engine.output=forced_tokens: request {request.request_id} is a beam search, which finds its own"
                " tokens; use forced_length"
            )
        recorded = source.recorded_output_tokens(request.request_id)
        if recorded is None or len(recorded) < request.num_output_tokens:
            found = "none" if recorded is None else len(recorded)
            raise InputError(
                f"engine.output=forced_tokens: request {request.request_id} wants {request.num_output_tokens} recorded"
                f" output tokens, the trace has {found}; use forced_length"
            )
        return recorded


class ForcedLength(OutputMode):
    """The model's own tokens, as many as the trace says.

    Block keys of the trace must then cover the prompt alone: its recorded outputs are not what the KV holds.
    """

    def forced(self, request: Request, source: PromptTokens) -> None:
        return None


class EndOfSequence(OutputMode):
    """The model's own tokens up to an end-of-sequence token. Block keys: as in ForcedLength."""

    def __init__(self, eos_ids: frozenset[int]) -> None:
        self._eos_ids = eos_ids

    def forced(self, request: Request, source: PromptTokens) -> None:
        if request.num_samples > 1 or request.is_beam_search:
            raise InputError(
                f"engine.output=eos: request {request.request_id} has {request.num_samples} samples, which may not end"
                " apart; use forced_length"
            )

    def stopping(self, token_ids: SequenceOf[int]) -> SequenceOf[int]:
        return [place for place, token_id in enumerate(token_ids) if token_id in self._eos_ids]
