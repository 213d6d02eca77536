"""A stream of block references for libCacheSim (its CSV with header): a row a block; requests are not told apart.

Sizes are 1, so a capacity given there counts blocks. Times are whole seconds, libCacheSim's unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from traces.block_references import block_references
from traces.readers.fields import PS_PER_S
from traces.schema import Trace
from traces.writers.text import write_lines

NAME = "libcachesim_csv"
DESCRIPTION = "CSV of block references: time (s), obj_id, obj_size"
CARRIES = frozenset({"hash_ids", "hash_salt", "origin"})
RESOLUTION_PS = PS_PER_S


def write(trace: Trace, file: BinaryIO) -> None:
    """Raises InputError for a trace without prefix information."""
    write_lines(file, _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    references = block_references(trace)
    yield "time,obj_id,obj_size"
    for arrival_ps, blocks in zip(references.arrival_ps.tolist(), references.rows(), strict=True):
        for block in blocks:
            yield f"{arrival_ps // PS_PER_S},{block},1"
