"""Cached against uncached generation with a real model: the same tokens, and how much sooner they are there."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.errors import InputError
from engine.batch import BatchItem, build_batch
from engine.kv_cache import allocate_kv
from kvtwin.arguments import Arguments, count
from kvtwin.binding import instantiate_one
from kvtwin.composition import compose_config
from kvtwin.demonstrations.demonstration import Curve, Demonstration, fitted_line
from kvtwin.engine_setup import load_model
from kvtwin.formatting import count_text, seconds_text
from kvtwin.prompt_tokens import corpus_text

_BLOCK_SIZE = 16
_NUM_PROMPT = 16
_FIRST_TOKEN = 2000  # of the bundled text: in the midst of a scene


def add_options(parser: Arguments) -> None:
    parser.add_argument("--model", default="smollm2_135m", metavar="NAME", help="a shape; default smollm2_135m")
    parser.add_argument("--steps", type=count, default=200, metavar="N", help="tokens to generate; default 200")
    parser.add_argument("--points", type=count, default=20, metavar="N", help="positions measured uncached; 20")
    parser.add_argument("--rounds", type=count, default=6, metavar="N", help="over these, of which the least counts; 6")


def measure(options: Namespace) -> Demonstration:
    """Raises InputError for more tokens than the model has positions, and for too few to draw a line through."""
    if min(options.steps, options.points) < 2:
        raise InputError(f"--steps {options.steps} --points {options.points}: expected at least 2 of both")
    torch.set_num_threads(1)
    config = compose_config("engine", [f"model={options.model}", "engine.dtype=float32"])
    shape = instantiate_one(config.model, "model")
    num_tokens = _NUM_PROMPT + options.steps
    if num_tokens > shape.max_context_tokens:
        raise InputError(
            f"--steps {options.steps}: with a prompt of {_NUM_PROMPT}, {shape.name} has {shape.max_context_tokens} "
            "positions; expected fewer"
        )
    if len(shape.kv_groups()) > 1:
        raise InputError(f"--model {options.model}: has several KV groups; expected a model of full attention")
    model = load_model(config, shape)
    prompt = model.codec.encode_corpus(corpus_text())[_FIRST_TOKEN : _FIRST_TOKEN + _NUM_PROMPT]
    found = _generate(model.decoder, prompt, options)
    return _told(shape.name, model.origin, options.steps, found)


@dataclass
class Found:
    """CPU seconds of every token with a cache, and in each round of those at `positions` without."""

    cached_s: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rounds_s: list[list[float]] = field(default_factory=list)
    num_same: int = 0  # of the positions: there the token was the same in every round


class Text:
    """A growing text and the KV memory of it."""

    def __init__(self, decoder: Any, tokens: NDArray[np.int64], num_tokens: int) -> None:
        self.tokens = tokens
        self._decoder = decoder
        self._table = list(range(-(-num_tokens // _BLOCK_SIZE)))
        self._kv = allocate_kv(decoder.shape, len(self._table), _BLOCK_SIZE, decoder.dtype, "cpu")

    def next_token(self, start: int) -> tuple[int, float]:
        """The most likely token after the text, computing all from position `start` on; and its CPU seconds."""
        start_ns = time.process_time_ns()
        batch = build_batch([BatchItem(self.tokens[start:], start, [self._table], True)], _BLOCK_SIZE, "cpu")
        token = int(self._decoder.forward(batch, self._kv).argmax())
        return token, (time.process_time_ns() - start_ns) / 1e9

    def after(self, tokens: NDArray[np.int64]) -> tuple[int, float]:
        """Likewise after this text, none of which counts as computed."""
        self.tokens = tokens
        return self.next_token(0)


def _generate(decoder: Any, prompt: NDArray[np.int64], options: Namespace) -> Found:
    """Token by token with a cache; then, in rounds, the tokens at some positions without: a slow minute of the machine
    falls upon one round of several.
    """
    num_tokens = len(prompt) + options.steps
    cached, uncached = Text(decoder, prompt, num_tokens), Text(decoder, prompt, num_tokens)
    found = Found()
    cached.next_token(0)  # prefill, and whatever a first call has to set up
    for _ in range(options.steps):
        token, spent_s = cached.next_token(len(cached.tokens) - 1)
        found.cached_s.append(spent_s)
        cached.tokens = np.append(cached.tokens, token)
    steps = np.unique(np.linspace(0, options.steps - 1, options.points).round().astype(int))
    found.positions = (len(prompt) + steps).tolist()
    is_same = np.ones(len(steps), dtype=bool)
    for _ in range(options.rounds):
        again = [uncached.after(cached.tokens[:position]) for position in found.positions]
        found.rounds_s.append([spent_s for _, spent_s in again])
        is_same &= cached.tokens[found.positions] == [token for token, _ in again]
    found.num_same = int(is_same.sum())
    return found


def _told(model: str, origin: str, num_steps: int, found: Found) -> Demonstration:
    positions, uncached_s = np.array(found.positions), np.min(found.rounds_s, axis=0)
    every = positions[0] + np.arange(num_steps)
    cached_s = np.array(found.cached_s)
    uncached_total_s = float(np.interp(every, positions, uncached_s).sum())
    speed_up = uncached_total_s / float(cached_s.sum())
    lines = fitted_line(positions, uncached_s), fitted_line(every, cached_s)
    at = positions - positions[0]
    return Demonstration(
        f"{model} ({origin}), {count_text(num_steps)} tokens after a prompt of {_NUM_PROMPT}",
        [
            f"The same token at {found.num_same} of {len(positions)} positions where both were computed.",
            f"Without a cache a token takes {seconds_text(lines[0].slope)} longer at each position (R² of the line "
            f"{lines[0].r_squared:.4f}, least of {len(found.rounds_s)} rounds), with one "
            f"{seconds_text(abs(lines[1].slope))}.",
            f"{count_text(num_steps)} tokens take {seconds_text(float(cached_s.sum()))} of CPU time with a cache and "
            f"{seconds_text(uncached_total_s)} without ({len(positions)} positions measured, straight lines between): "
            f"{speed_up:.1f}x.",
        ],
        ("position", "uncached", "cached", "ratio"),
        [
            [count_text(place), seconds_text(slow), seconds_text(fast), f"{slow / fast:.1f}x"]
            for place, slow, fast in zip(found.positions, uncached_s, cached_s[at], strict=True)
        ],
        [
            Curve("uncached", found.positions, uncached_s.tolist()),
            Curve("cached", every.tolist(), found.cached_s),
        ],
        "position (tokens)",
        "CPU time of a token (s)",
        {
            "model": model,
            "weights": origin,
            "num_steps": num_steps,
            "num_same_tokens": found.num_same,
            "positions": found.positions,
            "uncached_s": uncached_s.tolist(),
            "cached_s": found.cached_s,
            "uncached_total_s": uncached_total_s,
            "cached_total_s": float(cached_s.sum()),
            "speed_up": speed_up,
            "uncached_r_squared": lines[0].r_squared,
        },
    )
