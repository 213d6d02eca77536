"""Replays one recorded log, whatever engine it is from: the format is recognised by its first line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin.failures import failure_line
from kvtwin.parity import vllm
from kvtwin.parity.result import ParityResult


def check_log(path: Path) -> ParityResult:
    """Replays one log and compares every field. Raises InputError if it is none that can be replayed."""
    header, *records = _read(path)
    try:
        return vllm.compare(path, header, records)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: not a complete log ({failure_line(error)})") from None


def _read(path: Path) -> list[Any]:
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a recorded decision log (JSON lines)") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON lines ({error})") from None
    if not lines or not isinstance(lines[0], dict) or "config" not in lines[0] or "requests" not in lines[0]:
        raise InputError(
            f"{path}: line 1 has no `config` and `requests`: not a vLLM scheduler log "
            f"(radix tree logs are not supported yet)"
        )
    return lines
