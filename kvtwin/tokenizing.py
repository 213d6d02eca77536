"""From a tokenizer's name to the function that makes tokens of a trace's texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from core.errors import InputError
from kvtwin.failures import require

BYTES_A_TOKEN = 4
ESTIMATE = f"bytes/{BYTES_A_TOKEN}"


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
