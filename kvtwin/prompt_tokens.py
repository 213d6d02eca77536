"""The tokens behind a trace's rows, for an engine that runs a model on them."""

from __future__ import annotations

import numpy as np

from core.errors import InputError
from traces.samples import corpus_path
from traces.schema import IntArray, Trace
from traces.tokens import HashTokens, segment_tokens

_STRIDE = 7919  # a prime, so that rows without content of their own start at scattered places of the text


class TraceTokens:
    """Prompts and recorded outputs of a trace's rows, as token ids of one model.

    Rows with block hashes get ids that share exactly as the hashes do; rows with segments get the words they point at;
    rows that say nothing of their content get a stretch of the same text, which no cache takes for shared.
    `corpus_tokens` is the bundled text in the model's tokens.
    """

    def __init__(self, trace: Trace, corpus_tokens: IntArray, vocab_size: int) -> None:
        self._trace = trace
        self._corpus_tokens = corpus_tokens
        self._hash_tokens = HashTokens(trace, vocab_size) if trace.hash_ids is not None else None

    def prompt_tokens(self, request_id: int) -> IntArray:
        """int64 [num_prompt_tokens]."""
        if self._hash_tokens is not None:
            return self._hash_tokens.prompt_tokens(request_id)
        if self._trace.prompt_segments is not None:
            return segment_tokens(self._corpus_tokens, self._trace.prompt_segments.row(request_id))
        num_tokens = int(self._trace.num_prompt_tokens[request_id])
        places = (request_id * _STRIDE + np.arange(num_tokens)) % len(self._corpus_tokens)
        return np.asarray(self._corpus_tokens[places], dtype=np.int64)

    def recorded_output_tokens(self, request_id: int) -> IntArray | None:
        """int64 [num_output_tokens], or None where the trace did not record the answer."""
        if self._trace.output_segments is None:
            return None
        return segment_tokens(self._corpus_tokens, self._trace.output_segments.row(request_id))


def corpus_text() -> str:
    """The bundled text that prompts are taken from."""
    try:
        return corpus_path().read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{corpus_path()}: {error.strerror}; the installation is damaged, reinstall kvtwin") from None
