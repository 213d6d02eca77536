"""Everything that entered the control plane in one run: enough for another executor to repeat its decisions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import InputError

_Row = dict[str, Any]


class InputsLog:
    """Arrivals, cancellations, steps, forks and early stops, in the order in which the scheduler learnt of them."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def arrived(self, time_ps: int, request_id: int) -> None:
        self._rows.append({"input": "arrive", "time_ps": time_ps, "request": request_id})

    def cancelled(self, time_ps: int, request_id: int) -> None:
        self._rows.append({"input": "cancel", "time_ps": time_ps, "request": request_id})

    def ran(self, step: int, now_ps: int, duration_ps: int) -> None:
        """One step began at `now_ps` and took that long."""
        self._rows.append({"input": "step", "time_ps": now_ps, "step": step, "duration_ps": duration_ps})

    def forked(self, step: int, parents: Mapping[int, int]) -> None:
        """After that step, beams went on from others: by rank, as in `StepResult`."""
        self._rows.append({"input": "fork", "step": step, "parents": list(parents.items())})

    def stopped(self, request_id: int, num_output_tokens: int) -> None:
        """A request ended by itself, short of the length that the trace gave it."""
        self._rows.append({"input": "stop", "request": request_id, "num_output_tokens": num_output_tokens})

    def to_bytes(self) -> bytes:
        """The content of `inputs.jsonl.gz`: equal logs give equal bytes."""
        lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in self._rows)
        return gzip.compress(lines.encode(), mtime=0)

    def recorded(self) -> RecordedInputs:
        """What a replay needs, without the way over a file."""
        inputs = RecordedInputs()
        for row in self._rows:
            inputs.take(row)
        return inputs


@dataclass(slots=True)
class RecordedInputs:
    """A recorded run as its replay wants it.

    `durations_ps[i]` is what step i took; 0 where it had nothing to compute and took no time. `num_output_tokens` holds
    the lengths of requests that stopped early, `parents[i]` which beams went on from which after step i. Arrivals and
    cancellations are (time_ps, request id).
    """

    durations_ps: list[int] = field(default_factory=list)
    num_output_tokens: dict[int, int] = field(default_factory=dict)
    parents: dict[int, dict[int, int]] = field(default_factory=dict)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    cancellations: list[tuple[int, int]] = field(default_factory=list)

    def take(self, row: dict[str, Any]) -> None:
        """Adds one row of the log; raises KeyError or ValueError where it is none."""
        kind = row["input"]
        if kind == "step":
            step = int(row["step"])
            if step < len(self.durations_ps):
                raise ValueError(f"step {step} comes after step {len(self.durations_ps) - 1}")
            self.durations_ps.extend([0] * (step - len(self.durations_ps)))
            self.durations_ps.append(int(row["duration_ps"]))
        elif kind == "stop":
            self.num_output_tokens[int(row["request"])] = int(row["num_output_tokens"])
        elif kind == "fork":
            self.parents[int(row["step"])] = {int(rank): int(parent) for rank, parent in row["parents"]}
        elif kind in ("arrive", "cancel"):
            known = self.arrivals if kind == "arrive" else self.cancellations
            known.append((int(row["time_ps"]), int(row["request"])))
        else:
            raise ValueError(f"unknown input {kind!r}")


def read_inputs(path: Path) -> RecordedInputs:
    """Reads `inputs.jsonl.gz`; raises InputError naming file and line if it is missing, damaged or something else."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no recorded inputs there") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: not readable as gzip ({error})") from None
    inputs = RecordedInputs()
    for number, line in enumerate(lines, start=1):
        try:
            inputs.take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: {line[:60]!r} is no recorded input ({error})") from None
    return inputs
