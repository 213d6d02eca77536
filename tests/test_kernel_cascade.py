"""Cascade decode in Triton equals fp64 decode attention that knows nothing of what is shared.

It runs in Triton's interpreter (tests/conftest.py): a few programs a case.
"""

import math

import pytest
import torch
from decode_runs import runs_of
from paged_batch import TOLERANCE, PagedBatch, uninitialised_memory_is_nan
from pairwise import pairwise
from torch import Tensor

from engine.shared_prefixes import SharedRun
from kernels import reference
from kernels.cascade_attention import cascade_config, cascade_decode_attention, cascade_in_splits
from kernels.cascade_reference import Part, merged
from kernels.shared_runs import DecodeRuns
from kernels.splits import SplitPlan

CASES = pairwise(
    {
        "head_dim": [64, 80, 96, 128, 192, 256],
        "block_size": [1, 8, 16, 48, 100],
        "num_shared_blocks": [1, 3],
        "num_own_tokens": [(1,), (0, 18), (3, 40)],  # of each sequence
        "group": [1, 4, 7],
        "num_splits": [1, 3],
        "dtype": [torch.float16, torch.bfloat16],
        "num_kv_heads": [1, 2],
    }
)


def shared_batch(case: dict) -> tuple[PagedBatch, Tensor]:
    block_size, num_shared_blocks = case["block_size"], case["num_shared_blocks"]
    num_kv_tokens = [num_shared_blocks * block_size + num for num in case["num_own_tokens"]]
    row = (case["num_kv_heads"], case["head_dim"])
    batch = PagedBatch(num_kv_tokens, block_size, row, case["dtype"], num_shared_blocks=num_shared_blocks)
    return batch, batch.uniform(len(num_kv_tokens), case["num_kv_heads"] * case["group"], case["head_dim"]) * 4


def one_run(batch: PagedBatch, num_shared_blocks: int) -> DecodeRuns:
    """Of all sequences."""
    runs = [SharedRun(0, len(batch.num_kv_tokens), num_shared_blocks)]
    return runs_of(runs, batch.block_tables, batch.num_kv_tokens, batch.caches.shape[2])


def expected(query: Tensor, batch: PagedBatch) -> Tensor:
    scale = query.shape[-1] ** -0.5
    return reference.decode_attention(
        query.double(), *batch.caches.double(), batch.block_tables, batch.num_kv_tokens, scale
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_cascade_equals_fp64(case):
    batch, query = shared_batch(case)
    num_shared = case["num_shared_blocks"] * case["block_size"]
    config = cascade_config(case["head_dim"], case["group"], len(query) * case["group"], case["block_size"])
    shared_splits = SplitPlan(case["num_splits"], -(-num_shared // case["num_splits"]))

    with uninitialised_memory_is_nan():
        mixed = cascade_in_splits(
            query,
            *batch.caches,
            batch.block_tables,
            batch.num_kv_tokens,
            one_run(batch, case["num_shared_blocks"]),
            case["head_dim"] ** -0.5,
            config,
            shared_splits,
            SplitPlan(2, 20),
        )

    assert mixed.dtype == case["dtype"]
    assert (mixed.double() - expected(query, batch)).abs().max() < TOLERANCE[case["dtype"]]


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: "-".join(map(str, case.values())))
def test_the_reference_reads_the_prefix_once_and_is_decode_attention(case):
    batch, query = shared_batch(case | {"dtype": torch.float64})
    runs = one_run(batch, case["num_shared_blocks"])
    arguments = batch.block_tables, batch.num_kv_tokens, runs, case["head_dim"] ** -0.5

    mixed = reference.cascade_decode_attention(query, *batch.caches, *arguments)

    assert (mixed - expected(query, batch)).abs().max() < 1e-12


def test_parts_are_weighed_by_their_sums():
    parts = [
        Part(torch.tensor([[[1.0]]]), torch.tensor([[math.log(3)]])),
        Part(torch.tensor([[[5.0]]]), torch.zeros(1, 1)),
    ]

    assert merged(parts).item() == pytest.approx((3 * 1 + 5) / 4)


@pytest.mark.parametrize("num_shared_blocks", [0, 2, 3])
def test_what_is_called_shared_changes_no_result(num_shared_blocks):
    """A sequence may even end within the shared blocks, or have no token: a row of a CUDA graph that none fills."""
    batch = PagedBatch([24, 13, 1], 8, (1, 16), torch.float32, num_shared_blocks=2)
    batch.block_tables[1:] = batch.block_tables[0]
    query = batch.uniform(3, 6, 16)  # 18 rows: two tiles
    right = expected(query, batch)
    batch.num_kv_tokens[2], right[2] = 0, 0

    mixed = cascade_decode_attention(
        query,
        *batch.caches,
        batch.block_tables,
        batch.num_kv_tokens,
        one_run(batch, num_shared_blocks),
        0.25,
    )

    assert (mixed - right).abs().max() < 1e-5


def test_runs_of_any_length_share_what_they_share():
    """Two, one and two sequences that share 3, 0 and 1 blocks of 8, more heads than a tile has rows; an empty run
    between, and another at the end, as a CUDA graph keeps them.
    """
    num_shared = [3, 3, 0, 1, 1]
    batch = PagedBatch([27, 24, 5, 8, 19], 8, (1, 16), torch.float32)
    for row, first in ((1, 0), (4, 3)):
        batch.block_tables[row, : num_shared[row]] = batch.block_tables[first, : num_shared[row]]
    query = batch.uniform(5, 18, 16)
    runs = DecodeRuns((), torch.tensor([0, 2, 2, 3, 5, 5]), 8 * torch.tensor(num_shared), 4)
    arguments = batch.block_tables, batch.num_kv_tokens
    config = cascade_config(16, 18, 5 * 18, 8, element_bytes=4)

    with uninitialised_memory_is_nan():
        mixed = cascade_in_splits(
            query, *batch.caches, *arguments, runs, 16**-0.5, config, SplitPlan(2, 16), SplitPlan(2, 16)
        )

    assert (mixed - expected(query, batch)).abs().max() < 1e-5


def test_rows_of_the_whole_batch_fill_a_tile():
    assert cascade_config(128, 4, 8 * 4, 16).constexprs["TILE_ROWS"] == 32
    assert cascade_config(128, 4, 256 * 4, 16).constexprs["TILE_ROWS"] == 64
    assert cascade_config(128, 4, 256 * 4, 16, element_bytes=4).constexprs["TILE_ROWS"] == 16


def test_more_shared_blocks_than_the_tables_have_are_refused():
    batch = PagedBatch([24], 8, (1, 16), torch.float32)

    arguments = batch.uniform(1, 1, 16), *batch.caches, batch.block_tables, batch.num_kv_tokens
    with pytest.raises(ValueError, match="max_shared_blocks is 5; expected 0 to 4 by block_tables"):
        cascade_decode_attention(*arguments, one_run(batch, 5), 0.25)
    with pytest.raises(ValueError, match=r"num_shared_tokens is \[2\]; expected \[1\] by block_tables"):
        cascade_decode_attention(*arguments, one_run(batch, 2)._replace(num_shared_tokens=torch.zeros(2).long()), 0.25)


def test_rows_without_alignment_are_decoded_sequence_by_sequence():
    batch = PagedBatch([24, 17], 8, (1, 20), torch.float32, num_shared_blocks=2)
    query = batch.uniform(2, 3, 20)

    arguments = batch.block_tables, batch.num_kv_tokens, one_run(batch, 2), 20**-0.5
    mixed = cascade_decode_attention(query, *batch.caches, *arguments)

    assert (mixed - expected(query, batch)).abs().max() < 1e-5
