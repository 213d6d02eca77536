"""Files packed with gzip or zstd, unpacked while they stream; which of the two is told by their first bytes."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from core.errors import InputError

_ZSTD_WINDOW_LOG = 27  # 128 MiB: what the zstd command unpacks unless told otherwise


class _Unpacker(Protocol):
    """What zlib, zstandard and compression.zstd have in common: unpacks one member (gzip) or frame (zstd)."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Packing(NamedTuple):
    name: str
    magic: bytes
    # How much is unpacked at a time: packed 1:1032 (gzip) or 1:32768 (zstd) at most, it becomes 33 MB at most.
    piece_bytes: int
    unpacker: Callable[[Path], tuple[Callable[[], _Unpacker], type[Exception]]]


def unpacked(path: Path, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a file whose bytes are `pieces` (the first of at least 4 bytes, if the file has as many).

    Memory stays at some 70 MB, whatever a file unpacks to. Raises InputError naming `path` where the file is cut off or
    corrupt, or where it takes a package that is not there.
    """
    first = next(pieces, b"")
    for packing in _PACKINGS:
        if first.startswith(packing.magic):
            yield from _unpack(path, packing, _sliced(first, pieces, packing.piece_bytes))
            return
    if first:
        yield first
    yield from pieces


def _unpack(path: Path, packing: _Packing, pieces: Iterator[bytes]) -> Iterator[bytes]:
    new_unpacker, error_type = packing.unpacker(path)
    unpacker = new_unpacker()
    for piece in pieces:
        rest = piece
        while rest:
            if unpacker.eof:  # another member follows: what `cat a.gz b.gz` gives is a file, too
                unpacker = new_unpacker()
            try:
                content = unpacker.decompress(rest)
            except error_type as error:
                raise InputError(f"{path}: corrupt {packing.name} data ({error}); expected an intact file") from error
            if content:
                yield content
            rest = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise InputError(f"{path}: the {packing.name} data ends too early; expected the whole file (was it cut off?)")


def _sliced(first: bytes, pieces: Iterator[bytes], piece_bytes: int) -> Iterator[bytes]:
    piece = first
    while piece:
        for start in range(0, len(piece), piece_bytes):
            yield piece[start : start + piece_bytes]
        piece = next(pieces, b"")


def _gzip(_: Path) -> tuple[Callable[[], _Unpacker], type[Exception]]:
    return lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), zlib.error


def _zstd(path: Path) -> tuple[Callable[[], _Unpacker], type[Exception]]:
    if sys.version_info >= (3, 14):
        from compression import zstd

        options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        return lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError
    try:
        import zstandard
    except ImportError as error:
        expected = "pip install 'kvtwin[traces]', or the unpacked file"
        raise InputError(f"{path}: packed with zstd, which takes the package zstandard; expected {expected}") from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << _ZSTD_WINDOW_LOG)
    return unpacker.decompressobj, zstandard.ZstdError


_PACKINGS = (
    _Packing("gzip", b"\x1f\x8b", 1 << 14, _gzip),
    _Packing("zstd", b"\x28\xb5\x2f\xfd", 1 << 10, _zstd),
)
PACKED_SUFFIXES = (".gz", ".zst")
