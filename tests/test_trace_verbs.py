"""`kvtwin trace`: its verbs as a newcomer meets them, on small files and on the public ones."""

from __future__ import annotations

import pytest
from command import Kvtwin, in_folder, refusals

from core.errors import InputError
from kvtwin.arguments import Arguments


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def refused(kvtwin):
    return refusals(kvtwin)


@pytest.mark.parametrize("words", [("trace",), ("trace", "--help")])
def test_help_lists_the_verbs(kvtwin, words):
    finished = kvtwin(*words)
    assert finished.status == 0
    assert finished.out.startswith("usage: kvtwin trace VERB")


def test_an_option_that_does_not_exist_is_told_with_its_near_ones():
    parser = Arguments("trace thing", "A thing.")
    parser.add_argument("--fraction")
    with pytest.raises(InputError) as caught:
        parser.parse_args(["--fracton", "1"])
    expected = "trace thing: no option --fracton; did you mean --fraction? (kvtwin trace thing --help tells how)"
    assert str(caught.value) == expected
