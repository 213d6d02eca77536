"""Small seeded traces of three kinds, whose prompts are passages of one shared text (samples/corpus.txt).

A prompt is a list of segments, so a shared prefix is a run of equal segments. What is meant to differ starts elsewhere
in the text. One seed gives the same trace on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from core.errors import InputError
from traces.passages import Passages, Segment
from traces.quantiles import Quantiles
from traces.schema import IntArray, Ragged, Trace

PS_PER_US = 10**6
PS_PER_S = 10**12
LICENCE = "Apache-2.0; prompts are passages of Shakespeare's plays (public domain), see samples/README.md"

# Fitted to AzureLLMInferenceTrace_conv.csv (November 2023; Microsoft Azure Public Dataset, CC-BY-4.0; Splitwise, ISCA
# 2024). Prompt and output length are hardly correlated there (rank correlation 0.07): they are drawn independently.
PROBABILITIES = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1)
CHAT_PROMPT_TOKENS = Quantiles(
    PROBABILITIES, (2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4098, 4142, 4831, 14050)
)
CHAT_OUTPUT_TOKENS = Quantiles(
    PROBABILITIES, (7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 540, 601, 643, 1000)
)
CHAT_GAP_US = Quantiles(
    PROBABILITIES,
    (
        2,
        546,
        6320,
        16144,
        36519,
        60723,
        87254,
        118424,
        158680,
        213606,
        288826,
        420656,
        565194,
        749268,
        889671,
        1034205,
        4314579,
    ),
)

# Not fitted to anything: round figures of the kind that agent and document workloads have.
EXPONENTIAL_PERMILLE = Quantiles((0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1), (0, 105, 288, 693, 1386, 2303, 3507, 6000))
AGENT_TASK_TOKENS = Quantiles((0, 0.5, 1), (40, 120, 400))
AGENT_TOOL_RESULT_TOKENS = Quantiles((0, 0.5, 0.9, 1), (60, 250, 600, 700))
AGENT_OUTPUT_TOKENS = Quantiles((0, 0.5, 0.9, 1), (20, 80, 180, 240))
AGENT_NUM_TURNS = Quantiles((0, 1), (3, 7))
AGENT_TOOLS_TOKENS = (500, 620, 750, 900)  # tool definitions of each kind of agent
DOCUMENT_TOKENS = Quantiles((0, 1), (4000, 8000))
QUESTION_TOKENS = Quantiles((0, 0.5, 1), (12, 40, 120))
ANSWER_TOKENS = Quantiles((0, 0.5, 1), (30, 120, 300))
SYSTEM_PROMPT_TOKENS = 512
CHAT_SYSTEM_PROMPT_TOKENS = 160
CHAT_SYSTEM_PROMPT_RATIO = 0.4
AGENT_SERVICE_US_PER_TOKEN = 20_000  # only to date the later turns of a session, which really wait for the turn before


class Request(NamedTuple):
    """One request of a generated trace; `parent` is an index into the requests before sorting."""

    arrival_ps: int
    prompt: list[Segment]
    output: Segment
    session_id: int = -1
    parent: int = -1
    think_time_ps: int = -1


def chat(num_requests: int, seed: int) -> Trace:
    """Single-turn chat, lengths and gaps as in the Azure conversation trace; some prompts share a system prompt."""
    _require_positive("num_requests", num_requests)
    rng = random.Random(seed)
    passages = Passages(rng)
    system_prompt = passages.take(CHAT_SYSTEM_PROMPT_TOKENS)
    gaps_us = CHAT_GAP_US.draws(num_requests - 1, rng)
    arrivals_us = accumulate(gaps_us, initial=0)
    prompts = CHAT_PROMPT_TOKENS.draws(num_requests, rng)
    outputs = CHAT_OUTPUT_TOKENS.draws(num_requests, rng)
    requests = []
    for arrival_us, num_prompt_tokens, num_output_tokens in zip(arrivals_us, prompts, outputs, strict=True):
        has_system_prompt = rng.random() < CHAT_SYSTEM_PROMPT_RATIO and num_prompt_tokens > CHAT_SYSTEM_PROMPT_TOKENS
        prefix = [system_prompt] if has_system_prompt else []
        num_user_tokens = num_prompt_tokens - sum(segment.num_tokens for segment in prefix)
        user = passages.take(num_user_tokens, followed_by=num_output_tokens)
        requests.append(Request(arrival_us * PS_PER_US, [*prefix, user], _continuation(user, num_output_tokens)))
    return _trace("chat", requests)


def agent_sessions(num_sessions: int, seed: int) -> Trace:
    """Tool-using sessions: a system prompt shared by all, tool definitions shared by a kind, then the turns.

    Each turn repeats the whole conversation and adds a part. A later turn comes its think time after the end of the
    turn before; the arrival noted for it assumes a nominal service time.
    """
    _require_positive("num_sessions", num_sessions)
    rng = random.Random(seed)
    passages = Passages(rng)
    system_prompt = passages.take(SYSTEM_PROMPT_TOKENS)
    tools = [passages.take(num_tokens) for num_tokens in AGENT_TOOLS_TOKENS]
    starts_ps = _arrivals_ps(num_sessions, 2.0, rng)
    turns = AGENT_NUM_TURNS.draws(num_sessions, rng)
    requests: list[Request] = []
    for session_id, (start_ps, num_turns) in enumerate(zip(starts_ps, turns, strict=True)):
        prefix = [system_prompt, rng.choice(tools)]
        for turn, request in enumerate(_turns(prefix, start_ps, num_turns, passages, rng)):
            parent = len(requests) - 1 if turn else -1
            requests.append(request._replace(session_id=session_id, parent=parent))
    return _trace("agent_sessions", requests)


def long_documents(num_documents: int, num_questions: int, seed: int) -> Trace:
    """Questions about shared long documents, some more popular than others; a prompt is a document and a question."""
    _require_positive("num_documents", num_documents)
    _require_positive("num_questions", num_questions)
    rng = random.Random(seed)
    passages = Passages(rng)
    documents = [passages.take(num_tokens) for num_tokens in DOCUMENT_TOKENS.draws(num_documents, rng)]
    popularity = [1 / (rank + 2) for rank in range(num_documents)]
    requests = []
    for arrival_ps, num_question_tokens, num_answer_tokens in zip(
        _arrivals_ps(num_questions, 1.5, rng),
        QUESTION_TOKENS.draws(num_questions, rng),
        ANSWER_TOKENS.draws(num_questions, rng),
        strict=True,
    ):
        document = rng.choices(documents, popularity)[0]
        question = passages.take(num_question_tokens, followed_by=num_answer_tokens)
        requests.append(Request(arrival_ps, [document, question], _continuation(question, num_answer_tokens)))
    return _trace("long_documents", requests)


def _turns(
    prefix: list[Segment], start_ps: int, num_turns: int, passages: Passages, rng: random.Random
) -> Iterator[Request]:
    conversation = list(prefix)
    arrival_ps, think_time_ps = start_ps, -1
    for turn in range(num_turns):
        lengths = AGENT_TOOL_RESULT_TOKENS if turn else AGENT_TASK_TOKENS
        num_output_tokens = AGENT_OUTPUT_TOKENS.at(rng.random())
        part = passages.take(lengths.at(rng.random()), followed_by=num_output_tokens)
        output = _continuation(part, num_output_tokens)
        conversation.append(part)
        yield Request(arrival_ps, list(conversation), output, think_time_ps=think_time_ps)
        conversation.append(output)
        think_time_ps = EXPONENTIAL_PERMILLE.at(rng.random()) * 2 * PS_PER_S // 1000
        arrival_ps += num_output_tokens * AGENT_SERVICE_US_PER_TOKEN * PS_PER_US + think_time_ps


def _continuation(segment: Segment, num_tokens: int) -> Segment:
    """The text that follows a passage: what the model is made to answer."""
    return Segment(segment.start_token + segment.num_tokens, num_tokens)


def _arrivals_ps(num_arrivals: int, mean_gap_s: float, rng: random.Random) -> list[int]:
    gaps = EXPONENTIAL_PERMILLE.draws(num_arrivals - 1, rng)
    return list(accumulate((round(gap * mean_gap_s) * PS_PER_S // 1000 for gap in gaps), initial=0))


def _require_positive(what: str, count: int) -> None:
    if count < 1:
        raise InputError(f"{what}={count}; expected at least 1")


def _trace(name: str, requests: list[Request]) -> Trace:
    trace = Trace(
        name=name,
        arrival_ps=_column([request.arrival_ps for request in requests]),
        num_prompt_tokens=_column([sum(part.num_tokens for part in request.prompt) for request in requests]),
        num_output_tokens=_column([request.output.num_tokens for request in requests]),
        prompt_segments=Ragged.of_segments([request.prompt for request in requests]),
        output_segments=Ragged.of_segments([[request.output] for request in requests]),
        licence=LICENCE,
    )
    if requests[0].session_id >= 0:
        trace = replace(
            trace,
            session_id=_column([request.session_id for request in requests]),
            parent=_column([request.parent for request in requests]),
            think_time_ps=_column([request.think_time_ps for request in requests]),
        )
    return trace.sorted_by_arrival()


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
