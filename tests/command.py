"""The command as a test uses it: `kvtwin` in this process, in a folder of its own, with what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvtwin.app import main


class Finished(NamedTuple):
    """A finished command: exit status, and the lines it wrote."""

    status: int
    out: str
    errors: list[str]

    @property
    def folder(self) -> Path:
        """The run folder, which is the last line of a single run."""
        return Path(self.out.strip().splitlines()[-1])

    @property
    def summary(self) -> dict[str, Any]:
        return summary_of(self.folder)


Kvtwin = Callable[..., Finished]


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvtwin:
    """`kvtwin WORDS...` from `folder`."""
    monkeypatch.chdir(folder)

    def kvtwin(*words: str) -> Finished:
        capsys.readouterr()
        status = main(words)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Finished(status, printed.out, printed.err.splitlines())

    return kvtwin


def refusals(kvtwin: Kvtwin) -> Callable[..., str]:
    """A run of the command that is to be refused: returns its one line, once it is seen to have left nothing."""

    def refused(*words: str) -> str:
        before = set(Path().iterdir())
        finished = kvtwin(*words)
        assert finished.status == 2, finished
        assert finished.out == ""
        (line,) = finished.errors
        assert set(Path().iterdir()) - {Path("__pycache__")} == before  # Python's own, where a plugin was imported
        return line.removeprefix("kvtwin: ")

    return refused


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def write_trace(path: Path, rows: Sequence[dict[str, Any] | str]) -> Path:
    """A trace in kvtwin's own format; a row given as text is written as it stands."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in ({"kvtwin": "trace/1", "name": "own"}, *rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def row(arrival_s: float, num_prompt_tokens: int = 40, num_output_tokens: int = 5, **more: Any) -> dict[str, Any]:
    counts = {"num_prompt_tokens": num_prompt_tokens, "num_output_tokens": num_output_tokens}
    return {"arrival_s": arrival_s, **counts, **more}
