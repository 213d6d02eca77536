"""The bundled traces: reproducible, small, fitted, and sharing what they mean to share."""

import importlib.util
import json
import re
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from core.errors import InputError
from traces.passages import NUM_POSITIONS
from traces.quantiles import Quantiles
from traces.reading import read_trace
from traces.samples import SAMPLE_NAMES, corpus_path, sample_path
from traces.schema import Trace
from traces.synthetic import (
    CHAT_GAP_US,
    CHAT_OUTPUT_TOKENS,
    CHAT_PROMPT_TOKENS,
    PROBABILITIES,
    agent_sessions,
    chat,
    long_documents,
)
from traces.tokens import segment_tokens
from traces.transforms import length_scale, limit

ROOT = Path(__file__).parents[1]
AZURE_CONV = ROOT.parent / "shared" / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"
needs_azure = pytest.mark.skipif(not AZURE_CONV.is_file(), reason="the Azure trace is not beside this checkout")


@pytest.fixture(scope="module")
def make_samples():
    spec = importlib.util.spec_from_file_location("make_samples", ROOT / "scripts" / "make_samples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sample(name: str) -> Trace:
    return read_trace(sample_path(name))


def test_the_script_makes_the_bundled_files_byte_for_byte(make_samples, tmp_path):
    make_samples.make_samples(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.jsonl" for name in SAMPLE_NAMES)
    for name in SAMPLE_NAMES:
        assert (tmp_path / f"{name}.jsonl").read_bytes() == sample_path(name).read_bytes()


def test_every_file_is_small():
    for path in (corpus_path(), *map(sample_path, SAMPLE_NAMES)):
        assert path.stat().st_size <= 300_000


def test_an_unknown_sample_names_the_near_one():
    with pytest.raises(InputError, match=r"no bundled trace 'agent_session' \(near: agent_sessions\)"):
        sample_path("agent_session")


def test_the_text_is_spoken_lines_only():
    text = corpus_path().read_text(encoding="ascii")
    assert not re.search(r"[\[\]<>_]|Gutenberg|^(ACT|SCENE|Scene) |^[A-Z ]+\.$", text, re.MULTILINE)


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_positions_fit_any_tokeniser(name):
    trace = sample(name)
    for segments in (trace.prompt_segments, trace.output_segments):
        assert segments.values.sum(axis=1).max() <= NUM_POSITIONS == 60_000


def percentiles_of(trace: Trace) -> dict[str, list[float]]:
    columns = {
        "num_prompt_tokens": trace.num_prompt_tokens,
        "num_output_tokens": trace.num_output_tokens,
        "inter_arrival_s": np.diff(trace.arrival_ps) / 1e12,
    }
    return {name: np.percentile(column, [50, 90, 99]).tolist() for name, column in columns.items()}


def header_fit() -> dict:
    with sample_path("chat").open() as lines:
        return json.loads(next(lines))["notes"]["fit"]


def test_the_header_has_the_percentiles_of_the_sample_and_they_fit_the_trace():
    fit = header_fit()
    assert "CC-BY-4.0" in fit["credit"]
    for name, measured in percentiles_of(sample("chat")).items():
        assert list(fit["sample"][name].values()) == pytest.approx(measured, abs=1e-6)
        assert measured == pytest.approx(list(fit["trace"][name].values()), rel=0.02)


@needs_azure
def test_the_header_has_the_percentiles_of_the_azure_trace():
    fit = header_fit()
    for name, measured in percentiles_of(read_trace(AZURE_CONV)).items():
        assert list(fit["trace"][name].values()) == pytest.approx(measured, abs=1e-6)


@needs_azure
def test_the_quantiles_in_the_generator_are_those_of_the_azure_trace():
    trace = read_trace(AZURE_CONV)
    assert Quantiles.fit(trace.num_prompt_tokens, PROBABILITIES) == CHAT_PROMPT_TOKENS
    assert Quantiles.fit(trace.num_output_tokens, PROBABILITIES) == CHAT_OUTPUT_TOKENS
    assert Quantiles.fit(np.diff(trace.arrival_ps) // 10**6, PROBABILITIES) == CHAT_GAP_US


def prefix_hit_tokens(trace: Trace, text: np.ndarray, block: int = 16) -> int:
    """Full blocks of 16 found in an infinite cache, one prompt after the other."""
    seen: set[int] = set()
    num_hit_blocks = 0
    for row in range(trace.num_requests):
        prompt = segment_tokens(text, trace.prompt_segments.row(row))
        blocks = prompt[: len(prompt) // block * block].reshape(-1, block)
        prefixes = list(accumulate((content.tobytes() for content in blocks), lambda *pair: hash(pair), initial=0))[1:]
        num_hit_blocks += sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    return num_hit_blocks * block


def word_tokens() -> np.ndarray:
    """A crude tokeniser: pieces of at most three letters, and the space before them."""
    pieces = re.findall(r" ?\w{1,3}|[^\w]", corpus_path().read_text())
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return np.array([numbers[piece] for piece in pieces])


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_real_words_share_what_positions_share(name):
    trace = limit(sample(name), 120)
    by_position = prefix_hit_tokens(trace, np.arange(NUM_POSITIONS))
    assert by_position > 0
    assert prefix_hit_tokens(trace, word_tokens()) == by_position


def test_chat_shares_a_system_prompt_and_nothing_else():
    segments = sample("chat").prompt_segments
    starts, counts = np.unique(segments.values[:, 0], return_counts=True)
    assert (counts > 1).sum() == 1
    assert 200 < counts.max() < 500
    assert segments.values[segments.values[:, 0] == starts[counts.argmax()], 1].tolist() == [160] * counts.max()


def test_an_agents_turn_repeats_the_conversation_and_adds_to_it():
    trace = sample("agent_sessions")
    first_segments = set()
    for row in range(trace.num_requests):
        prompt = trace.prompt_segments.row(row).tolist()
        first_segments.add(tuple(prompt[0]))
        parent = trace.parent[row]
        if parent < 0:
            assert trace.think_time_ps[row] == -1
            continue
        before = trace.prompt_segments.row(parent).tolist() + trace.output_segments.row(parent).tolist()
        assert prompt[: len(before)] == before
        assert len(prompt) == len(before) + 1
        assert trace.session_id[parent] == trace.session_id[row]
        assert trace.think_time_ps[row] >= 0
    assert len(first_segments) == 1
    assert len(np.unique(trace.session_id)) == 60
    assert 4 * 60 < trace.num_requests < 6 * 60
    assert trace.num_prompt_tokens.max() < 4_500


def test_documents_are_long_and_shared():
    trace = sample("long_documents")
    documents = [tuple(trace.prompt_segments.row(row)[0]) for row in range(trace.num_requests)]
    assert trace.num_requests == 150
    assert len(set(documents)) == 12
    assert all(4_000 <= num_tokens <= 8_000 for _, num_tokens in documents)


def test_a_short_scaled_chat_has_the_size_of_the_demo():
    trace = limit(length_scale(sample("chat"), "1/6"), 65)
    trace.validate()
    assert 9_000 < trace.num_prompt_tokens.sum() < 15_000
    assert 1_500 < trace.num_output_tokens.sum() < 3_000


@pytest.mark.parametrize("make", [chat, agent_sessions])
def test_a_seed_settles_everything(make):
    one, same, other = make(20, seed=1), make(20, seed=1), make(20, seed=2)
    assert one.prompt_segments.values.tolist() == same.prompt_segments.values.tolist()
    assert one.arrival_ps.tolist() == same.arrival_ps.tolist()
    assert one.prompt_segments.values.tolist() != other.prompt_segments.values.tolist()
    assert make(1, seed=1).num_requests >= 1


def test_impossible_sizes_are_refused():
    with pytest.raises(InputError, match="num_requests=0; expected at least 1"):
        chat(0, seed=1)
    with pytest.raises(InputError, match="num_questions=0"):
        long_documents(3, 0, seed=1)
    with pytest.raises(InputError, match="no place in the text for another passage"):
        chat(40_000, seed=1)
    with pytest.raises(InputError, match="both rising"):
        Quantiles((0, 0.5, 1), (3, 2, 4))
