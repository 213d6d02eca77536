"""What README and docs print can be typed: verbs, options, keys and files exist, and links lead somewhere."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from inspect import signature
from itertools import groupby
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from kvtwin.app import VERBS, main
from kvtwin.binding import find_class
from kvtwin.composition import compose_config
from kvtwin.flags import SWEEP_FLAGS
from kvtwin.naming import options_of

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/*/*.md"))]
WITH_CONFIG = ("sim", "engine", "validate", "calibrate", "size")
OTHERS_OWN = ("second_chance_ends", "second_chance_ends_3", "tenure")  # of packages that the pages install
COMMAND = re.compile(r"(kvtwin|python|make|scripts/[\w-]+)\b")


def words_of(text: str) -> Iterator[list[str]]:
    """The commands of one line: after a prompt, before a comment, one for each side of `&&` or a pipe."""
    words = shlex.split(text.removeprefix("$ "), comments=True)
    for is_between, command in groupby(words, lambda word: word in ("&&", "|", ">")):
        found = list(command)
        if not is_between and COMMAND.match(found[0]):
            yield found


def commands_of(page: Path) -> Iterator[list[str]]:
    """Those in blocks and those within sentences that say more than the name of a verb."""
    text = page.read_text()
    fence = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for block in fence.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if COMMAND.match(line.removeprefix("$ ")):
                yield from words_of(line)
    for quoted in re.findall(r"`([^`]+)`", fence.sub("", text)):
        if COMMAND.match(quoted) and "..." not in quoted:
            yield from words_of(" ".join(quoted.split()))


COMMANDS = [(page.name, words) for page in PAGES for words in commands_of(page)]


def settings_of(verb: str, words: list[str]) -> None:
    """Every option and key of a verb with a configuration exists."""
    chosen = {}
    settings = [word.lstrip("+") for word in words if word not in SWEEP_FLAGS and not word.startswith("--")]
    for key, _, value in (word.partition("=") for word in settings):
        if options_of(key):
            chosen[key] = value.split(",")
            assert set(chosen[key]) <= {*options_of(key), *OTHERS_OWN} or key == "hydra/launcher", f"{key}={value}"
    own_class = {key.partition(".")[0] for key in (word.partition("=")[0] for word in settings) if "_target_" in key}
    for key in (word.partition("=")[0] for word in settings):
        group, _, name = key.partition(".")
        is_known = key in chosen or key == "seeds" or group in ("hydra", *own_class)  # launchers are packages
        given = chosen.get(group, ())
        assert (
            is_known
            or not set(given).isdisjoint(OTHERS_OWN)
            or any(name in parameters_of(group, option) for option in given)
            or OmegaConf.select(defaults_of(verb), key, default=KeyError) is not KeyError
        ), key


@cache
def defaults_of(verb: str) -> DictConfig:
    return compose_config(verb, [])


@cache
def parameters_of(group: str, option: str) -> set[str]:
    """The keys of an option's file, and what its class takes."""
    config = OmegaConf.load(ROOT / "conf" / group / f"{option}.yaml")
    assert isinstance(config, DictConfig)
    target = config.get("_target_")
    taken = [] if target is None else signature(find_class(str(target), group)).parameters
    return {*map(str, config), *taken}


def check_options(words: list[str]) -> None:
    """Every option of a verb without a configuration is in its help."""
    num_verbs = 2 if words[0] in ("trace", "policy", "model", "demo") and words[1:2] not in ([], ["NAME"]) else 1
    told = help_of(tuple(words[:num_verbs]))
    for word in words[num_verbs:]:
        assert not word.startswith("-") or re.search(rf"{word}\b", told), word


@cache
def help_of(verbs: tuple[str, ...]) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        assert main([*verbs, "--help"]) == 0, verbs
    return printed.getvalue()


def check(program: str, words: list[str]) -> None:
    if program == "make" and words:
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(), words[0]
    elif program == "python" and words[0].startswith(("benchmarks/", "scripts/")):
        source = (ROOT / words[0]).read_text()
        for word in words:
            assert not word.startswith("--") or f'"{word}"' in source, word
    elif program.startswith("scripts/"):
        assert (ROOT / program).exists(), program
    elif program == "kvtwin" and words and words[0] not in ("VERB", "--help"):
        assert words[0] in VERBS, words[0]
        if words[0] in WITH_CONFIG:
            settings_of(words[0], words[1:])
        else:
            check_options(words)


def test_commands_can_be_typed() -> None:
    """One test for all of them: what verbs say of themselves is asked once."""
    wrong = []
    for page, (program, *words) in COMMANDS:
        try:
            check(program, words)
        except (AssertionError, OSError) as error:
            wrong.append(f"{page}: {program} {' '.join(words)}: {str(error).splitlines()[0]}")
    assert not wrong


def headings(page: Path) -> set[str]:
    """As their anchors."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            if "://" not in target:
                place = page.parent / name if name else page
                assert place.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in headings(place), f"{page.name}: {target}"
