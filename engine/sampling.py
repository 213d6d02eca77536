"""The next token of every row: greedy, or drawn at a temperature from a stream that no batch composition disturbs."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_BLOCK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Sampled:
    """token_ids: int64 [num_rows]; margins: fp32 [num_rows], best logit minus second best (small: a near-tie)."""

    token_ids: Tensor
    margins: Tensor


def sample(logits: Tensor, temperature: float, uniform: Tensor, top_k: int = 0, top_p: float = 1.0) -> Sampled:
    """One token per row of logits [num_rows, vocab_size].

    temperature: 0 takes the best token (the lowest id of equals); uniform: fp64 [num_rows] in [0, 1), by which the
    others are drawn, see `uniform_draws`; top_k, top_p: what may be drawn, as in `most_likely`.
    A row's token depends on its uniform number and its logits alone.
    """
    greedy = best(logits)
    if temperature == 0:
        return greedy
    scaled_logits = most_likely(logits.double() / temperature, top_k, top_p)
    return Sampled(_inverse_cdf(scaled_logits, uniform), greedy.margins)


def best(logits: Tensor) -> Sampled:
    """The greatest of each row of logits [num_rows, vocab_size], the lowest id of equals: temperature 0.

    By blocks of the vocabulary: on a CPU torch finds a maximum ten times as fast as a maximum's place.
    """
    vocab_size = logits.shape[1]
    width = min(_BLOCK_TOKENS, vocab_size)
    end = vocab_size - vocab_size % width
    maxima = logits.narrow(1, 0, end).view(len(logits), end // width, width).amax(dim=2)
    if end < vocab_size:
        maxima = torch.cat([maxima, logits[:, end:].amax(dim=1, keepdim=True)], dim=1)
    block = maxima.argmax(dim=1, keepdim=True)
    first = (block * width).clamp_(max=vocab_size - width)  # what lies before the last block does no harm
    candidates = logits.gather(1, first + torch.arange(width, device=logits.device))
    greatest, place = candidates.max(dim=1, keepdim=True)
    others = maxima.scatter_(1, block, -torch.inf).amax(dim=1)
    others = others.maximum(candidates.scatter_(1, place, -torch.inf).amax(dim=1))
    return Sampled((first + place).squeeze(1), greatest.squeeze(1) - others)


def most_likely(scaled_logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """The logits [num_rows, vocab_size], at -inf for all but the most likely tokens of each row; of equals the lowest
    ids come first.

    Those are the best `top_k` (0: all), and of these the fewest whose shares come to `top_p` (1: all); at least one.
    As in vLLM, top_p is of what top_k leaves. O(vocab_size log vocab_size) a row, nothing where all stay.
    """
    vocab_size = scaled_logits.shape[1]
    if not 0 < top_k < vocab_size and top_p >= 1:
        return scaled_logits
    ranked, order = scaled_logits.sort(dim=-1, descending=True, stable=True)
    if top_k:
        ranked[:, top_k:] = -torch.inf
    share = ranked.softmax(dim=-1)
    is_beyond = share.cumsum(dim=-1) - share >= top_p
    is_beyond[:, 0] = False
    ranked.masked_fill_(is_beyond, -torch.inf)
    return torch.empty_like(ranked).scatter_(1, order, ranked)


def _inverse_cdf(scaled_logits: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulated probability first exceeds each uniform number in [0, 1)."""
    cumulated = scaled_logits.softmax(dim=-1).cumsum(dim=-1)
    threshold = uniform[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, threshold, right=True).squeeze(1).clamp(max=scaled_logits.shape[1] - 1)


def uniform_draws(seed: int, stream_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Float64 numbers in [0, 1), each a function of (seed, stream id, position); counter-based, so order is free."""
    mixed = _mix(np.full(len(stream_ids), seed, dtype=np.int64).astype(np.uint64))
    mixed = _mix(mixed ^ stream_ids.astype(np.uint64))
    mixed = _mix(mixed ^ positions.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(word: np.ndarray) -> np.ndarray:
    """The SplitMix64 output function (Steele, Lea, Flood 2014): a bijection of uint64 that scatters near inputs."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
