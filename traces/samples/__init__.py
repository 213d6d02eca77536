"""The traces that come with kvtwin, and the text their prompts are taken from. Credits: README.md beside this file."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from core.errors import InputError

SAMPLE_NAMES = ("chat", "agent_sessions", "long_documents")


def sample_path(name: str) -> Path:
    """The file of a bundled trace; raises InputError, naming the near ones, if there is none of that name."""
    if name not in SAMPLE_NAMES:
        near = get_close_matches(name, SAMPLE_NAMES, n=1)
        hint = f" (near: {near[0]})" if near else ""
        raise InputError(f"no bundled trace {name!r}{hint}; expected one of {', '.join(SAMPLE_NAMES)}")
    return _path(f"{name}.jsonl")


def corpus_path() -> Path:
    """The text that `prompt_segments` and `output_segments` point into, once it is tokenised."""
    return _path("corpus.txt")


def _path(file_name: str) -> Path:
    return Path(str(files("traces").joinpath("samples", file_name)))
