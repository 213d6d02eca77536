"""ShareGPT, JSON: a list of conversations as text, without any times.

A conversation is a session: every answer of the model is a request whose prompt is all that was said before it (no chat
template is added) and whose output is the answer. The next turn comes at once after the answer. All conversations
arrive at 0: replay them with `trace.arrivals=closed_loop`, or one after the other. The bench tools take the first pair
of each conversation only, and drop very short and very long ones; here all are kept.

Messages become tokens one by one, so that what a turn repeats of the turns before it is the same tokens. Prompts share
blocks of 16 tokens, unless the caller says otherwise, across conversations, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.errors import InputError
from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.block_ids import NewIds, hash_column
from traces.readers.chains import Chain, Link, link_columns
from traces.readers.documents import json_document, names, object_at
from traces.readers.fields import num_tokens
from traces.readers.source import Head, Source
from traces.readers.texts import TEXT_BLOCK_TOKENS, Encode, encoded, tokenizer_for
from traces.schema import IntArray, Ragged, Trace

NAME = "sharegpt"
DESCRIPTION = "a JSON list of conversations (from, value); needs trace.tokenizer"
_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")


def recognises(head: Head) -> bool:
    """Whether a file starts like a list of conversations."""
    return names(head, "[", "conversations")


def read(
    source: Source, bad_rows: BadRows, *, hash_block_tokens: int | None = None, encode: Encode | None = None
) -> Trace:
    """Read the conversations; `encode` makes tokens of their text."""
    block_tokens = hash_block_tokens or TEXT_BLOCK_TOKENS
    turns = list(_Reader(source, bad_rows, block_tokens, tokenizer_for(source, encode)))
    require_rows(source, len(turns), bad_rows)
    return Trace(
        name=source.name,
        arrival_ps=np.zeros(len(turns), dtype=np.int64),
        num_prompt_tokens=np.array([turn.num_prompt_tokens for turn in turns], dtype=np.int64),
        num_output_tokens=np.array([turn.num_output_tokens for turn in turns], dtype=np.int64),
        hash_block_tokens=block_tokens,
        hash_ids=hash_column(Ragged.of_arrays([turn.block_ids for turn in turns])),
        session_id=np.array([turn.session for turn in turns], dtype=np.int64),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        **link_columns([turn.link for turn in turns]),  # type: ignore[arg-type]  # two of the columns
    )


class _Turn(NamedTuple):
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: IntArray
    session: int
    link: Link


class _Reader:
    """Iterates over the requests of all conversations."""

    def __init__(self, source: Source, bad_rows: BadRows, block_tokens: int, encode: Encode) -> None:
        self._source = source
        self._bad_rows = bad_rows
        self._block_tokens = block_tokens
        self._encode = encode
        self._new_ids = NewIds()
        self._num_turns = 0

    def __iter__(self) -> Iterator[_Turn]:
        document = json_document(self._source)
        if not isinstance(document, list):
            raise InputError(f"{self._source.path}: expected a list of conversations")
        for session, conversation in enumerate(document):
            try:
                messages = _messages(f"[{session}]", conversation)
            except BadRow as bad:
                self._bad_rows.handle(self._source, None, bad)
                continue
            yield from self._conversation(session, messages)

    def _conversation(self, session: int, messages: Sequence[Any]) -> Iterator[_Turn]:
        chain = Chain()
        said: list[int] = []  # tokens so far
        whole_ids: list[int] = []  # of the whole blocks so far
        is_answer = False
        for index, message in enumerate(messages):
            place = f"[{session}].conversations[{index}]"
            try:
                is_answer, tokens = self._message(place, message)
                if is_answer:
                    yield self._turn(place, session, said, whole_ids, len(tokens), chain)
                    chain.keep(self._num_turns)
                    self._num_turns += 1
            except BadRow as bad:
                self._bad_rows.handle(self._source, None, bad)
                continue
            said += tokens
            whole = len(said) // self._block_tokens * self._block_tokens
            new = said[len(whole_ids) * self._block_tokens : whole]
            whole_ids += self._new_ids.of_tokens(new, self._block_tokens).tolist()
        if messages and not is_answer:
            place = f"[{session}].conversations"
            unanswered = BadRow("no_answer", place, f"{len(messages)} messages", "an answer to the last of them")
            self._bad_rows.handle(self._source, None, unanswered)

    def _message(self, place: str, message: object) -> tuple[bool, Sequence[int]]:
        values = object_at(place, message)
        return values.get("from") in _ANSWERS, encoded(f"{place}.value", values.get("value"), self._encode)

    def _turn(
        self, place: str, session: int, said: list[int], whole_ids: list[int], num_answer_tokens: int, chain: Chain
    ) -> _Turn:
        num_tokens(place, len(said), "prompt")
        num_tokens(place, num_answer_tokens, "output")
        rest = said[len(whole_ids) * self._block_tokens :]
        ids = np.concatenate((np.array(whole_ids, dtype=np.int64), self._new_ids.of_tokens(rest, self._block_tokens)))
        return _Turn(len(said), num_answer_tokens, ids, session, chain.link(0))


def _messages(place: str, conversation: object) -> list[Any]:
    messages = object_at(place, conversation).get("conversations")
    if not isinstance(messages, list) or not messages:
        raise BadRow("no_turn", f"{place}.conversations", messages, "a list of messages (from, value)")
    return messages
