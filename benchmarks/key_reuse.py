"""Claim: keys cached without rotation can be read at another position; keys cached rotated cannot, and nobody says so.

SmolLM2-135M (fp32, CPU). A passage is computed on its own, at positions from 0 on; then it stands after a prefix, and
the text goes on. Printed is what the rest of the text costs the model in nats a token: with the passage's keys rotated
when read; with its keys as they lie, rotated to where the passage was computed; and, for comparison, with everything
computed in place. Needs the weights: `kvtwin model fetch smollm2_135m`.
"""

from __future__ import annotations

import dataclasses
import sys
from argparse import ArgumentParser
from pathlib import Path

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from engine.attention import HeadAttention
from engine.batch import BatchItem, build_batch
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.smollm2 import fetch_smollm2_135m
from engine.tokenizer import BPECodec
from engine.unrotated_attention import UnrotatedAttention
from engine.weights import TOKENIZER_FILE, load_weights
from kvtwin.prompt_tokens import corpus_text

RESULT = Path(__file__).parent / "results" / "key_reuse.md"
BLOCK_SIZE = 16
PASSAGE_TOKENS, REST_TOKENS = 256, 64
PREFIX_TOKENS = (16, 64, 256, 1024)


def main() -> int:
    ArgumentParser(description=__doc__).parse_args()
    folder = fetch_smollm2_135m()
    shape, weights = load_weights(folder, torch.float32)
    text = BPECodec.load(folder / TOKENIZER_FILE).encode_corpus(corpus_text()[:12_000]).tolist()
    table = Table("prefix tokens", "rotated at read", "as they lie", "same best token", "all in place", box=MARKDOWN)
    for num_prefix in PREFIX_TOKENS:
        table.add_row(*_row(shape, weights, text, num_prefix))
    for console in (Console(), Console(file=RESULT.open("w", encoding="utf-8"), width=100)):
        console.print("Mean negative log likelihood of the 64 tokens after a reused passage of 256, nats a token:\n")
        console.print(table)
    return 0


def _row(shape: DecoderShape, weights: DecoderWeights, text: list[int], num_prefix: int) -> list[str]:
    """The passage and what follows are the same in every row; the prefix is text from elsewhere."""
    reused, rest = text[:PASSAGE_TOKENS], text[PASSAGE_TOKENS : PASSAGE_TOKENS + REST_TOKENS]
    prefix = text[-num_prefix:]
    turned, lying = (
        _rest_logits(Decoder(shape, weights, heads=heads), [prefix, reused], rest)
        for heads in (UnrotatedAttention, HeadAttention)
    )
    in_place = _rest_logits(Decoder(shape, weights), [prefix + reused], rest)
    agreement = (turned.argmax(-1) == lying.argmax(-1)).double().mean().item()
    costs = [f"{_mean_nll(logits, rest):.3f}" for logits in (turned, lying, in_place)]
    return [str(num_prefix), *costs[:2], f"{agreement:.0%}", costs[2]]


def _rest_logits(decoder: Decoder, texts: list[list[int]], rest: list[int]) -> torch.Tensor:
    """Logits at every token of `rest`, whose block table joins the blocks of texts that were computed each alone."""
    num_tokens = sum(map(len, texts)) + len(rest)
    kv = allocate_kv(decoder.shape, -(-num_tokens // BLOCK_SIZE), BLOCK_SIZE, torch.float32, "cpu")
    table, first = list(range(kv.key.shape[1])), 0
    for text in texts:
        own = table[first // BLOCK_SIZE : (first + len(text)) // BLOCK_SIZE]
        decoder.forward(build_batch([BatchItem(text, 0, [own], False)], BLOCK_SIZE, "cpu"), kv)
        first += len(text)
    batch = build_batch([BatchItem(rest, first, [table], True)], BLOCK_SIZE, "cpu")
    return decoder.forward(dataclasses.replace(batch, sample_rows=torch.arange(len(rest))), kv)


def _mean_nll(logits: torch.Tensor, tokens: list[int]) -> float:
    log_probability = torch.log_softmax(logits[:-1].double(), dim=-1)
    return -log_probability[range(len(tokens) - 1), tokens[1:]].mean().item()


if __name__ == "__main__":
    sys.exit(main())
