"""Traces of text: read with the tokenizer that the user named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import InputError
from kvtwin.failures import require
from traces.reading import read_trace
from traces.schema import Trace

BYTES_A_TOKEN = 4
ESTIMATE = f"bytes/{BYTES_A_TOKEN}"


def read_with_tokenizer(
    path: str | Path, format: str, on_error: str, hash_block_tokens: int | None, tokenizer: str | None
) -> Trace:
    """The trace; one whose lengths are estimates says so in its name. Raises InputError as `read_trace` does."""
    encode = None if tokenizer is None else encoder(tokenizer)
    trace = read_trace(path, format, on_error, hash_block_tokens=hash_block_tokens, encode=encode)
    return replace(trace, name=f"{trace.name} ({ESTIMATE} tokens)") if tokenizer == ESTIMATE else trace


def encoder(name: str) -> Callable[[str], Sequence[int]]:
    """`bytes/4`, an estimate that needs no model, or the tokenizer of a file (a Hugging Face tokenizer.json).

    No special tokens are added. Raises InputError where the file cannot be read, or tokenizers is not installed.
    """
    if name == ESTIMATE:
        return four_bytes_a_token
    path = Path(name)
    if not path.is_file():
        raise InputError(f"trace.tokenizer={name}: no such file; expected a tokenizer.json, or {ESTIMATE}")
    require("tokenizers")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        text = " ".join(str(error).split())
        raise InputError(f"trace.tokenizer={name}: {text}; expected a tokenizer.json, or {ESTIMATE}") from error
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def four_bytes_a_token(text: str) -> list[int]:
    """Every four bytes of UTF-8 are a token: about what English takes; equal beginnings have equal tokens."""
    content = text.encode("utf-8", "surrogatepass")
    return [int.from_bytes(content[at : at + BYTES_A_TOKEN]) for at in range(0, len(content), BYTES_A_TOKEN)]
