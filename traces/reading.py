"""Read a trace file of any known format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import InputError
from traces.near_formats import nearest_format
from traces.readers.bad_rows import BadRows, RefuseBadRows, SkipBadRows
from traces.readers.source import Head, Source
from traces.readers.texts import Encode
from traces.schema import Trace


class Format(NamedTuple):
    """A trace format: its name, the module of `traces.readers` that reads it, and which options (by their keyword) that
    takes.

    The module is imported when a file may be such a one: most runs need one of them.
    """

    name: str
    module: str
    options: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """How it looks."""
        return str(self._reader.DESCRIPTION)

    def recognises(self, head: Head) -> bool:
        """Whether a file that begins like this is one."""
        return bool(self._reader.recognises(head))

    def read(self, source: Source, bad_rows: BadRows, **options: object) -> Trace:
        """The trace in a file."""
        trace: Trace = self._reader.read(source, bad_rows, **options)
        return trace

    @property
    def _reader(self) -> Any:
        return import_module(f"traces.readers.{self.module}")


_BLOCK, _TEXT = "hash_block_tokens", "encode"
_AGENTIC = "agentic"
FORMATS = (
    Format("kvtwin", "own"),
    Format("parquet", "parquet"),
    Format("azure", "azure"),
    Format("burstgpt", "burstgpt"),
    Format("vidur", "vidur"),
    Format("libcachesim_csv", "libcachesim_csv"),
    Format("mooncake", "mooncake", (_BLOCK, _TEXT)),
    Format("bailian", "bailian", (_BLOCK,)),
    Format("llmservingsim", "llmservingsim", (_BLOCK,)),
    Format(_AGENTIC, "agentic"),
    Format("sharegpt", "sharegpt", (_BLOCK, _TEXT)),
    Format("vllm_bench", "vllm_bench"),
    Format("aiperf_records", "aiperf_records"),
    Format("oracle_general", "oracle_general"),  # last: a file's name decides
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
    if format not in ("auto", _AGENTIC):
        raise InputError(f"{path}: is a folder, which only the format {_AGENTIC} can be; trace.format={format}")
    _check_taken(_named(_AGENTIC), options)
    from traces.readers.agentic import read_folder

    return read_folder(path, bad_rows)


def format_name(path: str | Path) -> str:
    """The name of the format that a file is recognised as; raises InputError if it is none of FORMATS."""
    return _AGENTIC if Path(path).is_dir() else _format_of(Source(Path(path)), "auto").name


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
