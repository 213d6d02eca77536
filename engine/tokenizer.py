"""Text to token ids and back: the model's own byte-level BPE, or plain bytes for models with random weights."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from core.errors import InputError


class TextCodec(Protocol):
    """What the engine needs of a tokenizer; vocab_size counts ids, all below the model's vocabulary."""

    vocab_size: int

    def encode_corpus(self, text: str) -> np.ndarray:
        """Token ids int64 [num_tokens] of a text, without begin or end marks."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""


class BPECodec:
    """The tokenizer that came with the weights."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()

    @classmethod
    def load(cls, path: Path) -> "BPECodec":
        """Read a tokenizer.json; raises InputError when it is missing or damaged."""
        try:
            return cls(Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except Exception as error:  # the library raises bare Exception for malformed JSON
            raise InputError(f"{path}: not a readable tokenizer ({error})") from error

    def encode_corpus(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)


class ByteCodec:
    """One token a UTF-8 byte: for a model with random weights, whose words mean nothing anyway."""

    vocab_size = 256

    def __init__(self, model_vocab_size: int) -> None:
        if model_vocab_size < self.vocab_size:
            raise InputError(f"a vocabulary of {model_vocab_size} cannot hold bytes; 256 or more is needed")

    def encode_corpus(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Ids above 255, which a random model may produce, become 0xFF: no valid UTF-8, so they show as U+FFFD."""
        return bytes(min(token, 0xFF) for token in token_ids).decode("utf-8", errors="replace")


def _numbers_of(digits: str) -> pre_tokenizers.PreTokenizer:
    """The split of GPT-4's family: words with what leads them, numbers of so many digits, punctuation, space."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _single_digits() -> pre_tokenizers.PreTokenizer:
    """SmolLM's split: digits stand alone, then GPT-2's."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _single_digits,
    "llama-bpe": partial(_numbers_of, r"\p{N}{1,3}"),
    "qwen2": partial(_numbers_of, r"\p{N}"),
}
"""How text is split before merging, by the name that GGUF files give it (llama.cpp, llama-vocab.cpp)."""


def build_bpe(
    tokens: Sequence[str], merges: Sequence[str], control_tokens: Sequence[str], split: str = "smollm"
) -> Tokenizer:
    """A byte-level BPE tokenizer: text is split, then merged by pairs ("left right" each)."""
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control_tokens])
    return tokenizer
