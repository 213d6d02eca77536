"""Traces that property tests run on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from traces.schema import Ragged, Trace


@st.composite
def traces(draw, with_prefixes: bool | None = None) -> Trace:
    """Small traces: sessions with linked turns, tenants, prompts as block hashes of a tree, as text, or as lengths."""
    n = draw(st.integers(1, 12))
    arrivals = np.sort(np.array(draw(st.lists(st.integers(0, 10**14), min_size=n, max_size=n))))
    lengths = np.array(draw(st.lists(st.integers(1, 40), min_size=n, max_size=n)))
    parent = np.array([draw(st.integers(-1, row - 1)) for row in range(n)])
    trace = Trace(
        draw(st.sampled_from("abc")),
        arrivals,
        lengths,
        np.array(draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))),
        session_id=np.array(draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))),
        parent=parent,
        think_time_ps=np.where(parent < 0, -1, 5),
        tenant=np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))),
    )
    kind = draw(st.sampled_from(["hash", "text"] if with_prefixes else ["hash", "text", "none"]))
    if kind == "hash":
        # The id of a block is its path: a digit of the row's root, then the position.
        roots = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
        ids = [
            [100 * root + block for block in range(-(-length // 4))]
            for root, length in zip(roots, lengths, strict=True)
        ]
        trace = replace(trace, hash_block_tokens=4, hash_ids=Ragged.of_ids(ids))
    elif kind == "text":
        cuts = [draw(st.integers(0, length)) for length in lengths.tolist()]
        parts = [
            [[start, length] for start, length in ((7, cut), (1000, total - cut)) if length]
            for cut, total in zip(cuts, lengths.tolist(), strict=True)
        ]
        trace = replace(trace, prompt_segments=Ragged.of_segments(parts))
    trace.validate()
    return trace
