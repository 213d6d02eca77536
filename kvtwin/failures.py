"""What went wrong, in one line with its place: for code of the user's own, and for mistakes of ours."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from core.errors import InputError

TRACEBACK_VARIABLE = "KVTWIN_TRACEBACK"
EXTRAS = {
    "torch": "engine",
    "triton": "engine",
    "gguf": "engine",
    "tokenizers": "engine",
    "safetensors": "engine",
    "plotly": "report",
}


def failure_line(error: BaseException) -> str:
    """Kind, message and place (file, line, function) of an exception."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    told = f"{kind}: {text}" if text else kind
    if isinstance(error, SyntaxError) and error.filename:
        return f"{kind}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    if not frames:
        return told
    place = frames[-1]
    return f"{told} ({_short(place.filename)}, line {place.lineno}, in {place.name})"


def require(package: str) -> None:
    """Raises InputError, with what to install, where a package of one of our extras is missing."""
    if find_spec(package) is None:
        raise _missing(package)


def tell(message: str) -> None:
    """One line on standard error."""
    print(f"kvtwin: {message}", file=sys.stderr)


def tell_failure(error: Exception, job: str = "") -> int:
    """Tells what ended a job, and returns the exit status: 2 for bad input, 1 for a mistake in somebody's code.

    `job` says which one of several it was.
    """
    prefix = f"{job}: " if job else ""
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        traceback.print_exception(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in EXTRAS:
        error = _missing(str(error.name).partition(".")[0])
    if isinstance(error, InputError):
        tell(f"{prefix}{error}")
        return 2
    if isinstance(error, OSError) and error.filename and error.strerror:
        tell(f"{prefix}{error.filename}: {error.strerror}")
        return 2
    if isinstance(error, MemoryError):
        tell(f"{prefix}{failure_line(error)}: out of memory; expected a smaller pool, trace or model")
        return 2
    if isinstance(error, OmegaConfBaseException):
        tell(f"{prefix}configuration: {str(error).splitlines()[0]}")
        return 2
    tell(f"{prefix}{failure_line(error)}; {TRACEBACK_VARIABLE}=1 shows how it came to that")
    return 1


def _missing(package: str) -> InputError:
    return InputError(f"this needs {package}: pip install 'kvtwin[{EXTRAS[package]}]'")


def _short(filename: str) -> str:
    """Relative to the working folder where the file lies below it, else package and file."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(Path(*path.parts[-2:]))
