"""Recipes of traces: the keys of the document, and where to find one by name or file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from core.errors import InputError
from core.whole_file import whole_file
from traces.generators.arrivals import ARRIVALS, Arrivals
from traces.generators.blocks import Block, Place, block_of, key, number, one_of, optional, read_block, text, whole
from traces.generators.distributions import Distribution, distribution
from traces.generators.extras import Cancellations, Deadlines, Tenants, priorities
from traces.generators.growing import Growth, NominalService
from traces.generators.prefixes import PREFIXES, NoPrefix, Prefix
from traces.generators.requests import Requests
from traces.generators.reuse import Reuse
from traces.generators.sessions import SESSIONS, Sessions, Single
from traces.generators.streams import Streams
from traces.strict_yaml import load_strict

MAX_REQUESTS = 50_000_000
LINE_WIDTH = 120
NOTES = ("description", "fit")  # for people; nothing is made from them


@dataclass(frozen=True, kw_only=True)
class Recipe(Block):
    """What a trace is made from. Times are seconds, lengths tokens; `docs/recipes.md` describes every key."""

    name: str = key(text)
    licence: str = key(text, "")
    num_requests: int = key(whole(least=1, most=MAX_REQUESTS), 1000)
    seed: int = key(whole(least=0, most=2**63 - 1), 0)
    hash_block_tokens: int | None = key(optional(whole(least=1)), None)  # null: the trace says nothing about prefixes
    time_quantum_s: float = key(number(least=0, most=1e6), 0.0)  # arrivals are rounded down to its multiples; 0: not
    arrivals: Arrivals = key(one_of(ARRIVALS))
    prompt_tokens: Distribution = key(distribution)
    output_tokens: Distribution = key(distribution)
    length_rank_correlation: float = key(number(least=-1, most=1), 0.0)  # of a prompt's new tokens and its output
    prefix: Prefix = key(one_of(PREFIXES), NoPrefix())
    sessions: Sessions = key(one_of(SESSIONS), Single())
    nominal_service: NominalService = key(block_of(NominalService), NominalService())
    reuse: Reuse | None = key(block_of(Reuse), None)
    tenants: Tenants | None = key(block_of(Tenants), None)
    priorities: dict[int, float] | None = key(priorities, None)
    cancellations: Cancellations | None = key(block_of(Cancellations), None)
    deadlines: Deadlines | None = key(block_of(Deadlines), None)

    def check(self, place: Place) -> None:
        is_plain = self.prefix == NoPrefix() and self.sessions == Single() and self.reuse is None
        if self.hash_block_tokens is None and not is_plain:
            raise place.of("hash_block_tokens").refusal(None, "a number of tokens, since prompts share beginnings here")
        if self.reuse is not None and self.sessions != Single():
            raise place.of("sessions").refusal(
                "sessions", "none beside `reuse`, which says what repeats earlier prompts"
            )

    def requests(self, streams: Streams) -> Requests:
        """The recipe's requests, by arrival."""
        growth = Growth(
            self.arrivals,
            self.prompt_tokens,
            self.output_tokens,
            self.length_rank_correlation,
            self.prefix,
            self.sessions,
            self.nominal_service,
        )
        if self.reuse is None or self.hash_block_tokens is None:
            return growth.requests(self.num_requests, streams)
        return self.reuse.requests(growth, self.hash_block_tokens, self.num_requests, streams)


def read_recipe(document: Mapping[str, Any], place: Place) -> Recipe:
    """The recipe that a document describes. Raises InputError naming file, key, value and what was expected."""
    return read_block(Recipe, document, place, also=NOTES)


def recipe_names() -> list[str]:
    """The recipes that come with kvtwin."""
    names = (entry.name for entry in files("traces").joinpath("recipes").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def recipe_descriptions() -> dict[str, str]:
    """What each of them is, in a line."""
    return {name: str(load_recipe(name)[0]["description"]) for name in recipe_names()}


def load_recipe(name_or_file: str) -> tuple[dict[str, Any], Path]:
    """The document of a recipe, by name or file (YAML or JSON), and the file that it stands in.

    Raises InputError where there is none, where it is no mapping, or where a key stands twice.
    """
    if name_or_file in recipe_names():
        path = Path(str(files("traces").joinpath("recipes", f"{name_or_file}.yaml")))
    else:
        path = Path(name_or_file).expanduser()
        if not path.is_file():
            near = get_close_matches(name_or_file, recipe_names(), n=1) or recipe_names()
            raise InputError(
                f"recipe {name_or_file}: no such file, nor a known name; expected such as {', '.join(near)}"
            )
    document = load_strict(path, "a recipe in YAML")
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a mapping with keys such as arrivals, prompt_tokens, output_tokens")
    return document, path


def write_recipe(path: Path, document: Mapping[str, Any], remarks: Sequence[str]) -> None:
    """Writes a recipe as YAML, whole or not at all; before it `remarks`, a comment line each. Raises OSError."""
    comments = "".join(f"# {remark}".rstrip() + "\n" for remark in remarks)
    keys = yaml.safe_dump(
        dict(document), sort_keys=False, default_flow_style=None, width=LINE_WIDTH, allow_unicode=True
    )
    with whole_file(path) as temporary:
        temporary.write_text(comments + keys, encoding="utf-8", newline="\n")
