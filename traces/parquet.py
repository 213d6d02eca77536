"""kvtwin's own columns in a Parquet file: exact, typed, and quick to read by any tool. Needs pyarrow (extra `traces`).

The columns are the keys of the JSON-lines format (see `traces.readers.own`): times as decimals of seconds with twelve
digits, so exact to the picosecond; `hash_ids` lists of int64; segments lists of [start_token, num_tokens]; null where a
row has none. What the header says there is in the file's metadata, under `kvtwin`.
"""

from __future__ import annotations

from typing import Any

from core.errors import InputError

NAME = "parquet"
DESCRIPTION = "Parquet with kvtwin's own columns"
METADATA_KEY = b"kvtwin"
TIME_DIGITS = 12  # after the point: picoseconds


def arrow() -> Any:
    """pyarrow with its modules `compute` and `parquet`. Raises InputError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("Parquet takes the package pyarrow; expected pip install 'kvtwin[traces]'") from error
    return pyarrow
