"""The product of experts in Triton equals fp64 torch, whoever has how many rows.

It runs in Triton's interpreter (tests/conftest.py): a few programs a case.
"""

import pytest
import torch
from paged_batch import TOLERANCE, uninitialised_memory_is_nan
from pairwise import pairwise

from kernels import reference
from kernels.expert_product import expert_config, expert_product

NUM_ROWS = {  # of each expert
    "one": [1],
    "all on the last": [0, 0, 21],
    "gaps": [0, 3, 0, 17, 0, 1, 16, 0],
    "many": [70, 2],
}
CASES = pairwise(
    {
        "num_rows": list(NUM_ROWS),
        "num_in": [16, 80, 129],
        "num_out": [24, 130],
        "dtype": list(TOLERANCE),
        "is_strided": [False, True],
    }
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_products_equal_fp64(case):
    num_rows, num_in, dtype = NUM_ROWS[case["num_rows"]], case["num_in"], case["dtype"]
    draw = torch.Generator().manual_seed(num_in)

    def uniform(*shape):
        return (torch.rand(*shape, generator=draw) * 2 - 1).to(dtype)

    x = uniform(9, num_in + 3)[:, :num_in] if case["is_strided"] else uniform(9, num_in)
    weights = uniform(len(num_rows), case["num_out"], num_in) / num_in**0.5
    rows = torch.randint(9, (sum(num_rows),), generator=draw)
    starts = torch.tensor([0, *num_rows]).cumsum(0)

    with uninitialised_memory_is_nan():
        product = expert_product(x, weights, rows, starts)

    assert product.dtype == dtype
    expected = reference.expert_product(x.double(), weights.double(), rows, starts)
    assert (product.double() - expected).abs().max() < TOLERANCE[dtype]


def test_no_rows_give_none():
    nothing = torch.empty(0, dtype=torch.int64)

    assert expert_product(torch.zeros(3, 16), torch.zeros(2, 5, 16), nothing, torch.zeros(3).long()).shape == (0, 5)


def test_tiles_are_as_high_as_an_expert_has_rows():
    def tile(*arguments):
        constexprs = expert_config(*arguments).constexprs
        return tuple(constexprs[name] for name in ("TILE_ROWS", "TILE_OUT", "TILE_IN"))

    assert tile(64 * 8, 128, 2048) == (16, 128, 64)  # a decode step
    assert tile(8192 * 8, 128, 2048) == (64, 128, 64)  # a prompt
    assert tile(8192 * 8, 128, 2048, 4) == tile(8192 * 8, 128, 2048, 2, False) == (16, 32, 32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(3, 8)}, r"x is \[3, 8\] with strides \(8, 1\); expected \[num_tokens, 16\]"),
        ({"weights": torch.zeros(5, 16)}, r"weights is \[5, 16\]; expected \[num_experts, out, in\]"),
        ({"weights": torch.zeros(2, 5, 16).half()}, "weights is torch.float16, x is torch.float32"),
        ({"rows": torch.zeros(4).int()}, "rows is torch.int32; it must be int64"),
        ({"starts": torch.zeros(2).long()}, r"starts is \[2\]; it must be \[3\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, said):
    arguments = {
        "x": torch.zeros(3, 16),
        "weights": torch.zeros(2, 5, 16),
        "rows": torch.zeros(4).long(),
        "starts": torch.tensor([0, 1, 4]),
    }

    with pytest.raises(ValueError, match=said):
        expert_product(**arguments | change)
