"""Files that appear whole or not at all, in folders that are made where they are missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`, for the block to write to; what it wrote takes the place of `path`.

    Where the block raises, nothing is left: not what it wrote, nor the folders that were made for it. Raises OSError.
    """
    made = missing_folders(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _make(path.parent)
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        remove_empty(made)
        raise


def can_be_written(path: Path) -> bool:
    """Whether `whole_file` would make it, as far as that shows beforehand."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    return not path.is_dir() and there.is_dir() and os.access(there, os.W_OK)


def missing_folders(path: Path) -> list[Path]:
    """The folders that `path` would lie in and that are not there, the innermost first."""
    return [folder for folder in path.parents if not folder.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes them, one after the other, up to the first that holds something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # it says that a file exists, not that it is one
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
