"""`kvtwin size`: pools, capacity and costs against figures worked out by hand or read in bug reports."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from shapes import hardware, model

from core.errors import InputError
from core.interfaces import Admission, PolicyEnv
from kvtwin.sizing import SizingOptions, decode_floor_s, minimum_tensor_parallel, pool_bytes, print_size, size
from policies.admission.reservation import Reservation

GIB = 2**30
H100 = hardware("h100_80gb")
LLAMA = model("llama3_8b")
NO_OVERHEAD = SizingOptions(activation_bytes=0, non_torch_bytes=0, cuda_graph_bytes=0)


def of_memory(memory_gib: float):
    return replace(H100, memory_bytes=round(memory_gib * GIB))


def with_weights(weight_gib: float, name: str = "llama3_8b"):
    return replace(model(name), checkpoint_bytes=round(weight_gib * GIB))


# --- memory budget ---


def test_each_term_of_the_budget_counts_once():
    """Scenario 35 (vLLM 57936): 72 - 15 - 2 - 0.5 - 0.5 = 54 GiB."""
    figures = size(with_weights(15), of_memory(80), SizingOptions(context_tokens=8_192))
    assert figures["pool_bytes"] == 54 * GIB
    assert figures["num_blocks"] == 27_648
    assert figures["capacity_tokens"] == 442_368
    assert figures["usable_capacity_tokens"] == 442_352  # without the null block
    assert figures["concurrency_full_seqs"] == 54.0


def test_the_budget_of_the_report_is_positive():
    """Scenario 35: 164.08 - 58.44 - 4.88 - 63.99 - 0.15 = 36.62 GiB; the engine had suggested -20.83."""
    terms = {"activation_bytes": 4.88, "cuda_graph_bytes": 63.99, "non_torch_bytes": 0.15}
    overhead = {key: round(num_gib * GIB) for key, num_gib in terms.items()}
    options = SizingOptions(memory_utilization=1.0, **overhead)
    assert pool_bytes(with_weights(58.44), of_memory(164.08), options) / GIB == pytest.approx(36.62, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "key", "least_change"),
    [
        ({"memory_utilization": 0.8}, "pool_bytes", 7 * GIB),
        ({"block_size_tokens": 32}, "num_blocks", 10_000),
        ({"kv_dtype_bytes": 1}, "capacity_tokens", 400_000),
        ({"null_block": False}, "num_usable_blocks", 1),
    ],
)
def test_no_setting_is_ignored(changes, key, least_change):
    before, after = size(LLAMA, H100), size(LLAMA, H100, SizingOptions(**changes))
    assert abs(after[key] - before[key]) >= least_change


def test_vllms_arithmetic_without_overhead():
    figures = size(LLAMA, of_memory(80), NO_OVERHEAD)
    assert figures["num_blocks"] == 29_205  # CV-15
    assert figures["concurrency_full_seqs"] == pytest.approx(114.08, abs=5e-3)


def test_a_watermark_is_a_share_of_the_whole_pool():
    policy = Reservation(PolicyEnv(now=lambda: 0, num_blocks=29_205, block_size_tokens=16), watermark=0.01)

    def admits(num_free_blocks):
        view = SimpleNamespace(num_running=1, num_full_blocks=1, num_free_blocks=num_free_blocks)
        return policy.admit(None, 1, view) is Admission.ADMIT

    assert admits(293)  # CV-57: 292 stay free
    assert not admits(292)


def test_seed_units_mix_decimal_and_binary_and_the_strict_value_stands_beside():
    figures = size(LLAMA, H100)
    assert figures["seed_units_seqs"] == 122  # CV-12: (80 - 16 - 3) / 0.5
    assert figures["seed_strict_seqs"] == pytest.approx(113.62, abs=5e-3)  # CV-13
    figures = size(LLAMA, H100, SizingOptions(context_tokens=32_768))
    assert figures["seed_units_seqs"] == 15.25  # CV-12
    assert figures["seed_strict_seqs"] == pytest.approx(14.20, abs=5e-3)  # CV-13


def test_strict_bytes_give_other_counts():
    whole_memory = SizingOptions(
        memory_utilization=1.0, activation_bytes=3 * 10**9, non_torch_bytes=0, cuda_graph_bytes=0
    )
    sequence_bytes = LLAMA.kv_bytes(4_096)
    assert pool_bytes(LLAMA, of_memory(80), whole_memory) / sequence_bytes == pytest.approx(124.5, abs=5e-3)  # CV-14
    llama2 = model("llama2_7b")
    room_bytes = 80e9 - 13.5e9
    assert room_bytes / llama2.kv_bytes(4_096) == pytest.approx(30.97, abs=5e-3)  # CV-16
    assert room_bytes / replace(llama2, num_kv_heads=8).kv_bytes(4_096) == pytest.approx(123.87, abs=5e-3)  # CV-16


# --- windowed layers ---


def test_windowed_layers_kept_or_freed_both_shown():
    """Scenario 37: gpt-oss-20b, 32 sequences of 8,192 tokens: 12.00 GiB kept, 6.09 GiB freed."""
    shape = model("gpt_oss_20b")
    figures = size(shape, H100, SizingOptions(context_tokens=8_192, num_seqs=32))
    assert 32 * figures["kv_sequence_full_bytes"] / GIB == 12.0
    assert 32 * figures["kv_sequence_windowed_bytes"] / GIB == pytest.approx(6.09, abs=5e-3)
    # In blocks: 512 of 12 full layers, 8 of 12 windowed ones, against 512 of 24.
    assert figures["concurrency_windowed_seqs"] / figures["concurrency_full_seqs"] == pytest.approx(
        1024 / 520, rel=1e-4
    )


def test_tokens_of_a_hybrid_pool_as_the_engine_logs_them():
    """Scenario 37: 5.38 GiB for gpt-oss-120b hold 78.35 k tokens of 73,728 B."""
    options = replace(NO_OVERHEAD, memory_utilization=1.0, block_size_tokens=1)
    figures = size(with_weights(60, "gpt_oss_120b"), of_memory(65.38), options)
    assert figures["capacity_tokens"] == pytest.approx(78_350, abs=50)


def test_the_window_setting_decides_how_many_sequences_run():
    options = SizingOptions(context_tokens=32_768)
    freed = size(model("gemma3_27b"), H100, options)
    kept = size(model("gemma3_27b"), H100, replace(options, window_layers="full"))
    assert (freed["max_num_seqs"], kept["max_num_seqs"]) == (6, 1)
    assert freed["concurrency_full_seqs"] == kept["concurrency_full_seqs"]


def test_a_window_longer_than_the_context_changes_nothing():
    figures = size(model("mistral_7b_v01"), H100, SizingOptions(context_tokens=2_048))
    assert figures["kv_sequence_windowed_bytes"] == figures["kv_sequence_full_bytes"]
    assert figures["concurrency_windowed_seqs"] == figures["concurrency_full_seqs"]


# --- what fits ---


def test_a_model_that_does_not_fit_names_the_least_tensor_parallel():
    with pytest.raises(
        InputError, match=r"llama3_70b does not fit on h100_80gb.*least tensor_parallel that fits is 2$"
    ):
        size(model("llama3_70b"), H100)
    assert size(model("llama3_70b"), H100, SizingOptions(tensor_parallel=2))["max_num_seqs"] >= 1


def test_too_small_for_one_sequence_is_not_enough_either():
    options = SizingOptions(context_tokens=131_072, activation_bytes=50 * GIB)
    with pytest.raises(InputError, match="too little for a sequence of 131072 tokens"):
        size(LLAMA, H100, options)


def test_the_least_degree_fits_and_the_next_smaller_does_not():
    shape = model("llama3_405b")
    degree = minimum_tensor_parallel(shape, H100, SizingOptions())
    assert degree == 16  # 756 GiB of weights, 68.7 GiB a GPU
    with pytest.raises(InputError, match=r"is 16$"):
        size(shape, H100, SizingOptions(tensor_parallel=8))
    size(shape, H100, SizingOptions(tensor_parallel=degree))


def test_no_degree_can_help_when_the_overhead_alone_is_too_much():
    with pytest.raises(InputError, match="no tensor_parallel is enough"):
        size(LLAMA, H100, SizingOptions(activation_bytes=100 * GIB))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_tokens": 0}, "context_tokens=0: expected at least 1"),
        ({"memory_utilization": 1.5}, "memory_utilization=1.5: expected a ratio"),
        ({"activation_bytes": -1}, "activation_bytes=-1"),
        ({"window_layers": "off"}, "expected one of windowed, full"),
        ({"tensor_parallel": 3}, "tensor_parallel=3: llama3_8b has 32 heads"),
        ({"context_tokens": 200_000}, "llama3_8b has 131072 positions"),
    ],
)
def test_bad_options_are_told_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        size(LLAMA, H100, SizingOptions(**options))
    assert "\n" not in str(caught.value)


# --- costs ---


@pytest.mark.parametrize(
    ("name", "num_tokens"),
    [("llama3_8b", 122_532), ("llama2_7b", 25_705), ("llama2_70b", 421_000), ("llama3_70b", 430_626)],
)
def test_crossover(name, num_tokens):
    """CV-40, 41, 42: the tokens at which all KV weighs as much as the weights."""
    options = SizingOptions(tensor_parallel=4)
    assert size(model(name), H100, options)["crossover_tokens"] == pytest.approx(num_tokens, abs=1)


@pytest.mark.parametrize(("num_seqs", "context_tokens"), [(1, 122_532), (32, 3_829), (128, 957)])
def test_crossover_of_a_batch(num_seqs, context_tokens):
    assert size(LLAMA, H100, SizingOptions(num_seqs=num_seqs))["crossover_context_tokens"] == context_tokens  # CV-40


def test_fp8_moves_the_crossover_twice_as_far():
    figures = size(LLAMA, H100, SizingOptions(kv_dtype_bytes=1))
    assert figures["crossover_tokens"] == pytest.approx(245_064, abs=1)  # CV-44


def test_kv_of_a_batch_against_the_weights():
    assert 32 * LLAMA.kv_bytes(8_192) / LLAMA.weight_bytes() == pytest.approx(2.139, abs=5e-4)  # CV-43
    llama2 = model("llama2_7b")
    assert 32 * llama2.kv_bytes(4_096) / llama2.weight_bytes() == pytest.approx(5.10, abs=5e-3)  # CV-5


def test_decode_floor():
    alone = SizingOptions(num_seqs=1, context_tokens=1)
    assert decode_floor_s(LLAMA, H100, alone) == pytest.approx(4.794e-3, abs=5e-7)  # CV-45
    assert 1 / decode_floor_s(LLAMA, H100, alone) == pytest.approx(208.6, abs=0.05)
    batch = SizingOptions(num_seqs=32, context_tokens=8_192)
    assert decode_floor_s(LLAMA, H100, batch) == pytest.approx(15.05e-3, abs=5e-6)
    assert 32 / decode_floor_s(LLAMA, H100, batch) == pytest.approx(2_126, abs=1)


def test_decode_at_four_fifths_of_the_bandwidth():
    assert size(LLAMA, H100, SizingOptions(context_tokens=1))["decode_s"] == pytest.approx(5.99e-3, abs=5e-6)  # CV-46
    batch = SizingOptions(num_seqs=32, context_tokens=8_192)
    assert size(LLAMA, H100, batch)["decode_s"] == pytest.approx(18.81e-3, abs=7e-6)


def test_more_gpus_shorten_the_floor_only_where_kv_can_be_split():
    batch = SizingOptions(num_seqs=64, context_tokens=8_192)
    one, two = (decode_floor_s(LLAMA, H100, replace(batch, tensor_parallel=degree)) for degree in (1, 2))
    assert two == pytest.approx(one / 2)
    latent = model("deepseek_v2_lite")
    one, two = (decode_floor_s(latent, H100, replace(batch, tensor_parallel=degree)) for degree in (1, 2))
    assert one / 2 < two < one


def test_work_without_a_cache():
    assert size(LLAMA, H100, SizingOptions(context_tokens=1_000))["uncached_work_ratio"] == 500.5  # CV-53


def test_recompute_against_swap():
    figures = size(LLAMA, replace(H100, bf16_flops=989e12, host_link_bytes_per_s=51.2e9))
    assert figures["recompute_s_per_token"] == pytest.approx(30.35e-6, abs=5e-9)  # CV-58
    assert figures["swap_in_s_per_token"] == pytest.approx(2.56e-6)  # CV-59
    assert figures["break_even_link_bytes_per_s"] == pytest.approx(4.318e9, abs=5e5)  # CV-60
    a100 = replace(hardware("a100_80gb"), host_link_bytes_per_s=25e9)
    figures = size(LLAMA, a100)
    assert figures["recompute_s_per_token"] == pytest.approx(96.2e-6, abs=5e-8)  # CV-58
    assert figures["swap_in_s_per_token"] == pytest.approx(5.24e-6, abs=5e-9)  # CV-59
    opt = size(model("opt_13b"), a100, SizingOptions(context_tokens=2_048))
    assert opt["recompute_s_per_token"] == pytest.approx(166.7e-6, rel=0.015)  # CV-60, there with a round 13 B
    assert opt["swap_in_s_per_token"] == pytest.approx(32.8e-6, abs=5e-8)


# --- the screen ---


def test_the_screen_shows_both_window_settings_and_stays_on_one_page():
    out = io.StringIO()
    print_size(size(model("gemma3_27b"), H100, SizingOptions(context_tokens=32_768)), file=out)
    lines = out.getvalue().splitlines()
    assert len(lines) <= 25
    assert any("2.906 GiB" in line and "15.5 GiB if kept" in line for line in lines)
    assert any("6.19 with windowed layers freed, 1.19 with them kept" in line for line in lines)
    assert not any("seed" in line for line in lines)


def test_the_screen_has_seed_units_on_request():
    out = io.StringIO()
    print_size(size(LLAMA, H100), seed_units=True, file=out)
    assert any("122.00" in line and "113.62" in line for line in out.getvalue().splitlines())


def test_every_figure_has_its_unit_in_the_key():
    units = ("_tokens", "_bytes", "_s", "_ratio", "_seqs", "_blocks", "_flop", "_flop_per_byte", "_parameters")
    per_units = ("_per_token", "_per_gpu", "_per_s")
    settings = {"model", "hardware", "tensor_parallel", "window_layers"}
    for key in set(size(LLAMA, H100)) - settings:
        assert key.endswith(units) or any(part in key for part in per_units), key
