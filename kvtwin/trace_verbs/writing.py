"""Where trace verbs write: nothing over a file that is read; the trace in a file, and what did not go into it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from core.errors import InputError
from core.whole_file import can_be_written
from kvtwin.trace_verbs.shaping import note
from traces.schema import Trace
from traces.writers.mooncake import HASH_BLOCK_TOKENS
from traces.writing import TARGETS, not_carried, write_trace_as

_BY_SUFFIX = {".jsonl": "kvtwin", ".parquet": "parquet"}


def chosen_format(path: str, name: str | None) -> str:
    """The format to write: the one named, else that of the file's ending. Raises InputError where neither tells."""
    known = [target.name for target in TARGETS]
    chosen = name or _BY_SUFFIX.get(Path(path.removesuffix(".gz")).suffix)
    if chosen not in known:
        what = f"--to {name}" if name else f"the ending of {path}"
        raise InputError(
            f"{what} tells no format to write; expected --to {', '.join(known)} (.jsonl: kvtwin, .parquet: parquet)"
        )
    return chosen


def spare(sources: Iterable[str], path: str | Path) -> None:
    """Raises InputError rather than let `path` be written over one of the files, or into one of the folders, read."""
    if not Path(path).exists():
        return
    for source in filter(Path.exists, map(Path, sources)):  # what is not there is told by whoever reads it
        if Path(path).samefile(source) or (source.is_dir() and Path(path).resolve().parent == source.resolve()):
            raise InputError(f"{path} is a file that is read; expected another name to write to")


def require_writable(path: str, sources: Iterable[str]) -> None:
    """Raises InputError, before the work, where a trace cannot be written to `path` or was read from there."""
    spare(sources, path)
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder; expected a file to write to")
    if not can_be_written(Path(path)):
        raise InputError(f"{path}: cannot be written; expected a file in a folder that can")


def write_and_tell(trace: Trace, format_name: str, path: str) -> None:
    """Writes the file and says so."""
    write_trace_as(format_name, trace, path)
    tell_losses(trace, format_name)
    if format_name.startswith("mooncake") and trace.hash_block_tokens not in (None, HASH_BLOCK_TOKENS):
        size = trace.hash_block_tokens
        note(
            f"a {format_name} file does not tell that its blocks have {size} tokens; readers expect {HASH_BLOCK_TOKENS}"
        )
    plural = "" if trace.num_requests == 1 else "s"
    print(f"{path}: {format_name}, {trace.num_requests:,} request{plural} over {trace.span_s:,.1f} s")


def tell_losses(trace: Trace, format_name: str) -> None:
    losses = not_carried(trace, format_name)
    if losses:
        note(f"{format_name} cannot carry: {'; '.join(losses)}")
