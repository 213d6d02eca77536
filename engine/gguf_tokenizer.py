"""The byte-level BPE tokenizer that a GGUF file describes."""

from __future__ import annotations

from gguf import GGUFReader
from tokenizers import Tokenizer

from core.errors import InputError
from engine.gguf_metadata import field_of
from engine.tokenizer import PRE_TOKENIZERS, build_bpe

# Token types of the GGUF vocabulary: control tokens are never the result of merging text.
_CONTROL_TOKEN = 3


def read_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Raises InputError for a tokenizer of another kind."""
    kind, split = field_of(reader, "tokenizer.ggml.model"), field_of(reader, "tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in PRE_TOKENIZERS:
        raise InputError(
            f"GGUF tokenizer {kind!r} with pre-tokenizer {split!r} is not built; put the model's tokenizer.json beside "
            f"the file, or expected gpt2 with {', '.join(PRE_TOKENIZERS)}"
        )
    tokens = field_of(reader, "tokenizer.ggml.tokens")
    types = field_of(reader, "tokenizer.ggml.token_type")
    control = [token for token, each in zip(tokens, types, strict=True) if each == _CONTROL_TOKEN]
    return build_bpe(tokens, field_of(reader, "tokenizer.ggml.merges"), control, split)
