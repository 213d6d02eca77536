"""Model shapes and devices against published and hand-computed figures. CV-n: a check value of the catalogue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import bundled, hardware, model

from core.errors import InputError
from core.kv_group import KVGroup
from core.model_shape import ModelShape

KIB, MIB, GIB = 2**10, 2**20, 2**30


# --- KV bytes of a token ---


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("llama3_8b", 131_072),  # CV-1
        ("llama2_7b", 524_288),  # CV-5
        ("llama2_13b", 819_200),
        ("llama2_70b", 327_680),  # CV-7
        ("llama3_70b", 327_680),
        ("smollm2_135m", 23_040),  # CV-9
        ("smollm2_360m", 40_960),
        ("smollm2_1_7b", 196_608),
        ("qwen2_5_0_5b", 12_288),  # CV-10
        ("qwen3_0_6b", 114_688),  # CV-10
        ("llama3_405b", 516_096),  # CV-11, CV-29
        ("opt_13b", 819_200),  # CV-17
        ("deepseek_v2", 69_120),  # CV-25
        ("deepseek_v2_lite", 31_104),
        ("deepseek_67b", 389_120),  # CV-26
        ("deepseek_v3", 70_272),  # CV-29
        ("kimi_k2", 70_272),
        ("qwen2_5_72b", 327_680),  # CV-29
        ("mixtral_8x22b", 229_376),
        ("qwen3_30b_a3b", 98_304),
        ("qwen3_235b_a22b", 192_512),
        ("gemma2_9b", 344_064),
        ("gemma3_1b", 26_624),
        ("gemma3_4b", 139_264),
        ("gpt_oss_20b", 49_152),
        ("gpt_oss_120b", 73_728),  # scenario 37
        ("llama4_scout", 196_608),
        ("tinyllama_1_1b", 22_528),  # CV-81
        ("falcon_7b", 8_192),  # CV-81
        ("phi3_mini", 393_216),  # CV-82
        ("phi3_medium", 204_800),
    ],
)
def test_kv_bytes_per_token(name, num_bytes):
    assert model(name).kv_bytes_per_token() == num_bytes


def test_fp8_halves_the_cache_and_a_scale_a_token_and_head_adds_three_per_cent():
    shape = model("llama3_8b")
    assert shape.kv_bytes_per_token(kv_dtype_bytes=1) == 65_536  # CV-1
    assert shape.kv_bytes_per_token(kv_dtype_bytes=1, scale_bytes_per_head=4) == 67_584  # CV-67


def test_layers_that_read_anothers_cache_keep_none():
    # Gemma 3n E2B: 30 layers, the last 10 share; of the 20 that cache, 4 are full.
    shape = ModelShape("gemma3n", 30, 2048, 8, 2, 256, 8192, 262_400, 32_768, num_shared_layers=10)
    shape = replace(shape, window_tokens=512, num_window_layers=16)
    assert shape.kv_bytes_per_token() == 40_960
    assert shape.kv_bytes(100_001) - shape.kv_bytes(100_000) == 8_192


# --- KV bytes of a sequence ---


@pytest.mark.parametrize(
    ("name", "num_tokens", "num_bytes"),
    [
        ("llama3_8b", 131_072, 17_179_869_184),  # CV-2
        ("llama3_8b", 1_024, 128 * MIB),  # CV-3
        ("llama3_8b", 4_096, 512 * MIB),  # CV-3, CV-6
        ("llama3_8b", 8_192, 1_024 * MIB),  # CV-3
        ("llama3_8b", 32_768, 4_096 * MIB),  # CV-3
        ("llama2_7b", 4_096, 2 * GIB),  # CV-5
        ("llama2_70b", 4_096, 1.25 * GIB),  # CV-7
        ("smollm2_135m", 2_048, 45 * MIB),  # CV-9
        ("llama3_405b", 131_072, 63 * GIB),  # CV-11
        ("opt_13b", 2_048, 1.5625 * GIB),  # CV-17
        ("deepseek_v2", 131_072, 8.4375 * GIB),  # CV-25
        ("gemma3_27b", 32_768, 2.90625 * GIB),  # CV-31
        ("gemma3_27b", 131_072, 10.40625 * GIB),  # CV-31
        ("gpt_oss_20b", 131_072, 3 * GIB + 3 * MIB),  # CV-32
        ("mistral_7b_v01", 32_768, 512 * MIB),  # CV-33
        ("gemma2_9b", 8_192, 1.96875 * GIB),  # CV-33
        ("gemma3_12b", 131_072, 8.3125 * GIB),  # CV-35
        ("llama4_scout", 131_072, 7.125 * GIB),  # CV-36
    ],
)
def test_kv_bytes_of_one_sequence(name, num_tokens, num_bytes):
    assert model(name).kv_bytes(num_tokens) == num_bytes


@pytest.mark.parametrize(
    ("name", "num_tokens", "num_bytes"),
    [
        ("gemma3_27b", 32_768, 15.5 * GIB),
        ("gemma3_27b", 131_072, 62 * GIB),
        ("gpt_oss_20b", 131_072, 6 * GIB),
        ("gemma2_9b", 8_192, 2.625 * GIB),
        ("gemma3_12b", 131_072, 48 * GIB),
        ("llama4_scout", 131_072, 24 * GIB),
    ],
)
def test_kv_bytes_with_every_layer_full(name, num_tokens, num_bytes):
    """CV-31, 32, 33, 35, 36: the figures in brackets there."""
    assert num_tokens * model(name).kv_bytes_per_token() == num_bytes


@pytest.mark.parametrize(
    ("name", "num_tokens", "num_seqs", "num_gib"),
    [
        ("llama3_8b", 8_192, 32, 32),  # CV-4
        ("llama3_8b", 8_192, 128, 128),  # CV-4
        ("llama3_8b", 4_096, 32, 16),  # CV-6
        ("llama2_7b", 4_096, 32, 64),  # CV-5
        ("llama2_70b", 4_096, 32, 40),  # CV-7
    ],
)
def test_kv_bytes_of_a_batch(name, num_tokens, num_seqs, num_gib):
    assert num_seqs * model(name).kv_bytes(num_tokens) == num_gib * GIB


def test_a_70b_model_without_grouped_queries():
    shape = replace(model("llama2_70b"), num_kv_heads=64)  # CV-8
    assert shape.kv_bytes_per_token() == 2_621_440
    assert shape.kv_bytes(4_096) == 10 * GIB
    assert 32 * shape.kv_bytes(4_096) == 320 * GIB


@pytest.mark.parametrize(
    ("kv_bytes_per_token", "pool_gib", "num_slots"),
    [(819_200, 12, 15_728), (2_359_296, 21, 9_557), (2 * 96 * 12_288 * 2, 264, 60_074)],  # OPT-13B, 66B, 175B
)
def test_slots_of_the_paged_attention_papers_pools(kv_bytes_per_token, pool_gib, num_slots):
    """CV-18, CV-19."""
    assert pool_gib * GIB // kv_bytes_per_token == num_slots


def test_kv_grows_with_every_token_and_a_window_bounds_it():
    for name in ("llama3_8b", "gemma3_27b", "deepseek_v3"):
        shape = model(name)
        sizes = [shape.kv_bytes(num_tokens) for num_tokens in (0, 1, 100, 1_024, 1_025, 5_000)]
        assert sizes == sorted(set(sizes))
        assert shape.kv_bytes(1) == shape.kv_bytes_per_token()
    assert model("mistral_7b_v01").kv_bytes(4_096) == model("mistral_7b_v01").kv_bytes(32_768)


# --- latent attention ---


def test_latent_attention_against_grouped_and_full_heads():
    latent, grouped = model("deepseek_v2"), model("deepseek_67b")
    ratio = latent.kv_bytes_per_token() / grouped.kv_bytes_per_token()
    assert 1 - ratio == pytest.approx(0.8224, abs=5e-5)  # CV-27, both at 16 bit
    # The published 93.3 % compares a 6-bit cache with a 16-bit one.
    assert 1 - ratio * 6 / 16 == pytest.approx(0.9334, abs=5e-5)  # CV-27
    full_heads = replace(latent, latent_dim=0, rope_dim=0, value_dim=0, query_latent_dim=0)
    assert full_heads.kv_bytes_per_token() == 3_932_160  # CV-28
    assert 1 - latent.kv_bytes_per_token() / full_heads.kv_bytes_per_token() == pytest.approx(0.9824, abs=5e-5)
    assert latent.kv_elements_per_layer_token / (2 * latent.head_dim) == 2.25  # CV-30


# --- blocks, groups, tensor parallelism ---


def test_block_bytes():
    shape = model("llama3_8b")
    assert shape.block_bytes(16) == 2 * MIB  # CV-75
    assert 16 * shape.num_kv_heads * shape.head_dim * 2 == 32 * KIB  # CV-75: K of one layer
    assert model("llama2_70b").block_bytes(512) == 160 * MIB  # CV-80


def test_groups_have_as_many_layers_as_the_rarer_kind():
    assert model("llama3_8b").kv_groups() == (KVGroup(32),)
    assert model("mistral_7b_v01").kv_groups() == (KVGroup(32, 4_096),)
    assert model("gpt_oss_20b").kv_groups() == (KVGroup(12), KVGroup(12, 128))
    assert model("gemma3_27b").kv_groups() == (KVGroup(10), *5 * [KVGroup(10, 1_024)], KVGroup(2, 1_024))


def test_blocks_of_a_hybrid_sequence():
    # Scenario 37: 10 full and 20 windowed layers, window 32, blocks of 16, 112 tokens: 7 + 2 + 2 blocks.
    shape = ModelShape("hybrid", 30, 64, 1, 1, 64, 64, 64, 1_024, window_tokens=32, num_window_layers=20)
    groups = shape.kv_groups()
    assert [7 - group.num_expired_blocks(112, 16) for group in groups] == [7, 2, 2]


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "split_by"),
    [
        ("llama3_70b", 1, 1),
        ("llama3_70b", 4, 4),
        ("llama3_70b", 8, 8),
        ("llama3_70b", 16, 8),  # CV-74: 8 KV heads on 16 GPUs are replicated twice
        ("falcon_7b", 8, 1),
        ("deepseek_v3", 8, 1),  # a latent has no heads to split
    ],
)
def test_kv_bytes_of_one_gpu(name, tensor_parallel, split_by):
    shape = model(name)
    assert shape.kv_bytes_per_token_per_gpu(tensor_parallel) * split_by == shape.kv_bytes_per_token()


# --- parameters ---


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama2_7b", 6_738_415_616),
        ("llama2_13b", 13_015_864_320),
        ("llama2_70b", 68_976_648_192),
        ("llama3_8b", 8_030_261_248),  # CV-37
        ("llama3_70b", 70_553_706_496),
        ("llama3_405b", 405_853_388_800),
        ("llama3_2_1b", 1_235_814_400),
        ("llama3_2_3b", 3_212_749_824),
        ("mistral_7b_v01", 7_241_732_096),
        ("mixtral_8x7b", 46_702_792_704),  # CV-38
        ("mixtral_8x22b", 140_620_634_112),
        ("qwen2_5_0_5b", 494_032_768),
        ("qwen2_5_7b", 7_615_616_512),
        ("qwen2_5_72b", 72_706_203_648),
        ("qwen3_0_6b", 596_049_920),
        ("qwen3_8b", 8_190_735_360),
        ("qwen3_32b", 32_762_123_264),
        ("qwen3_30b_a3b", 30_532_122_624),
        ("qwen3_235b_a22b", 235_093_634_560),
        ("gemma2_9b", 9_241_705_984),
        ("gemma3_1b", 999_885_952),
        ("gpt_oss_20b", 20_914_757_184),
        ("gpt_oss_120b", 116_829_156_672),
        ("deepseek_v2", 235_741_434_880),
        ("deepseek_v2_lite", 15_706_484_224),
        ("deepseek_v3", 671_026_419_200),
        ("phi3_mini", 3_821_079_552),
        ("smollm2_135m", 134_515_008),  # CV-39
        ("smollm2_360m", 361_821_120),
        ("smollm2_1_7b", 1_711_376_384),
        ("tinyllama_1_1b", 1_100_048_384),
        ("falcon_7b", 7_217_189_760),
        ("opt_13b", 12_853_473_280),
    ],
)
def test_num_parameters(name, num_parameters):
    assert model(name).num_parameters() == num_parameters


def test_only_active_experts_count_for_a_token():
    shape = model("mixtral_8x7b")
    assert shape.num_active_parameters() == 12_879_925_248  # CV-38
    assert model("deepseek_v3").num_active_parameters() == pytest.approx(37e9, rel=0.02)
    assert model("llama4_scout").num_active_parameters() == pytest.approx(17e9, rel=0.02)


def test_linear_parameters_leave_out_the_look_up():
    assert model("llama3_8b").num_active_linear_parameters() == 7_504_924_672  # CV-37
    tied = model("smollm2_135m")
    assert tied.num_active_linear_parameters() == tied.num_parameters()


def test_weight_bytes():
    assert model("llama3_8b").weight_bytes() == 16_060_522_496
    assert model("deepseek_v3").weight_bytes() == 671_026_419_200  # one byte each
    assert model("gpt_oss_20b").weight_bytes() == pytest.approx(12.8 * GIB, rel=1e-9)


def test_a_larger_batch_reads_more_experts_and_at_last_all():
    shape = model("mixtral_8x7b")
    assert shape.weight_bytes_read(1) == 2 * shape.num_active_parameters()
    assert shape.weight_bytes_read(1) < shape.weight_bytes_read(4) < shape.weight_bytes()
    assert shape.weight_bytes_read(1_000) == shape.weight_bytes()
    assert model("llama3_8b").weight_bytes_read(1) == model("llama3_8b").weight_bytes()


# --- arithmetic ---


def test_flops_of_a_prompt():
    shape = model("llama3_8b")
    linear, attention = shape.linear_flops(8_192), shape.causal_attention_flops(8_192)
    assert linear == pytest.approx(1.2296e14, rel=1e-4)  # CV-48
    assert attention == pytest.approx(1.7592e13, rel=1e-4)
    assert linear + attention == pytest.approx(1.4055e14, rel=1e-4)
    assert (linear + attention) / (0.5 * 989e12) == pytest.approx(0.284, abs=5e-4)  # CV-49
    # CV-50: the context at which a prompt's attention costs as much as its products with weights.
    assert shape.causal_attention_flops(57_258) == pytest.approx(shape.linear_flops(57_258), rel=1e-4)


def test_a_window_cuts_attention_flops():
    full, windowed = model("mistral_7b_v02"), model("mistral_7b_v01")
    assert windowed.causal_attention_flops(4_096) == full.causal_attention_flops(4_096)
    # Beyond the window each further token attends to 4,096 others, and no more.
    further = windowed.causal_attention_flops(32_768) - windowed.causal_attention_flops(32_767)
    assert further == 2 * 32 * 32 * 128 * 2 * 4_096


# --- devices ---


@pytest.mark.parametrize(
    ("name", "flop_per_byte"),
    [("a100_80gb", 153), ("h100_80gb", 295), ("h200_141gb", 206), ("l4_24gb", 403), ("l40s_48gb", 419)],  # CV-47
)
def test_ridge(name, flop_per_byte):
    assert round(hardware(name).ridge_flop_per_byte) == flop_per_byte


@pytest.mark.parametrize(
    ("name", "memory_mib"),
    [("a100_40gb", 40_536), ("h100_80gb", 81_559), ("h200_141gb", 143_771), ("l4_24gb", 23_034)],
)
def test_memory_is_what_the_driver_shows(name, memory_mib):
    assert hardware(name).memory_bytes == memory_mib * MIB


@pytest.mark.parametrize("name", bundled("hardware"))
def test_no_device_has_more_memory_than_its_name_says_in_binary_units(name):
    device = hardware(name)
    assert device.memory_bytes <= device.nominal_memory_bytes * 2**30 / 10**9


# --- bad input ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0, expected at least 1"),
        ({"num_window_layers": 3, "window_tokens": -8}, "window_tokens=-8, expected at least 0"),
        ({"num_kv_heads": 5}, "num_heads=32 is not a multiple of num_kv_heads=5"),
        ({"num_window_layers": 33, "window_tokens": 10}, "33 windowed layers of 32"),
        ({"num_shared_layers": 33}, "windowed layers of -1"),
        ({"window_tokens": 10}, "together"),
        ({"num_window_layers": 3}, "together"),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(model("llama3_8b"), **changes)


def test_an_impossible_device_is_refused():
    with pytest.raises(InputError, match="hbm_bytes_per_s=0, expected more than 0"):
        replace(hardware("h100_80gb"), hbm_bytes_per_s=0)
