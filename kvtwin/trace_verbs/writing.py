"""Where `convert` and `sample` end: the trace in a file, and what did not go into it."""

from __future__ import annotations

from pathlib import Path

from core.errors import InputError
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


def write_and_tell(trace: Trace, format_name: str, source: str, path: str) -> None:
    """Writes the file and says so; raises InputError rather than write over the file that the trace came from."""
    if Path(path).exists() and Path(path).samefile(source):
        raise InputError(f"{path} is the file that is read; expected another name to write to")
    write_trace_as(format_name, trace, path)
    tell_losses(trace, format_name)
    if format_name.startswith("mooncake") and trace.hash_block_tokens not in (None, HASH_BLOCK_TOKENS):
        size = trace.hash_block_tokens
        note(
            f"a {format_name} file does not tell that its blocks have {size} tokens; readers expect {HASH_BLOCK_TOKENS}"
        )
    print(f"{path}: {format_name}, {trace.num_requests:,} requests over {trace.span_s:,.1f} s")


def tell_losses(trace: Trace, format_name: str) -> None:
    losses = not_carried(trace, format_name)
    if losses:
        note(f"{format_name} cannot carry: {'; '.join(losses)}")
