"""Shorter, faster, smaller traces: exact arithmetic, sharing kept."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_cases import traces

from core.errors import InputError
from traces.block_references import block_references
from traces.capping import clip, drop_long
from traces.merging import merge
from traces.schema import Ragged, Trace
from traces.selection import Criteria, Range, sample, select, window
from traces.sharing import prefix_ceiling
from traces.statistics import conversations
from traces.transforms import length_scale, limit, rate_scale, shuffle_tenants


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
    with pytest.raises(InputError, match=r"would become 0\.5 tokens; .* such as 1/512$"):
        length_scale(hashed([513]), "1/1024")
    with pytest.raises(InputError, match=r"such as 171/512$"):
        length_scale(hashed([513]), "1/3")


@pytest.mark.parametrize("scale", ["1e9", "1e400"])
def test_a_scale_that_makes_prompts_no_reader_takes_is_refused(scale):
    with pytest.raises(InputError, match=r"a request would have 5\.13e\+\d+ tokens; expected a scale"):
        length_scale(hashed([513]), scale)


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


many = settings(max_examples=150, deadline=None, derandomize=True)


@many
@given(traces(), st.sampled_from(["2", "1/3", "0.7"]))
def test_rate_and_window_leave_all_but_time_alone(trace, factor):
    for changed in (rate_scale(trace, factor), window(trace, 0, "1000")):
        changed.validate()
        assert changed.num_prompt_tokens.tolist() == trace.num_prompt_tokens.tolist()
        if trace.hash_ids is not None:
            assert changed.hash_ids.values.tolist() == trace.hash_ids.values.tolist()


@many
@given(traces())
def test_twice_the_rate_halves_every_gap_exactly(trace):
    even = replace(trace, arrival_ps=trace.arrival_ps * 2)
    assert rate_scale(even, 2).arrival_ps.tolist() == trace.arrival_ps.tolist()


def test_a_window_starts_at_zero_and_leaves_out_its_end():
    trace = Trace("t", np.array([0, 1, 2, 3]) * 10**12, np.full(4, 5), np.full(4, 5))
    cut = window(trace, 1, "3")
    assert cut.arrival_ps.tolist() == [0, 10**12]
    assert window(trace, "2.5").arrival_ps.tolist() == [5 * 10**11]
    with pytest.raises(InputError, match="window 3:1 is empty"):
        window(trace, 3, 1)
    with pytest.raises(InputError, match=r"none of its 4 requests \(the last at 3 s\) arrives from 9 s to the end"):
        window(trace, 9)


@many
@given(traces(), st.integers(1, 12), st.integers(0, 5))
def test_a_sample_keeps_whole_conversations(trace, wanted, seed):
    wanted = min(wanted, trace.num_requests)
    taken = sample(trace, num_requests=wanted, seed=seed)
    taken.validate()
    assert taken.num_requests >= wanted
    whole = np.bincount(conversations(trace)).tolist()
    for size in np.bincount(conversations(taken)).tolist():
        assert size in whole
    assert np.count_nonzero(taken.parent >= 0) <= np.count_nonzero(trace.parent >= 0)
    again = sample(trace, num_requests=wanted, seed=seed)
    assert again.arrival_ps.tolist() == taken.arrival_ps.tolist()


def test_a_sample_without_sessions_has_exactly_the_size_asked_for():
    trace = Trace("t", np.arange(100), np.arange(1, 101), np.ones(100, dtype=np.int64))
    assert sample(trace, fraction="0.1").num_requests == 10
    assert sample(trace, fraction="1/3").num_requests == 34
    assert sample(trace, num_requests=7).num_requests == 7
    assert sample(trace, num_requests=7, seed=1).num_prompt_tokens.tolist() != (
        sample(trace, num_requests=7, seed=2).num_prompt_tokens.tolist()
    )
    for fraction in ("0", "1.1", "x"):
        with pytest.raises(InputError, match=f"fraction={fraction}; expected"):
            sample(trace, fraction=fraction)
    with pytest.raises(InputError, match="num_requests=101; expected 1 to 100"):
        sample(trace, num_requests=101)


@many
@given(traces())
def test_a_selection_meets_its_criteria_and_links_only_its_own_rows(trace):
    criteria = Criteria(prompt_tokens=Range(5, 30), tenants={0, 1, 2})
    good = (trace.num_prompt_tokens >= 5) & (trace.num_prompt_tokens <= 30) & (trace.tenant <= 2)
    if not good.any():
        with pytest.raises(InputError, match="meets the criteria"):
            select(trace, criteria)
        return
    selected = select(trace, criteria)
    selected.validate()
    assert selected.num_prompt_tokens.tolist() == trace.num_prompt_tokens[good].tolist()


def test_categories_are_selected_by_name():
    trace = replace(hashed([1, 2, 3]), category=np.array([0, -1, 1]), category_names=("text", "image"))
    assert select(trace, Criteria(categories={"image"})).num_prompt_tokens.tolist() == [3]
    with pytest.raises(InputError, match="has no category 'file'; expected one of text, image"):
        select(trace, Criteria(categories={"file"}))
    with pytest.raises(InputError, match="has no category; expected a trace with one"):
        select(hashed([1]), Criteria(categories={"text"}))


def test_selecting_by_what_a_trace_lacks_is_refused():
    with pytest.raises(InputError, match="has no priority"):
        select(hashed([1]), Criteria(priorities=[0]))


@many
@given(traces(with_prefixes=True), st.integers(1, 40))
def test_clipped_prompts_share_what_they_shared_as_far_as_they_reach(trace, most):
    clipped = clip(trace, max_prompt_tokens=most, max_output_tokens=7)
    clipped.validate()
    assert clipped.num_prompt_tokens.max() <= most
    assert clipped.num_output_tokens.max() <= 7
    whole, cut = (block_references(each, 4 if each.hash_ids is None else None).rows() for each in (trace, clipped))
    for row in range(trace.num_requests):
        for other in range(row):
            num_full = int(min(clipped.num_prompt_tokens[row], clipped.num_prompt_tokens[other])) // 4
            assert (cut[row][:num_full] == cut[other][:num_full]) == (whole[row][:num_full] == whole[other][:num_full])


def test_long_requests_are_dropped_on_request():
    trace = Trace("t", np.arange(3), np.array([5, 50, 6]), np.array([9, 1, 90]), parent=np.array([-1, 0, 1]))
    kept = drop_long(trace, max_prompt_tokens=10)
    assert (kept.num_prompt_tokens.tolist(), kept.parent.tolist()) == ([5, 6], [-1, -1])
    assert drop_long(trace, max_output_tokens=10).num_prompt_tokens.tolist() == [5, 50]
    with pytest.raises(InputError, match="every request has more than 1 prompt"):
        drop_long(trace, max_prompt_tokens=1)
    with pytest.raises(InputError, match="expected at least 1"):
        clip(trace, max_output_tokens=0)


@many
@given(st.lists(traces(), min_size=1, max_size=3))
def test_merged_traces_keep_apart_and_keep_their_own_sharing(parts):
    if len({(part.hash_ids is None, part.prompt_segments is None) for part in parts}) > 1:
        with pytest.raises(InputError, match=r"merge: '.' has .*; hit ratios of such"):
            merge(parts)
        return
    merged = merge(parts)
    merged.validate()
    assert merged.num_requests == sum(part.num_requests for part in parts)
    assert np.count_nonzero(merged.parent >= 0) == sum(np.count_nonzero(part.parent >= 0) for part in parts)
    assert len(np.unique(merged.tenant)) == sum(len(np.unique(part.tenant)) for part in parts)
    if merged.hash_ids is not None:
        assert len(np.unique(merged.hash_ids.values)) == sum(len(np.unique(part.hash_ids.values)) for part in parts)
        assert prefix_ceiling(merged).hit_blocks == sum(prefix_ceiling(part).hit_blocks for part in parts)


def test_a_merge_is_sorted_by_arrival_and_gives_tenants_to_those_without():
    a = Trace("a", np.array([0, 5]), np.array([1, 2]), np.array([1, 1]), priority=np.array([3, 4]), licence="x")
    b = Trace("b", np.array([0, 2]), np.array([3, 4]), np.array([1, 1]), licence="x", num_dropped={"zero_output": 2})
    merged = merge([a, b])
    assert merged.num_prompt_tokens.tolist() == [1, 3, 4, 2]
    assert merged.tenant.tolist() == [0, 1, 1, 0]
    assert merged.priority.tolist() == [3, 0, 0, 4]
    assert (merged.name, merged.licence, merged.num_dropped) == ("a+b", "x", {"zero_output": 2})


def test_merged_kinds_of_requests_go_by_their_names():
    one = Trace(
        "a", np.arange(2), np.ones(2, int), np.ones(2, int), category=np.array([1, -1]), category_names=("x", "y")
    )
    two = Trace(
        "b", np.arange(2), np.ones(2, int), np.ones(2, int), category=np.array([1, 0]), category_names=("y", "z")
    )
    none = Trace("c", np.array([5]), np.array([1]), np.array([1]))
    merged = merge([one, two, none])
    assert merged.category_names == ("x", "y", "z")
    assert merged.category.tolist() == [1, 2, -1, 1, -1]


def test_merged_turns_without_think_times_go_on_following_at_once():
    at_once = Trace("a", np.arange(2), np.ones(2, int), np.ones(2, int), parent=np.array([-1, 0]))
    thinking = replace(at_once, think_time_ps=np.array([-1, 7]))
    assert merge([at_once, thinking]).think_time_ps.tolist() == [-1, -1, 0, 7]


def test_blocks_of_two_sizes_are_not_merged():
    with pytest.raises(InputError, match="merge: hash blocks of 512 tokens in 't', 16 tokens in 't'"):
        merge([hashed([513]), hashed([17], block=16)])


@many
@given(traces(), st.integers(0, 3))
def test_shuffled_tenants_are_the_same_ones_among_conversations(trace, seed):
    shuffled = shuffle_tenants(trace, seed)
    conversation = conversations(trace)
    _, first = np.unique(conversation, return_index=True)
    assert sorted(shuffled.tenant[first]) == sorted(trace.tenant[first])
    for number in range(len(first)):
        assert len(set(shuffled.tenant[conversation == number])) == 1
    with pytest.raises(InputError, match="has no tenants"):
        shuffle_tenants(replace(trace, tenant=None))
