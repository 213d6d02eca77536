"""Recipes: those that come along, the bytes that they make, and the mistakes in one, each named."""

import hashlib
import json
import random
from contextlib import suppress
from copy import deepcopy
from datetime import date

import numpy as np
import pytest

from core.errors import InputError
from traces.generate import generate
from traces.reading import read_trace
from traces.recipe import load_recipe, recipe_names
from traces.tokens import HashTokens
from traces.writing import write_trace

PLAIN = {"name": "t", "arrivals": {"kind": "poisson", "rate_rps": 2}, "prompt_tokens": 100, "output_tokens": 200}


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_that_come_along(name, tmp_path):
    document, path = load_recipe(name)
    trace = generate(document, 300, file=path.name)
    trace.validate()
    write_trace(trace, tmp_path / "t.jsonl")
    back = read_trace(tmp_path / "t.jsonl")
    assert back.recipe == json.loads(json.dumps(trace.recipe))
    assert (back.recipe["num_requests"], back.recipe["seed"]) == (300, document.get("seed", 0))
    again = generate(back.recipe)  # the header is all it takes
    for (column, values), (_, same) in zip(again.columns(), trace.columns(), strict=True):
        assert np.array_equal(values, same), column
    if trace.hash_ids is not None:
        assert np.array_equal(again.hash_ids.values, trace.hash_ids.values)
        HashTokens(trace, vocab_size=50_000).prompt_tokens(299)  # an id follows one id only


def test_same_seed_same_bytes(tmp_path):
    def digest(seed: int) -> str:
        write_trace(generate(load_recipe("chat_multi_turn")[0], 200, seed), tmp_path / "t.jsonl")
        return hashlib.sha256((tmp_path / "t.jsonl").read_bytes()).hexdigest()

    assert digest(1) == digest(1) != digest(2)


def test_a_trace_that_never_was_a_file_has_a_digest_of_its_own():
    digests = [generate(PLAIN, 9, seed).sha256 for seed in (1, 1, 2)]
    assert len(digests[0]) == 64
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"arrivals": {"kind": "poison"}}, "key arrivals.kind: 'poison'; expected poisson?"),
        ({"arrivals": {"kind": "poisson"}}, "key arrivals.rate_rps is missing"),
        ({"arrivals": {"kind": "poisson", "rate_rps": -1}}, "key arrivals.rate_rps: -1; expected a number above 0"),
        ({"arrivals": {"kind": "poisson", "rate": 1}}, "key arrivals.rate: 1; expected a known key, such as rate_rps"),
        ({"arrivals": 5}, "key arrivals: 5; expected a mapping"),
        ({"promt_tokens": 1}, "key promt_tokens: 1; expected a known key, such as prompt_tokens"),
        ({"prompt_tokens": "many"}, "key prompt_tokens: 'many'; expected a mapping"),
        ({"prompt_tokens": {"kind": "lognormal", "sigma": 1}}, "expected either a median or a mean"),
        (
            {"prompt_tokens": {"kind": "uniform", "min": 5, "max": 4}},
            "key prompt_tokens.min: 5.0; expected no more than",
        ),
        (
            {"prompt_tokens": {"kind": "empirical", "probabilities": [0, 0.5], "values": [1, 2]}},
            "key prompt_tokens.probabilities: .*; expected probabilities that rise from 0 to 1",
        ),
        (
            {"prompt_tokens": {"kind": "empirical", "probabilities": [0, 1], "values": [3, 2]}},
            "key prompt_tokens.values: .*; expected 2 values that do not fall",
        ),
        ({"prompt_tokens": {"kind": "empirical", "probabilities": 1, "values": []}}, "expected a list of at least one"),
        ({"length_rank_correlation": 2}, "key length_rank_correlation: 2; expected a number from -1 to 1"),
        ({"num_requests": 0}, "key num_requests: 0; expected a whole number from 1"),
        ({"num_requests": True}, "key num_requests: True; expected a whole number"),
        ({"seed": 1.5}, "key seed: 1.5; expected a whole number"),
        (
            {"prefix": {"kind": "system_prompts", "count": 2, "tokens": 5}},
            "key hash_block_tokens: None; expected a num",
        ),
        (
            {
                "hash_block_tokens": 4,
                "reuse": {"ratio": [0.5], "prompt_tokens": 9, "output_tokens": 1, "left_blocks": 1, "age_s": 1},
            },
            "key reuse: expected either shared_blocks or new_blocks",
        ),
        ({"priorities": {0: 0.5}}, "key priorities: {0: 0.5}; expected probabilities that sum to 1, not 0.5"),
        ({"priorities": {"high": 1}}, "key priorities.high: 'high'; expected a priority"),
        ({"cancellations": {"probability": 2, "after_s": 1}}, "key cancellations.probability: 2; expected a number"),
        ({"arrivals": {"kind": "poisson", "rate_rps": 1e-9}}, "expected at most 9000000"),
        ({"arrivals": {"kind": "on_off", "on_rate_rps": 1, "on_s": 0, "off_s": 1}}, "expected longer or denser ones"),
        (
            {
                "hash_block_tokens": 4,
                "sessions": {"kind": "tree_of_thought", "branching": 9, "depth": 9, "thought_tokens": 1},
            },
            "key sessions.depth: 9; expected a tree of at most 1000000 requests",
        ),
        (
            {
                "hash_block_tokens": 4,
                "prefix": {"kind": "rag", "documents": 2, "document_tokens": 4, "documents_per_prompt": 2},
            },
            "key prefix.documents: 2; expected at least 3",
        ),
        ({"hash_block_tokens": 1, "prompt_tokens": 2**30}, "more than 536870912; expected fewer or shorter prompts"),
    ],
)
def test_mistakes_in_a_recipe_are_named(keys, message):
    with pytest.raises(InputError, match=message) as error:
        generate(PLAIN | keys, keys.get("num_requests", 10), file="mine.yaml")
    assert "\n" not in str(error.value)


JUNK = [None, True, -1, 0, 1e-9, 1e299, 1e400, float("nan"), 10**400, 2**62, "x", [], [1], {}, {"kind": "fixed"}]


def places(block: object, path: tuple = ()) -> list[tuple]:
    """The path of every value in a document, blocks included; of a list its first two."""
    entries = block.items() if isinstance(block, dict) else enumerate(block[:2]) if isinstance(block, list) else []
    return [found for name, value in entries for found in [(*path, name), *places(value, (*path, name))]]


@pytest.mark.parametrize("name", recipe_names())
def test_no_junk_in_a_recipe_gets_past_the_reader(name):
    rng = random.Random(0)
    original = load_recipe(name)[0]
    extras = {"tenants": {"count": 2}, "cancellations": {"probability": 1, "after_s": 1}, "priorities": {0: 1}}
    document = original | extras | {"nominal_service": {"ttft_s": 1, "tpot_s": 1}, "deadlines": {"after_s": 1}}
    for path in places(document):
        broken = deepcopy(document)
        block = broken
        for step in path[:-1]:
            block = block[step]
        block[path[-1]] = rng.choice(JUNK)
        with suppress(InputError):
            generate(broken, 12).validate()


def test_notes_that_json_cannot_hold():
    circular: list = []
    circular.append(circular)
    with pytest.raises(InputError, match="expected a recipe that JSON can hold"):
        generate(PLAIN | {"fit": circular}, 2)
    assert generate(PLAIN | {"description": date(2020, 1, 2)}, 2).recipe["description"] == "2020-01-02"


@pytest.mark.parametrize("text", ["a: 2020-99-99", "[" * 2000, "", "a: [", "- 1", "\x00", "a: *b"])
def test_a_file_that_is_no_recipe(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"mine\.yaml[:,] ") as error:
        load_recipe(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nseed: 1\nseed: 2\n", r"line 3, key seed: it stands in line 2 already; expected it once"),
        (
            "arrivals:\n  kind: poisson\n  rate_rps: 1\n  kind: gamma\n",
            r"line 4, key kind: it stands in line 2",
        ),
        ("arrivals: {kind: poisson, kind: gamma}\n", r"line 1, key kind: it stands in line 1 already"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(text, message, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"twice\.yaml, {message}"):
        load_recipe(str(path))


@pytest.mark.parametrize("rate", ["1e3", "1E+3", "+10e2", "1.e3", "1.0e+3"])
def test_powers_of_ten_are_numbers_as_in_json(rate, tmp_path):
    path = tmp_path / "fast.yaml"
    path.write_text(f"name: a\narrivals: {{kind: poisson, rate_rps: {rate}}}\nprompt_tokens: 4\noutput_tokens: 3e0\n")
    recipe = load_recipe(str(path))[0]
    assert recipe["arrivals"]["rate_rps"] == 1000
    assert generate(recipe, 5, 1).num_output_tokens.tolist() == [3] * 5


def test_an_unknown_recipe_gets_its_near_ones():
    with pytest.raises(InputError, match=r"recipe chat_multiturn: no such file, nor a known name; .* chat_multi_turn$"):
        load_recipe("chat_multiturn")
