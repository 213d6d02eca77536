"""Fewer KV heads by mean pooling: what it says in the weights, what the model says, and what a failure leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hf_models import HEAD_DIM, HEADS, HIDDEN, tensors_of, write_folder
from safetensors.numpy import load_file, save_file

from core.errors import InputError
from engine.batch import BatchItem, build_batch
from engine.kv_cache import allocate_kv
from engine.mean_pooling import convert_folder, mean_pooled
from engine.model import Decoder
from engine.model_files import open_model
from kvtwin.verbs.model import run as model_verb

TOKENS = [3, 17, 5, 41, 9, 9, 22, 30]


def write_mha(folder, twins: bool):
    """A Qwen2 of as many KV heads as heads; with `twins`, heads 0 and 1 are alike, and 2 and 3."""
    write_folder(folder, "Qwen2ForCausalLM", num_key_value_heads=HEADS)
    tensors = tensors_of("Qwen2ForCausalLM")
    draw = np.random.default_rng(0)
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name:
            heads = draw.normal(size=(HEADS, HEAD_DIM, *tensor.shape[1:])).astype(np.float32) / 6
            tensors[name] = (heads[[0, 0, 2, 2]] if twins else heads).reshape(HEADS * HEAD_DIM, *tensor.shape[1:])
    save_file(tensors, folder / "model.safetensors")
    return folder


def logits_of(folder) -> torch.Tensor:
    files = open_model(folder)
    kv = allocate_kv(files.shape, 4, 4, torch.float32, "cpu")
    batch = build_batch([BatchItem(TOKENS, 0, [[1, 2]], True)], 4, "cpu")
    return Decoder(files.shape, files.weights(torch.float32, "cpu")).forward(batch, kv)[0]


def test_a_pooled_head_is_the_mean_of_its_neighbours():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 8.0], [7.0, 0.0]])  # four heads of one row each
    assert mean_pooled(rows, 4, 2).tolist() == [[2, 3], [6, 4]]
    assert mean_pooled(rows, 4, 1).tolist() == [[4, 3.5]]
    assert mean_pooled(torch.tensor([0.0, 1.0, 2.0, 3.0]), 2, 1).tolist() == [1, 2]  # biases, heads of two


def test_heads_that_are_alike_lose_nothing_and_the_cache_is_halved(tmp_path):
    source = write_mha(tmp_path / "mha", twins=True)
    convert_folder(source, tmp_path / "gqa", 2)
    before, after = open_model(source).shape, open_model(tmp_path / "gqa").shape
    assert (before.num_kv_heads, after.num_kv_heads) == (4, 2)
    assert after.kv_elements_per_layer_token * 2 == before.kv_elements_per_layer_token
    assert (logits_of(tmp_path / "gqa") - logits_of(source)).abs().max() < 1e-4


def test_heads_that_differ_lose_something_and_nothing_else_changes(tmp_path):
    source = write_mha(tmp_path / "mha", twins=False)
    assert model_verb(["convert", str(source), str(tmp_path / "mqa"), "--kv-heads", "1"]) == 0
    assert (logits_of(tmp_path / "mqa") - logits_of(source)).abs().max() > 0.1
    old, new = load_file(source / "model.safetensors"), load_file(tmp_path / "mqa" / "model.safetensors")
    changed = {name for name in old if old[name].shape != new[name].shape}
    assert changed == {name for name in old if ".k_proj." in name or ".v_proj." in name}
    assert new["model.layers.1.self_attn.v_proj.weight"].shape == (HEAD_DIM, HIDDEN)
    assert all(np.array_equal(old[name], new[name]) for name in old.keys() - changed)


@pytest.mark.parametrize("num_kv_heads", [0, 3, 4, 8])
def test_what_cannot_be_pooled_is_refused_and_leaves_nothing(tmp_path, num_kv_heads):
    source = write_mha(tmp_path / "mha", twins=False)
    with pytest.raises(InputError, match="KV heads cannot be made of the 4 in"):
        convert_folder(source, tmp_path / "out", num_kv_heads)
    assert [path.name for path in tmp_path.iterdir()] == ["mha"]


def test_bad_sources_and_targets_are_told_in_one_line(tmp_path):
    source = write_mha(tmp_path / "mha", twins=False)
    with pytest.raises(InputError, match="exists already"):
        convert_folder(source, source, 2)
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        convert_folder(tmp_path / "nothing", tmp_path / "out", 2)
    with pytest.raises(InputError, match="no KV heads to pool"):
        convert_folder(write_folder(tmp_path / "mla", "DeepseekV2ForCausalLM"), tmp_path / "out", 2)
    with pytest.raises(InputError, match="usage: kvtwin model list"):
        model_verb(["convert", str(source), "out"])
    (source / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(InputError, match="damaged weights"):
        convert_folder(source, tmp_path / "out", 2)
    (source / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(InputError, match="architecture GPT2LMHeadModel is not built"):
        convert_folder(source, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()
