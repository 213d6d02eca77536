"""The paged decoder computes what a dense one does: any chunking, any block tables, any company in the batch."""

import dataclasses
import os
import random
from pathlib import Path

import pytest
import torch
from dense_reference import ReferenceModel, in_half_split_order, mean_nll, read_gguf, reference_logits

from engine.batch import BatchItem, build_batch
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights
from engine.kv_cache import PagedKV, allocate_kv, kv_block_bytes
from engine.model import Decoder
from engine.smollm2 import GGUF_FILE, fetch_smollm2_135m, find_smollm2_135m
from engine.tokenizer import BPECodec
from engine.weights import TOKENIZER_FILE, load_weights, random_weights

BLOCK_SIZE = 4
TINY = DecoderShape(
    num_layers=3,
    hidden=40,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    intermediate=56,
    vocab_size=97,
    max_positions=128,
)
CORPUS = Path(__file__).parents[1] / "traces" / "samples" / "corpus.txt"


def as_reference(shape: DecoderShape, weights: DecoderWeights) -> ReferenceModel:
    """The same weights under the reference's names, the fused ones taken apart."""
    tensors = {"token_embd": weights.embedding, "output_norm": weights.final_norm, "output": weights.head}
    kv_rows = shape.num_kv_heads * shape.head_dim
    for index, layer in enumerate(weights.layers):
        q, k, v = layer.attention.qkv.split((shape.num_heads * shape.head_dim, kv_rows, kv_rows))
        gate, up = layer.mlp.gate_up.chunk(2)
        named = {
            "attn_norm": layer.attn_norm,
            "attn_q": q,
            "attn_k": k,
            "attn_v": v,
            "attn_output": layer.attention.out,
        }
        named |= {"ffn_norm": layer.mlp_norm, "ffn_gate": gate, "ffn_up": up, "ffn_down": layer.mlp.down}
        tensors |= {f"blk.{index}.{name}": tensor for name, tensor in named.items()}
    return ReferenceModel(
        tensors, shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.rope_base, shape.norm_eps
    )


def poisoned_kv(shape: DecoderShape, num_blocks: int, block_size: int = BLOCK_SIZE) -> PagedKV:
    """A pool full of NaN: whatever is read before it was written ruins the logits."""
    kv = allocate_kv(shape, num_blocks, block_size, torch.float32, "cpu")
    kv.key.fill_(torch.nan)
    kv.value.fill_(torch.nan)
    return kv


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tiny(request) -> tuple[Decoder, ReferenceModel]:
    shape = dataclasses.replace(TINY, tied=request.param)
    weights = random_weights(shape, seed=7)
    return Decoder(shape, weights), as_reference(shape, weights)


def run(decoder: Decoder, kv: PagedKV, *items: BatchItem) -> torch.Tensor:
    return decoder.forward(build_batch(items, kv.block_size, "cpu"), kv)


def assert_close(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("seed", range(8))
def test_random_steps_of_mixed_sequences_equal_the_dense_model(tiny, seed):
    """Seven sequences, shuffled block tables, every step a random set of them with a random chunk each."""
    decoder, reference = tiny
    draw = random.Random(seed)
    sequences = [[draw.randrange(97) for _ in range(draw.choice((1, 3, 4, 5, 17, 30)))] for _ in range(7)]
    expected = [reference_logits(reference, tokens) for tokens in sequences]
    blocks = draw.sample(range(70), 70)
    tables = [[blocks.pop() for _ in range(8)] for _ in sequences]
    kv, computed = poisoned_kv(decoder.shape, 70), [0] * 7

    while any(done < len(tokens) for done, tokens in zip(computed, sequences, strict=True)):
        unfinished = [i for i in range(7) if computed[i] < len(sequences[i])]
        chosen = draw.sample(unfinished, draw.randint(1, len(unfinished)))
        items, wanted = [], []
        for i in chosen:
            start = computed[i]
            computed[i] = min(len(sequences[i]), start + draw.choice((1, 1, 2, 6, 11)))
            items.append(BatchItem(sequences[i][start : computed[i]], start, [tables[i]], draw.random() < 0.8))
            if items[-1].wants_logits:
                wanted.append(expected[i][computed[i] - 1])
        logits = run(decoder, kv, *items)
        assert len(logits) == len(wanted)
        if wanted:
            assert_close(logits, torch.stack(wanted))


def test_sequences_share_the_blocks_of_a_common_prefix(tiny):
    decoder, reference = tiny
    prefix, tails = list(range(2 * BLOCK_SIZE)), ([50, 51, 52], [60, 61])
    kv = poisoned_kv(decoder.shape, 8)
    run(decoder, kv, BatchItem(prefix + tails[0], 0, [[5, 1, 3]], True))

    hit = run(decoder, kv, BatchItem(tails[1], len(prefix), [[5, 1, 6]], True))

    assert_close(hit[0], reference_logits(reference, prefix + tails[1])[-1])


def test_a_copied_block_diverges_without_harm_to_the_original(tiny):
    decoder, reference = tiny
    common, kv = [9, 8, 7, 6, 5, 4], poisoned_kv(decoder.shape, 8)
    run(decoder, kv, BatchItem(common, 0, [[2, 4]], False))

    kv.copy_blocks([4], [7])
    logits = run(decoder, kv, BatchItem([11], 6, [[2, 4]], True), BatchItem([22], 6, [[2, 7]], True))

    for row, token in zip(logits, (11, 22), strict=True):
        assert_close(row, reference_logits(reference, [*common, token])[-1])


def test_swapped_out_blocks_come_back_elsewhere(tiny):
    decoder, reference = tiny
    tokens, kv, host = list(range(30, 37)), poisoned_kv(decoder.shape, 8), poisoned_kv(decoder.shape, 3)
    run(decoder, kv, BatchItem(tokens, 0, [[0, 1]], False))

    kv.move_blocks([0, 1], host, [2, 0])
    kv.key[:, :2] = kv.value[:, :2] = torch.nan
    host.move_blocks([2, 0], kv, [6, 5])
    logits = run(decoder, kv, BatchItem([3], 7, [[6, 5]], True))

    assert_close(logits[0], reference_logits(reference, [*tokens, 3])[-1])


def test_bf16_stays_near_fp32():
    weights = [random_weights(TINY, seed=7, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    tokens = list(range(20))
    logits = []
    for each in weights:
        kv = allocate_kv(TINY, 5, BLOCK_SIZE, each.embedding.dtype, "cpu")
        logits.append(run(Decoder(TINY, each), kv, BatchItem(tokens, 0, [[4, 2, 0, 1, 3]], True)))
    assert 0 < (logits[0] - logits[1]).abs().max() < 0.25


def test_the_pool_has_the_bytes_the_block_size_says():
    kv = allocate_kv(TINY, num_blocks=9, block_size=16, dtype=torch.bfloat16, device="cpu", first_block_id=1)
    assert kv.num_bytes == 10 * kv_block_bytes(TINY, 16, torch.bfloat16) == 10 * 2 * 3 * 16 * 2 * 16 * 2


def test_batches_pack_decodes_first_and_answer_in_the_callers_order():
    batch = build_batch(
        [
            BatchItem([10, 11, 12], 2, [[7, 3]], True),
            BatchItem([20], 5, [[1, 0]], True),
            BatchItem([30, 31], 0, [[9, 9, 9]], False),
            BatchItem([40], 0, [[4]], True),
        ],
        BLOCK_SIZE,
        "cpu",
    )
    assert batch.token_ids.tolist() == [20, 40, 10, 11, 12, 30, 31]
    assert batch.positions.tolist() == [5, 0, 2, 3, 4, 0, 1]
    (tables,) = batch.groups
    assert tables.slot_mapping.tolist() == [1, 16, 30, 31, 12, 36, 37]
    assert tables.decode_block_tables.tolist() == [[1, 0], [4, 4]]
    assert batch.decode_num_kv_tokens.tolist() == [6, 1]
    assert tables.prefill_block_tables.tolist() == [[7, 3], [9, 9]]
    assert batch.prefill_query_start.tolist() == [0, 3, 5]
    assert batch.prefill_num_kv_tokens.tolist() == [5, 2]
    assert batch.sample_rows.tolist() == [4, 0, 1]


def test_a_short_block_table_is_refused():
    with pytest.raises(ValueError, match="2 blocks are needed"):
        build_batch([BatchItem([1], 4, [[0]], True)], BLOCK_SIZE, "cpu")


# The real weights -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2_folder() -> Path:
    folder = fetch_smollm2_135m() if os.environ.get("KVTWIN_FETCH") else find_smollm2_135m()
    if folder is None:
        pytest.skip("SmolLM2-135M is not in the cache and KVTWIN_FETCH is not set")
    return folder


@pytest.fixture(scope="module")
def passage(smollm2_folder) -> list[int]:
    text = CORPUS.read_text(encoding="utf-8")[:4000]
    return BPECodec.load(smollm2_folder / TOKENIZER_FILE).encode_corpus(text)[:256].tolist()


@pytest.fixture(scope="module")
def stored(smollm2_folder) -> ReferenceModel:
    """The GGUF file as the reference reads it, q and k still permuted."""
    return read_gguf(smollm2_folder / GGUF_FILE)


@pytest.fixture(scope="module")
def expected_logits(stored, passage) -> torch.Tensor:
    return reference_logits(in_half_split_order(stored), passage)


def logits_everywhere(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """Logits at every position, computed in three chunks over a shuffled table."""
    table = random.Random(0).sample(range(40), 16)
    kv, chunks = poisoned_kv(decoder.shape, 40, block_size=16), []
    for start, end in ((0, 100), (100, 101), (101, len(tokens))):
        batch = build_batch([BatchItem(tokens[start:end], start, [table], True)], 16, "cpu")
        chunks.append(decoder.forward(dataclasses.replace(batch, sample_rows=torch.arange(end - start)), kv))
    return torch.cat(chunks)


@pytest.mark.weights
def test_smollm2_logits_and_nll_equal_the_reference(smollm2_folder, passage, expected_logits):
    logits = logits_everywhere(Decoder(*load_weights(smollm2_folder, torch.float32)), passage)

    assert (logits - expected_logits).abs().max() < 1e-3
    assert mean_nll(logits, passage) == pytest.approx(mean_nll(expected_logits, passage), abs=1e-3)
    assert torch.equal(logits.argmax(-1), expected_logits.argmax(-1))


@pytest.mark.weights
def test_smollm2_with_q_and_k_left_permuted_is_far_worse(smollm2_folder, passage, stored, expected_logits):
    """The negative control: this mistake still yields fluent text, so only the likelihood shows it."""

    def as_stored(index):
        return torch.cat([stored.tensors[f"blk.{index}.attn_{part}"] for part in ("q", "k", "v")])

    shape, weights = load_weights(smollm2_folder, torch.float32)
    permuted_layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, qkv=as_stored(index)))
        for index, layer in enumerate(weights.layers)
    )
    permuted = Decoder(shape, dataclasses.replace(weights, layers=permuted_layers))

    nll = mean_nll(logits_everywhere(permuted, passage), passage)

    assert nll > mean_nll(expected_logits, passage) + 1.5


@pytest.mark.weights
def test_smollm2_in_bf16_loses_little(smollm2_folder, passage, expected_logits):
    shape, weights = load_weights(smollm2_folder, torch.bfloat16)
    kv = allocate_kv(shape, 16, 16, torch.bfloat16, "cpu")
    batch = build_batch([BatchItem(passage, 0, [range(16)], True)], 16, "cpu")
    logits = Decoder(shape, weights).forward(dataclasses.replace(batch, sample_rows=torch.arange(len(passage))), kv)
    assert mean_nll(logits, passage) == pytest.approx(mean_nll(expected_logits, passage), abs=0.02)
