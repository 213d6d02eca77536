"""The content of one trace file, plain or packed, read once and as a stream."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from core.errors import InputError
from traces.readers.content import Content
from traces.readers.unpacking import PACKED_SUFFIXES

Row = TypeVar("Row")
MAX_HEAD_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 24


@dataclass(frozen=True)
class Head:
    """How a file starts, for formats to recognise themselves by: its name and its first bytes, unpacked."""

    name: str
    bytes: bytes

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The first lines that are not blank, 16 at most; the last may be cut off, what is not UTF-8 is replaced."""
        text = self.bytes.decode("utf-8-sig", "replace")
        return tuple(islice((line.rstrip("\r") for line in text.split("\n") if line and not line.isspace()), 16))

    @property
    def first_line(self) -> str:
        """The first line that is not blank; empty if there is none."""
        return self.lines[0] if self.lines else ""


class LineBlock(NamedTuple):
    """Some whole lines of a file, as bytes; every line but the last of the file ends in a newline."""

    first_line_number: int
    content: bytes


class Source:
    """The content of one trace file, unpacked: look at its `head`, then read it once, in whichever form suits.

    All forms stream, but for `read_bytes` and `read_text`. They raise InputError where the file cannot be read or
    unpacked and where text is not UTF-8. A byte order mark, CRLF and a missing last newline make no difference.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = Content(path)
        self._first = next(iter(self._content), b"")
        self._is_read = False

    @property
    def name(self) -> str:
        """What to call the trace: the file's name without `.gz` and the suffix of its format."""
        path = self.path.with_suffix("") if self.path.suffix in PACKED_SUFFIXES else self.path
        return path.stem

    @property
    def sha256(self) -> str:
        """Of the file's bytes as they lie on disk, packed or not; known once the content has been read to its end."""
        return self._content.sha256

    @property
    def head(self) -> Head:
        """How the file starts; nothing counts as read yet."""
        return Head(self.path.name, self._first[:MAX_HEAD_BYTES])

    def blocks(self) -> Iterator[bytes]:
        """The bytes of the file in blocks of some size, one after the other."""
        if self._is_read:
            raise RuntimeError(f"{self.path} has been read already; a source is read once")
        self._is_read = True
        if self._first:
            yield self._first
        self._first = b""
        yield from self._content

    def read_bytes(self) -> bytes:
        """All bytes of the file at once."""
        return b"".join(self.blocks())

    def read_text(self) -> str:
        """All text of the file at once, for documents that are not read by lines."""
        content = self.read_bytes()
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._not_text(1 + content.count(b"\n", 0, error.start), content[error.start]) from error

    def line_blocks(self) -> Iterator[LineBlock]:
        """All lines, about a MiB of them at a time, without the byte order mark; the lines of a block are whole.

        Raises InputError where a line is longer than `MAX_LINE_BYTES`: no format has rows of that size, and none but
        such a line would have to be held in memory whole.
        """
        line_number = 1
        unfinished: list[bytes] = []
        for block in self.blocks():
            end = block.rfind(b"\n") + 1
            if end:
                content = b"".join([*unfinished, block[:end]])
                yield LineBlock(line_number, content.removeprefix(BOM_UTF8) if line_number == 1 else content)
                line_number += content.count(b"\n")
                unfinished = []
            unfinished.append(block[end:])
            if sum(map(len, unfinished)) > MAX_LINE_BYTES:
                expected = f"rows of at most {MAX_LINE_BYTES // 2**20} MiB, a line each"
                raise InputError(f"{self.path}, line {line_number}: no line end in sight; expected {expected}")
        last = b"".join(unfinished)
        if last:
            yield LineBlock(line_number, last.removeprefix(BOM_UTF8) if line_number == 1 else last)

    def numbered_lines(self) -> Iterator[tuple[int, str]]:
        """(line number from 1, text) of every line that is not blank."""
        return chain.from_iterable(map(self.lines_of, self.line_blocks()))

    def lines_of(self, block: LineBlock) -> Iterator[tuple[int, str]]:
        """(line number from 1, text) of the lines of one block that are not blank."""
        # Not splitlines(): JSON strings may hold U+2028 and its kin unescaped.
        for number, line in enumerate(self.text(block).split("\n"), start=block.first_line_number):
            if line and not line.isspace():
                yield number, line.rstrip("\r")

    def text(self, block: LineBlock) -> str:
        """The text of a block; raises InputError where it is not UTF-8."""
        try:
            return block.content.decode("utf-8")
        except UnicodeDecodeError as error:
            line_number = block.first_line_number + block.content.count(b"\n", 0, error.start)
            raise self._not_text(line_number, block.content[error.start]) from error

    def _not_text(self, line_number: int, byte: int) -> InputError:
        expected = "a text file, plain or packed with gzip or zstd"
        return InputError(f"{self.path}, line {line_number}: byte 0x{byte:02x} is not UTF-8; expected {expected}")
