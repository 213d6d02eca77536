"""Replays one recorded log, whatever engine it is from: the format is recognised by its first line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin.failures import failure_line
from kvtwin.parity import radix, vllm
from kvtwin.parity.result import Fields, ParityResult


def check_log(path: Path) -> ParityResult:
    """Replays one log and compares every field. Raises InputError if it is none that can be replayed."""
    header, *records = _read(path)
    replay = _replay_of(path, header)
    try:
        return replay(path, header, records)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{path}: not a complete log ({failure_line(error)})") from None


def _replay_of(path: Path, header: Any) -> Callable[[Path, Fields, list[Fields]], ParityResult]:
    if isinstance(header, dict) and "config" in header and "requests" in header:
        return vllm.compare
    if isinstance(header, dict) and header.get("engine") == "sglang":
        return radix.compare
    raise InputError(
        f'{path}: line 1 has neither `config` and `requests` (a vLLM scheduler log) nor `engine` "sglang" '
        f"(operations on a radix tree)"
    )


def _read(path: Path) -> list[Any]:
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a recorded decision log (JSON lines)") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON lines ({error})") from None
    if not lines:
        raise InputError(f"{path}: empty; line 1 of a recorded decision log is its header")
    return lines
