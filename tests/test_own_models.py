"""Models of the user's own: transformers' logits from the same files; what is not supported is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from hf_models import FAMILIES, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, config_of, tensors_of, write_folder

from core.errors import InputError
from engine.batch import BatchItem, build_batch
from engine.hf_config import Config, shape_of
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.model_files import ModelFiles, open_model
from engine.rope_scaling import RopeScaling, rope_frequencies
from engine.tokenizer import PRE_TOKENIZERS, build_bpe
from engine.weights import TOKENIZER_FILE
from kvtwin.composition import compose_config
from kvtwin.model_files import model_file

RECORDED = json.loads((Path(__file__).parent / "data" / "hf" / "logits.json").read_text())
TOKENS = RECORDED["token_ids"]
WORDS = ["<end>", *"Ġabcdefghijklmnopqrstuvwxyzo"[:26], "Ġa", "Ġo", "he", "th", "in", "an"]


def load(path: Path) -> Decoder:
    files = open_model(path)
    return Decoder(files.shape, files.weights(torch.float32, "cpu"))


def logits_of(files: ModelFiles, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """At the recorded positions, the text computed in two chunks."""
    shape, decoder = files.shape, Decoder(files.shape, files.weights(dtype, "cpu"))
    kv = allocate_kv(shape, 40, 4, dtype, "cpu")
    tables, chunks = [[1 + 8 * group + n for n in range(8)] for group in range(len(shape.kv_groups()))], []
    for start, end in ((0, 9), (9, len(TOKENS))):
        batch = build_batch([BatchItem(TOKENS[start:end], start, tables, True)], 4, "cpu")
        chunks.append(decoder.forward(dataclasses.replace(batch, sample_rows=torch.arange(end - start)), kv))
    return torch.cat(chunks)[[0, 7, 15]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_each_family_says_what_transformers_says(tmp_path, family):
    num_files = 1 + len(family) % 3
    files = open_model(write_folder(tmp_path / "model", family, num_files))
    expected = torch.tensor(RECORDED["logits"][family])
    assert (logits_of(files) - expected).abs().max() < 2e-4
    assert files.eos_ids == {2}
    assert 0 < (logits_of(files, torch.bfloat16) - expected).abs().max() < 0.6


# ---- GGUF -----------------------------------------------------------------------------------------------------------

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GGUF_FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers"):
        stem = name.removesuffix(".weight")
        return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[stem] + ".weight"
    _, _, layer, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def in_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """As Llama's files have q and k: the two that turn together side by side."""
    low, high = np.split(rows.reshape(num_heads, -1, rows.shape[-1]), 2, axis=1)
    return np.stack([low, high], axis=2).reshape(rows.shape)


def write_gguf(path: Path, architecture: str, split: str = "smollm", **changes: int | str) -> Path:
    writer = GGUFWriter(path, architecture)
    numbers = {
        "block_count": 2,
        "embedding_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "feed_forward_length": INTERMEDIATE,
        "context_length": 256,
    } | {key: value for key, value in changes.items() if isinstance(value, int)}
    for key, value in numbers.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    for key, value in changes.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10_000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(WORDS)
    writer.add_token_types([3] + [1] * (len(WORDS) - 1))
    writer.add_token_merges(["Ġ a", "Ġ o", "h e", "t h", "i n", "a n"])
    writer.add_eos_token_id(0)
    for name, tensor in tensors_of(GGUF_FAMILIES.get(architecture, "LlamaForCausalLM")).items():
        if architecture == "llama" and "q_proj" in name:
            tensor = in_pairs(tensor, HEADS)
        if architecture == "llama" and "k_proj" in name:
            tensor = in_pairs(tensor, KV_HEADS)
        writer.add_tensor(gguf_name(name), tensor)
    if architecture == "llama":
        scaling = RopeScaling("llama3", 8.0, 32)
        scaled = rope_frequencies(1e4, HEAD_DIM, scaling)
        divisors = [plain / other for plain, other in zip(rope_frequencies(1e4, HEAD_DIM), scaled, strict=True)]
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", GGUF_FAMILIES)
def test_a_gguf_file_says_what_transformers_says(tmp_path, architecture):
    files = open_model(write_gguf(tmp_path / "model.gguf", architecture))
    expected = torch.tensor(RECORDED["logits"][GGUF_FAMILIES[architecture]])
    assert (logits_of(files) - expected).abs().max() < 2e-4
    assert files.eos_ids == {0}
    assert files.codec().encode_corpus("the an").tolist() == [WORDS.index(w) for w in ("t", "he", "Ġa", "n")]


def test_a_tokenizer_beside_the_file_comes_first(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", "qwen2", split="gpt-5")
    with pytest.raises(InputError, match=r"pre-tokenizer 'gpt-5' is not built; put the model's tokenizer\.json"):
        open_model(path).codec()
    build_bpe(WORDS, [], ["<end>"]).save(str(tmp_path / TOKENIZER_FILE))
    assert open_model(path).codec().encode_corpus("an").tolist() == [WORDS.index("a"), WORDS.index("n")]


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("smollm", ["it", "'s", " ", "1", "2", "3", "4", " don"]),
        ("qwen2", ["it", "'s", " ", "1", "2", "3", "4", " don"]),
        ("llama-bpe", ["it", "'s", " ", "123", "4", " don"]),
    ],
)
def test_text_is_split_as_the_model_was_trained_to(split, parts):
    found = [part for part, _ in PRE_TOKENIZERS[split]().pre_tokenize_str("it's 1234 don")]
    assert [part.replace("Ġ", " ") for part in found] == parts


# ---- from a configuration -------------------------------------------------------------------------------------------


def test_the_command_runs_sizes_and_simulates_a_folder(tmp_path):
    from kvtwin.engine_runs import load_engine_run

    folder = write_folder(tmp_path / "my_gemma", "Gemma3ForCausalLM", num_files=2)
    build_bpe(WORDS, [], ["<end>"]).save(str(folder / TOKENIZER_FILE))
    shape = model_file(str(folder))
    assert (shape.name, shape.num_window_layers, shape.window_tokens) == ("my_gemma", 2, 5)
    assert shape.kv_bytes_per_token() == 4 * 2 * KV_HEADS * HEAD_DIM * 2
    words = ["model=file", f"model.path={folder}", "trace.limit=3", "trace.length_scale=1/32", "pool.num_blocks=40"]
    config = compose_config("engine", [*words, "engine.shadow=true", "engine.output=eos"])
    run = load_engine_run(config).run()
    assert run.records.summary["engine"]["weights"] == str(folder)
    assert run.records.summary["labels"]["model"] == "my_gemma"
    assert run.records.summary["engine"]["shadow_checked"]["read"] > 0


BAD_CONFIGS = [
    ({"architectures": ["FalconForCausalLM"]}, "architecture FalconForCausalLM is not built; expected one of Llama"),
    ({"hidden_size": "wide"}, 'hidden_size is "wide"; expected a whole number'),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0; expected at least 1"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"attention_bias": True}, "attention_bias is true, which is not built; expected false"),
    ({"hidden_act": "relu"}, 'hidden_act is "relu", which is not built; expected silu'),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 4}}, "rope type 'longrope' is not built; expected default"),
    (
        {"quantization_config": {"quant_method": "gptq"}},
        "weights quantized by gptq are not read; expected full precision",
    ),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not built; expected 1"),
    ({"num_key_value_heads": 3}, "4 heads are no multiple of num_key_value_heads=3"),
    ({"intermediate_size": 32}, r"gate_proj.weight is \[24, 32\]; expected \[32, 32\] by config.json"),
    ({"num_hidden_layers": 3}, "cannot read tensor model.layers.2.input_layernorm.weight"),
]


@pytest.mark.parametrize(("changes", "line"), BAD_CONFIGS, ids=[line[:30] for _, line in BAD_CONFIGS])
def test_what_a_folder_lacks_is_told_in_one_line(tmp_path, changes, line):
    folder = write_folder(tmp_path / "model", "LlamaForCausalLM", **changes)
    with pytest.raises(InputError, match=line) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_missing_and_damaged_files_are_told_in_one_line(tmp_path):
    def refused(match: str) -> None:
        with pytest.raises(InputError, match=match) as caught:
            load(tmp_path / "model")
        assert "\n" not in str(caught.value)

    refused("no such model; expected a folder with config.json")
    folder = write_folder(tmp_path / "model", "Qwen2ForCausalLM", num_files=2)
    with pytest.raises(InputError) as caught:
        load(folder / "config.json")
    assert str(caught.value) == f"{folder}/config.json: one file of a model; expected its folder, {folder}"
    part = folder / "model-1.safetensors"
    part.write_bytes(part.read_bytes()[:100])
    refused("model-1.safetensors: cannot read tensor")
    part.unlink()
    refused("model-1.safetensors: no such file, but model.safetensors.index.json names it")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused("no readable weight_map")
    (folder / "model.safetensors.index.json").unlink()
    refused("no weights there; expected model.safetensors or model.safetensors.index.json")
    (folder / "config.json").write_text("[]")
    refused("config.json: expected a JSON object")
    (folder / "config.json").unlink()
    refused("config.json: no such file")


@pytest.mark.parametrize(
    ("architecture", "changes", "line"),
    [
        ("falcon", {}, "GGUF architecture 'falcon' is not built; expected one of llama, qwen2, qwen3"),
        ("llama", {"expert_count": 8}, "8 experts is not built"),
        ("qwen2", {"rope.scaling.type": "yarn"}, "rope.scaling.type='yarn' is not built"),
        ("qwen2", {"feed_forward_length": 20}, r"ffn_gate.weight is \[24, 32\]; expected \[20, 32\] by its metadata"),
        ("qwen3", {"block_count": 3}, "no tensor blk.2.ffn_gate.weight"),
    ],
)
def test_gguf_files_that_the_engine_cannot_run(tmp_path, architecture, changes, line):
    path = write_gguf(tmp_path / "model.gguf", architecture, **changes)
    with pytest.raises(InputError, match=line):
        load(path)


def test_a_file_that_is_no_gguf_or_is_cut_short(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("# notes")
    with pytest.raises(InputError, match="not a readable GGUF file"):
        load(path)
    whole = write_gguf(tmp_path / "model.gguf", "qwen2").read_bytes()
    for num_bytes in (3, 100, len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:num_bytes])
        with pytest.raises(InputError, match="not a readable GGUF file"):
            load(path)


def test_transformers_5_writes_its_rope_parameters_in_blocks():
    gemma = {"full_attention": {"rope_type": "default", "rope_theta": 2e6}, "sliding_attention": {"rope_theta": 3e3}}
    config = Config(Path("config.json"), config_of("Gemma3ForCausalLM") | {"rope_parameters": gemma})
    assert (shape_of(config).rope_base, shape_of(config).window_rope_base) == (2e6, 3e3)
