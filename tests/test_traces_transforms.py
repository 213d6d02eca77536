"""Shorter, faster, smaller traces: exact arithmetic, sharing kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from traces.schema import Ragged, Trace
from traces.transforms import length_scale, limit, rate_scale


def hashed(lengths, block=512, arrivals=None) -> Trace:
    ids = [list(range(-(-length // block))) for length in lengths]
    n = len(lengths)
    arrival_ps = np.arange(n) if arrivals is None else np.array(arrivals)
    return Trace(
        "t", arrival_ps, np.array(lengths), np.full(n, 100), hash_block_tokens=block, hash_ids=Ragged.of_ids(ids)
    )


def test_limit_takes_the_first_requests():
    trace = hashed([1, 2, 3])
    assert limit(trace, 2).num_prompt_tokens.tolist() == [1, 2]
    assert limit(trace, 99).num_requests == 3
    with pytest.raises(InputError, match=r"trace\.limit=0; expected at least 1"):
        limit(trace, 0)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(2, [0, 3, 10]), ("0.5", [0, 14, 40]), (0.1, [0, 70, 200]), ("1/3", [0, 21, 60]), ("3", [0, 2, 6])],
)
def test_rate_scale_divides_arrivals_exactly(factor, expected):
    trace = hashed([1, 2, 3], arrivals=[0, 7, 20])
    faster = rate_scale(trace, factor)
    assert faster.arrival_ps.tolist() == expected
    assert faster.hash_ids is trace.hash_ids
    assert faster.num_prompt_tokens is trace.num_prompt_tokens


def test_rate_scale_is_exact_beyond_64_bits():
    trace = hashed([1], arrivals=[2**62 - 1])
    assert rate_scale(trace, "1000000007/1000000006").arrival_ps.tolist() == [(2**62 - 1) * 1000000006 // 1000000007]
    with pytest.raises(InputError, match="over 106 days"):
        rate_scale(trace, "1/4")


def test_rate_scale_leaves_the_users_own_times_alone():
    columns = {"parent": np.array([-1, 0]), "think_time_ps": np.array([-1, 9]), "cancel_after_ps": np.array([8, -1])}
    trace = Trace("t", np.array([0, 10]), np.array([1, 1]), np.array([1, 1]), **columns)
    faster = rate_scale(trace, 2)
    assert faster.think_time_ps.tolist() == [-1, 9]
    assert faster.cancel_after_ps.tolist() == [8, -1]


def test_length_scale_rounds_up_and_keeps_at_least_one_token():
    scaled = length_scale(Trace("t", np.arange(4), np.array([1, 32, 33, 64]), np.array([1, 31, 65, 96])), "1/32")
    assert scaled.num_prompt_tokens.tolist() == [1, 1, 2, 2]
    assert scaled.num_output_tokens.tolist() == [1, 1, 3, 3]
    assert scaled.hash_block_tokens is None


@given(
    lengths=st.lists(st.integers(1, 200_000), min_size=1, max_size=20),
    scale=st.sampled_from(["1/32", "1/512", "3/16", "1", "2", "0.5"]),
)
def test_a_scaled_prompt_keeps_one_id_a_block(lengths, scale):
    scaled = length_scale(hashed(lengths), scale)
    scaled.validate()


def test_mooncake_at_1_32_has_blocks_of_16():
    assert length_scale(hashed([513]), "1/32").hash_block_tokens == 16


def test_a_scale_that_splits_hash_blocks_is_refused():
    with pytest.raises(InputError, match=r"length_scale=1/3: the trace's blocks of 512 tokens would become 170\.667"):
        length_scale(hashed([513]), "1/3")
    with pytest.raises(InputError, match=r"would become 0\.5 tokens"):
        length_scale(hashed([513]), "1/1024")


@pytest.mark.parametrize("scale", ["0", "-1", "x", "1/0", "", "nan", float("inf")])
def test_nonsense_factors_are_refused(scale):
    with pytest.raises(InputError, match=r"trace\.length_scale=.*; expected"):
        length_scale(hashed([1]), scale)
    with pytest.raises(InputError, match=r"trace\.rate_scale=.*; expected"):
        rate_scale(hashed([1]), scale)


def test_segments_are_scaled_one_by_one_so_shared_prefixes_stay_shared():
    system, user, answer, more = [100, 50], [900, 7], [907, 20], [400, 3]
    prompts = Ragged.of_segments([[system, user], [system, user, answer, more], [system, more]])
    outputs = Ragged.of_segments([[answer], [[500, 9]], [[600, 1]]])
    lengths = prompts.row_sums(prompts.values[:, 1])
    trace = Trace("t", np.arange(3), lengths, np.array([20, 9, 1]), prompt_segments=prompts, output_segments=outputs)

    scaled = length_scale(trace, "1/4")

    scaled.validate()
    assert scaled.prompt_segments.row(0).tolist() == [[100, 13], [900, 2]]
    assert scaled.prompt_segments.row(1).tolist() == [[100, 13], [900, 2], [907, 5], [400, 1]]
    assert scaled.prompt_segments.row(2).tolist() == [[100, 13], [400, 1]]
    assert scaled.output_segments.row(0).tolist() == [[907, 5]]
    assert scaled.num_prompt_tokens.tolist() == [15, 21, 14]
    assert scaled.num_output_tokens.tolist() == [5, 3, 1]
