"""A passage's keys at another position: right where they are rotated when read, silently wrong where they lie rotated.

The passage is computed on its own, at positions from 0 on, and then stands after a prefix in another text, as in
Prompt Cache (arXiv 2311.04934). The dense model computes the same: tokens of the passage see only each other.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from architectures import decoder, dense
from dense_architectures import dense_logits

from engine.attention import HeadAttention
from engine.batch import BatchItem, build_batch
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.unrotated_attention import UnrotatedAttention

PREFIX, PASSAGE, QUESTION = list(range(40, 48)), list(range(100, 116)), [7, 200, 31, 5, 77]
START = len(PREFIX) + len(PASSAGE)


def logits_after_reuse(heads: type[HeadAttention], num_chunks: int) -> torch.Tensor:
    """Of the question, each text's blocks written by itself, the question in one chunk or token by token."""
    engine = Decoder(decoder("gqa").shape, decoder("gqa").weights, heads=heads)
    kv = allocate_kv(engine.shape, 10, 4, torch.float32, "cpu")

    def run(tokens: list[int], start: int, table: list[int]) -> torch.Tensor:
        return engine.forward(build_batch([BatchItem(tokens, start, [table], True)], 4, "cpu"), kv)[0]

    run(PREFIX, 0, [3, 1])
    run(PASSAGE, 0, [8, 2, 5, 7])
    table, step = [3, 1, 8, 2, 5, 7, 4, 6], len(QUESTION) // num_chunks
    for first in range(0, len(QUESTION), step):
        last = run(QUESTION[first : first + step], START + first, table)
    return last


def expected() -> torch.Tensor:
    apart = replace(dense("gqa"), passages=(range(len(PREFIX), START),))
    return dense_logits(apart, PREFIX + PASSAGE + QUESTION)[-1]


@pytest.mark.parametrize("num_chunks", [1, 5])
def test_keys_rotated_at_read_are_of_use_at_any_position(num_chunks):
    assert (logits_after_reuse(UnrotatedAttention, num_chunks) - expected()).abs().max() < 1e-4


@pytest.mark.parametrize("num_chunks", [1, 5])
def test_keys_that_lie_rotated_are_wrong_anywhere_else(num_chunks):
    """The negative control: nothing fails, the logits of a spread of 2.5 are off by this much."""
    error = (logits_after_reuse(HeadAttention, num_chunks) - expected()).abs().max().item()
    assert 0.5 < error < 5
