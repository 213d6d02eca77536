"""Triton's copies move every bit, and nothing else, on awkward shapes; wrong calls are refused.

They run in Triton's interpreter on the CPU (tests/conftest.py): its programs run one after another, so races would not
show.
"""

from types import SimpleNamespace

import pytest
import torch
from engine_world import TINY
from pairwise import pairwise
from torch import Tensor

from engine.kv_cache import allocate_kv
from kernels import reference
from kernels.block_copy import copy_blocks, copy_units, move_tokens
from kernels.swap import gather_blocks, scatter_blocks

COPY_CASES = pairwise(
    {
        "unit": [(1, 1, 1), (3, 2, 8), (16, 1, 80), (16, 8, 128)],  # the last: 2,048 or more words, several programs
        "num_layers": [1, 3],
        "num_copies": [0, 1, 4],
        "dtype": [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64],
    }
)


def random_bits(*shape: int, dtype: torch.dtype) -> Tensor:
    """Any bit pattern, NaNs with payload among them."""
    generator = torch.Generator().manual_seed(sum(shape))
    pattern = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8, generator=generator)
    return pattern.view(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("case", COPY_CASES)
def test_copied_blocks_hold_the_same_bits_and_no_other_changes(case):
    pool = random_bits(case["num_layers"], 10, *case["unit"], dtype=case["dtype"])
    before = pool.clone()
    sources, targets = torch.tensor([2, 9, 2, 0]), torch.tensor([5, 1, 8, 3])
    sources, targets = sources[: case["num_copies"]], targets[: case["num_copies"]]

    copy_blocks(pool, sources, targets)

    reference.copy_blocks(before.view(torch.uint8), sources, targets)
    assert same_bits(pool, before)


@pytest.mark.parametrize("case", COPY_CASES)
def test_blocks_survive_the_way_out_and_back(case):
    pool = random_bits(case["num_layers"], 9, *case["unit"], dtype=case["dtype"])
    blocks = torch.tensor([8, 0, 3, 5])[: case["num_copies"]]

    staging = gather_blocks(pool, blocks)
    elsewhere = torch.zeros_like(pool)
    scatter_blocks(elsewhere, blocks, staging)

    assert same_bits(staging, pool[:, blocks])
    assert same_bits(elsewhere[:, blocks], pool[:, blocks])
    untouched = [block for block in range(9) if block not in blocks.tolist()]
    assert not elsewhere[:, untouched].view(torch.uint8).any()


@pytest.mark.parametrize("sources", [[0, 1, 2], [1, 0, 3], [2, 0, 1]])  # a chain, a swap and a self-copy, a ring
def test_a_copy_reads_every_source_before_it_writes(sources):
    pool = torch.arange(5.0).reshape(1, 5, 1, 1).repeat(2, 1, 3, 4)
    targets = {0: [1, 2, 3], 1: [0, 1, 3], 2: [0, 1, 2]}[sources[0]]

    copy_blocks(pool, torch.tensor(sources), torch.tensor(targets))

    expected = list(range(5))
    for source, target in zip(sources, targets, strict=True):
        expected[target] = source
    assert pool[:, :, 0, 0].tolist() == [expected] * 2


def test_compaction_makes_a_sequence_dense_that_dropped_every_other_token():
    pool = torch.arange(12.0).reshape(1, 4, 3, 1, 1).repeat(2, 1, 1, 2, 5)
    kept = torch.tensor([9, 11, 1, 3, 5])  # the table is (3, 0, 1): positions 0, 2, 4, 6, 8

    move_tokens(pool, kept, torch.tensor([9, 10, 11, 0, 1]))

    assert pool[1, :, :, 1, 4].tolist() == [[3, 5, 2], [3, 4, 5], [6, 7, 8], [9, 11, 1]]


def test_blocks_far_apart_are_addressed_in_64_bits():
    num_blocks, block = 2**20 + 1, (1, 4097)  # an odd number of bytes is moved byte by byte: offsets beyond 2^32
    pool = torch.empty(1, num_blocks, *block, dtype=torch.uint8)  # virtual memory: only touched pages are real
    pool[0, -1] = 7

    copy_blocks(pool, torch.tensor([num_blocks - 1]), torch.tensor([num_blocks - 2]))

    assert pool[0, -2].eq(7).all()
    assert gather_blocks(pool, torch.tensor([num_blocks - 2])).eq(7).all()


def test_the_memory_of_an_engine_swaps_and_copies_by_these_kernels():
    """Keys and values of all layers: one launch a plan."""
    launches = []

    def noting(copy):
        return lambda *arguments: (launches.append(copy.__name__), copy(*arguments))[1]

    triton = SimpleNamespace(**{copy.__name__: noting(copy) for copy in (copy_blocks, gather_blocks, scatter_blocks)})
    device, expected = (
        allocate_kv(TINY, 5, 4, torch.float32, "cpu", kernels=kernels) for kernels in (triton, reference)
    )
    for cache, other in zip(device.tensors, expected.tensors, strict=True):
        cache.normal_(generator=torch.Generator().manual_seed(8))
        other.copy_(cache)
    for memory in (device, expected):
        host = allocate_kv(TINY, 3, 4, torch.float32, "cpu")
        memory.move_blocks([4, 1], host, [0, 2])
        memory.copy_blocks([0, 1], [1, 4])
        host.move_blocks([2, 0], memory, [0, 3])

    assert all(torch.equal(*caches) for caches in zip(device.tensors, expected.tensors, strict=True))
    assert not torch.equal(device.key[:, 0], device.key[:, 1])
    assert launches == ["gather_blocks", "copy_blocks", "scatter_blocks"]


POOL = torch.zeros(2, 4, 3, 2, 8)
IDS = torch.tensor([0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: copy_blocks(POOL, IDS, torch.tensor([4])), "ids 4 to 4, in a pool of 4"),
        (lambda: copy_blocks(POOL, torch.tensor([-1]), IDS), "ids -1 to -1, in a pool of 4"),
        (lambda: copy_blocks(POOL, IDS, torch.tensor([1, 2])), r"target_blocks is \[2\]; it must be \[1\]"),
        (lambda: copy_blocks(POOL, IDS.int(), torch.tensor([1])), "source_ids is torch.int32; it must be int64"),
        (lambda: copy_blocks(POOL.transpose(3, 4), IDS, torch.tensor([1])), "it must be contiguous"),
        (lambda: copy_units(POOL, POOL.half(), IDS, IDS), "pools of torch.float32 and torch.float16"),
        (lambda: copy_units(POOL, POOL[:, :, :2].contiguous(), IDS, IDS), "only the number of blocks may differ"),
        (lambda: scatter_blocks(POOL, IDS, POOL), "1 blocks, but contents of"),
    ],
)
def test_a_copy_that_cannot_be_right_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
