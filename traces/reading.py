"""Read a trace file of any known format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from core.errors import InputError
from traces.near_formats import nearest_format
from traces.readers import (
    agentic,
    aiperf_records,
    azure,
    bailian,
    burstgpt,
    libcachesim_csv,
    llmservingsim,
    mooncake,
    oracle_general,
    own,
    parquet,
    sharegpt,
    vidur,
    vllm_bench,
)
from traces.readers.bad_rows import BadRows, RefuseBadRows, SkipBadRows
from traces.readers.source import Head, Source
from traces.readers.texts import Encode
from traces.schema import Trace


class Format(NamedTuple):
    """A trace format: its name, how it looks, its reader, and which options (by their keyword) the reader takes."""

    name: str
    description: str
    recognises: Callable[[Head], bool]
    read: Callable[..., Trace]  # (Source, BadRows), and the options
    options: tuple[str, ...] = ()


_BLOCK, _TEXT = "hash_block_tokens", "encode"
FORMATS = (
    Format(own.NAME, own.DESCRIPTION, own.recognises, own.read),
    Format(parquet.NAME, parquet.DESCRIPTION, parquet.recognises, parquet.read),
    Format(azure.NAME, azure.DESCRIPTION, azure.recognises, azure.read),
    Format(burstgpt.NAME, burstgpt.DESCRIPTION, burstgpt.recognises, burstgpt.read),
    Format(vidur.NAME, vidur.DESCRIPTION, vidur.recognises, vidur.read),
    Format(libcachesim_csv.NAME, libcachesim_csv.DESCRIPTION, libcachesim_csv.recognises, libcachesim_csv.read),
    Format(mooncake.NAME, mooncake.DESCRIPTION, mooncake.recognises, mooncake.read, (_BLOCK, _TEXT)),
    Format(bailian.NAME, bailian.DESCRIPTION, bailian.recognises, bailian.read, (_BLOCK,)),
    Format(llmservingsim.NAME, llmservingsim.DESCRIPTION, llmservingsim.recognises, llmservingsim.read, (_BLOCK,)),
    Format(agentic.NAME, agentic.DESCRIPTION, agentic.recognises, agentic.read),
    Format(sharegpt.NAME, sharegpt.DESCRIPTION, sharegpt.recognises, sharegpt.read, (_BLOCK, _TEXT)),
    Format(vllm_bench.NAME, vllm_bench.DESCRIPTION, vllm_bench.recognises, vllm_bench.read),
    Format(aiperf_records.NAME, aiperf_records.DESCRIPTION, aiperf_records.recognises, aiperf_records.read),
    # Last: a file's name decides.
    Format(oracle_general.NAME, oracle_general.DESCRIPTION, oracle_general.recognises, oracle_general.read),
)
_KEYS = {_BLOCK: "trace.hash_block_tokens", _TEXT: "trace.tokenizer"}
_ON_ERROR: dict[str, Callable[[], BadRows]] = {"fail": RefuseBadRows, "skip": SkipBadRows}


def read_trace(
    path: str | Path,
    format: str = "auto",
    on_error: str = "fail",
    *,
    hash_block_tokens: int | None = None,
    encode: Encode | None = None,
) -> Trace:
    """Read `path`, plain or packed (gzip, zstd), as a Trace sorted by arrival; ties keep the file's order.

    A folder is read as agentic sessions, one a file. `format` is the name of one of FORMATS, or "auto": recognised from
    the content. A row that is malformed, or has no prompt or no output token, raises InputError naming file, line,
    column, value and what was expected (`on_error="fail"`), or is left out and counted by reason in
    `Trace.num_dropped` (`on_error="skip"`).

    `hash_block_tokens` says how many tokens a block hash stands for, in formats where that is a mere convention or the
    reader's choice; `encode` makes token ids of text, for formats that hold text. A format that has no use for them
    refuses them.
    """
    if on_error not in _ON_ERROR:
        raise InputError(f"trace.on_error={on_error!r} is unknown; expected one of {', '.join(_ON_ERROR)}")
    if hash_block_tokens is not None and hash_block_tokens < 1:
        raise InputError(f"{_KEYS[_BLOCK]}={hash_block_tokens}; expected at least 1")
    path, bad_rows = Path(path), _ON_ERROR[on_error]()
    given = {_BLOCK: hash_block_tokens, _TEXT: encode}
    options = {name: value for name, value in given.items() if value is not None}
    if path.is_dir():
        trace = _read_folder(path, format, bad_rows, options)
    else:
        source = Source(path)
        chosen = _format_of(source, format)
        _check_taken(chosen, options)
        trace = chosen.read(source, bad_rows, **options)
    trace.validate()
    return trace


def _read_folder(path: Path, format: str, bad_rows: BadRows, options: Mapping[str, object]) -> Trace:
    if format not in ("auto", agentic.NAME):
        raise InputError(f"{path}: is a folder, which only the format {agentic.NAME} can be; trace.format={format}")
    _check_taken(_named(agentic.NAME), options)
    return agentic.read_folder(path, bad_rows)


def format_name(path: str | Path) -> str:
    """The name of the format that a file is recognised as; raises InputError if it is none of FORMATS."""
    return agentic.NAME if Path(path).is_dir() else _format_of(Source(Path(path)), "auto").name


def _check_taken(chosen: Format, options: Mapping[str, object]) -> None:
    """Raises InputError for an option that the format does not take."""
    for name in options.keys() - set(chosen.options):
        takers = ", ".join(known.name for known in FORMATS if name in known.options)
        refusal = f"a trace of the format {chosen.name} has no use for it; expected null ({takers})"
        raise InputError(f"{_KEYS[name]}: {refusal}")


def _format_of(source: Source, name: str) -> Format:
    if name != "auto":
        return _named(name)
    head = source.head
    for candidate in FORMATS:
        if candidate.recognises(head):
            return candidate
    if not head.first_line:
        raise InputError(f"{source.path}: is empty; expected a trace, in one of the formats {_names()}")
    described = {known.name: known.description for known in FORMATS}
    near = nearest_format(head.first_line, described)
    known = f"the nearest is {near}: {described[near]}" if near else f"docs/traces.md shows those known: {_names()}"
    raise InputError(f"{source.path}: format not recognised, it starts with {head.first_line[:60]!r}; {known}")


def _named(name: str) -> Format:
    for candidate in FORMATS:
        if candidate.name == name:
            return candidate
    raise InputError(f"trace.format={name!r} is unknown; expected auto or one of: {_names()}")


def _names() -> str:
    return ", ".join(known.name for known in FORMATS)
