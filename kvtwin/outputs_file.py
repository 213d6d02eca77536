"""What an engine run said: `outputs.jsonl.gz`, a line for each sample or beam of every request that ran."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.tokens import TokenStore

OUTPUTS_FILE = "outputs.jsonl.gz"


def outputs_jsonl(store: TokenStore) -> bytes:
    """By request, the most likely sample first; equal runs give equal bytes.

    `log_probability` is the sum over the output tokens; null for requests of one sample, where nothing is compared.
    """
    return gzip.compress("".join(f"{json.dumps(row)}\n" for row in _rows(store)).encode(), mtime=0)


def _rows(store: TokenStore) -> Iterator[dict[str, Any]]:
    for request_id in store.request_ids():
        ranked = store.ranked(request_id)
        for place, (index, tokens) in enumerate(ranked):
            yield {
                "request": request_id,
                "place": place,
                "sample": index,
                "log_probability": tokens.score if len(ranked) > 1 else None,
                "token_ids": tokens.outputs.tolist(),
            }
