"""A simulator in a process of its own: run it, read its line of JSON, add what the whole process took."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
OURS, COMPILED, DYNAMO, LIBCACHESIM = "kvtwin", "kvtwin compiled", "dynamo", "libcachesim"
OUR_KINDS = (OURS, COMPILED)
Result = dict[str, Any]


class CannotMeasure(Exception):
    """A case has no result; the message says why."""


class Tools(NamedTuple):
    """The Python programs that have each simulator, None where it is not installed; and folders of traces."""

    ours: str
    dynamo: str | None
    libcachesim: str | None
    scratch: Path
    public: Path


class Said(NamedTuple):
    """What a child told: its result, and what it wrote besides."""

    result: dict[str, Any]
    log: str


def run_child(python: str, script: str, job: dict[str, Any], environment: dict[str, str] | None = None) -> Said:
    """Runs `script` (of this folder) to its end; its result is the last line that it prints."""
    command = [python, str(Path(__file__).with_name(script)), json.dumps(job)]
    # What our own programs are run with must not reach into another's environment.
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    child = subprocess.run(command, capture_output=True, text=True, env=inherited | (environment or {}), check=False)
    if child.returncode:
        raise CannotMeasure(f"{script}: {child.stderr.strip()[-600:]}")
    *written, last = child.stdout.strip().splitlines()
    return Said(json.loads(last), "\n".join([*written, child.stderr]))


def timed_child(
    python: str, script: str, job: dict[str, Any], environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """The child's result, and `process_cpu_s`: its CPU-seconds from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run_child(python, script, job, environment).result
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result | {"process_cpu_s": spent_s}


def our_environment(kind: str = OURS) -> dict[str, str]:
    """This checkout's packages, as source or as machine code, and no threads that we did not start.

    Python keeps byte code, as it does for whoever has not told it otherwise; one start of a few pays for that.
    """
    return {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "KVTWIN_COMPILED": str(int(kind == COMPILED)),
        "PYTHONDONTWRITEBYTECODE": "",
    }
