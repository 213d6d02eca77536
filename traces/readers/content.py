"""The unpacked bytes of one file, block by block, and the digest of the bytes on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from core.errors import InputError
from traces.readers.unpacking import unpacked

BLOCK_BYTES = 1 << 20


class Content:
    """Reads one file from beginning to end, once: nothing is kept, and pipes can be read, too.

    Iterating gives blocks of `BLOCK_BYTES` (the last may be shorter); it raises InputError naming the file where it
    cannot be read or unpacked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._at_end = False
        self._blocks = self._read_blocks()

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    @property
    def sha256(self) -> str:
        """Of the bytes as they lie on disk, packed or not; known once everything has been read."""
        if not self._at_end:
            raise RuntimeError(f"the digest of {self._path} is known only after its last block has been read")
        return self._digest.hexdigest()

    def _read_blocks(self) -> Iterator[bytes]:
        pending = bytearray()
        for piece in unpacked(self._path, self._pieces_on_disk()):
            pending += piece
            whole = len(pending) // BLOCK_BYTES * BLOCK_BYTES
            for start in range(0, whole, BLOCK_BYTES):
                yield bytes(pending[start : start + BLOCK_BYTES])
            del pending[:whole]
        if pending:
            yield bytes(pending)

    def _pieces_on_disk(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                while piece := file.read(BLOCK_BYTES):
                    self._digest.update(piece)
                    yield piece
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read ({error.strerror}); expected a trace file") from error
        self._at_end = True
