"""Files as they lie on disk: packed or plain, huge or cut off; what every reader gets to see of them."""

import gzip
import hashlib
import sys
import tracemalloc

import pytest

from core.errors import InputError
from traces.readers.content import BLOCK_BYTES
from traces.readers.source import MAX_HEAD_BYTES, MAX_LINE_BYTES, Source
from traces.reading import read_trace

zstandard = pytest.importorskip("zstandard", reason="zstandard is in the extra `traces`")
PACKINGS = {"plain": lambda content: content, "gzip": gzip.compress, "zstd": zstandard.compress}
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319569,396,109"
)
MIB = 2**20


@pytest.fixture
def source(tmp_path):
    def source_of(content: bytes, name: str = "trace.csv") -> Source:
        path = tmp_path / name
        path.write_bytes(content)
        return Source(path)

    return source_of


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz", "trace.csv.zst", "trace"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_packing_is_told_by_content_and_the_digest_is_of_the_bytes_on_disk(name, packing, tmp_path):
    content = PACKINGS[packing](AZURE.encode())
    (tmp_path / name).write_bytes(content)

    trace = read_trace(tmp_path / name)

    assert trace.arrival_ps.tolist() == [0, 51_996_900_000]
    assert trace.num_prompt_tokens.tolist() == [374, 396]
    assert trace.sha256 == hashlib.sha256(content).hexdigest()
    assert trace.name == "trace"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_packed_files_that_were_put_one_after_the_other_are_one_file(pack, source):
    parts = [pack(f"line {number}\n".encode()) for number in range(3000)]
    lines = list(source(b"".join(parts)).numbered_lines())
    assert lines == [(number + 1, f"line {number}") for number in range(3000)]


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "gzip"), (zstandard.compress, "zstd")])
def test_a_packed_file_that_is_cut_off_or_corrupt_is_one_clear_line(pack, name, tmp_path):
    path = tmp_path / "trace.packed"
    packed = pack(AZURE.encode())
    for length in range(4, len(packed)):
        path.write_bytes(packed[:length])
        with pytest.raises(InputError, match=rf"trace\.packed: the {name} data ends too early; expected the whole"):
            read_trace(path)
    path.write_bytes(packed + b"more")
    with pytest.raises(InputError, match=rf"trace\.packed: corrupt {name} data \(.+\); expected an intact file"):
        read_trace(path)


def test_zstd_without_its_package_names_the_extra(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"t\.zst: packed with zstd, .* expected pip install 'kvtwin\[traces\]'"):
        source(zstandard.compress(b"x"), "t.zst")


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in the file system")
def test_a_pipe_can_be_read(tmp_path):
    import os
    import threading

    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(gzip.compress(AZURE.encode())))
    writer.start()
    assert read_trace(tmp_path / "pipe").num_requests == 2
    writer.join()


@pytest.mark.parametrize("line", ["", "x", "y" * 999, "é" * (BLOCK_BYTES // 2 + 3)], ids=len)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_whole_whatever_the_blocks(line, end, source):
    numbers = range(1, 3 * BLOCK_BYTES // 1000)
    text = end.join(f"{number}{line}" for number in numbers[: 5000 if len(line) < 9999 else 9])
    assert list(source(text.encode()).numbered_lines()) == list(enumerate(text.split(end), start=1))


def test_blank_lines_count_but_are_not_given(source):
    assert list(source(b"\xef\xbb\xbf\na\n\n \t\r\nb\n\n").numbered_lines()) == [(2, "a"), (5, "b")]
    assert list(source(b"").numbered_lines()) == []
    assert list(source("\ufeffa\u2028b".encode()).numbered_lines()) == [(1, "a\u2028b")]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(source):
    just_short_enough = b"a\n" + b"b" * MAX_LINE_BYTES
    assert [len(line) for _, line in source(just_short_enough).numbered_lines()] == [1, MAX_LINE_BYTES]
    bomb = zstandard.compress(b"a\n" + b"b" * 40 * MAX_LINE_BYTES)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"trace\.csv, line 2: no line end in sight; expected rows of at most 16 MiB"):
        list(source(bomb).numbered_lines())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 10 * MAX_LINE_BYTES + 64 * MIB


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_what_unpacks_to_a_thousand_times_its_size_streams(pack, source):
    bomb = pack(bytes(200 * MIB))
    assert len(bomb) < MIB
    tracemalloc.start()
    num_bytes = sum(len(block) for block in source(bomb).blocks())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_bytes == 200 * MIB
    assert peak_bytes < 80 * MIB


def test_the_head_is_a_look_and_not_a_read(source):
    opened = source(b"\xef\xbb\xbf\r\n1\r\n" + b"2" * 2 * MAX_HEAD_BYTES + b"\n3\n", "a.b.csv.gz")
    assert opened.head.name == "a.b.csv.gz"
    assert opened.name == "a.b"
    assert opened.head.bytes[:4] == b"\xef\xbb\xbf\r"
    assert len(opened.head.bytes) == MAX_HEAD_BYTES
    assert [len(line) for line in opened.head.lines] == [1, MAX_HEAD_BYTES - 8]
    assert [(number, len(line)) for number, line in opened.numbered_lines()] == [
        (2, 1),
        (3, 2 * MAX_HEAD_BYTES),
        (4, 1),
    ]
    assert source(b"\n".join(b"%d" % i for i in range(99))).head.lines == tuple(str(i) for i in range(16))
    assert source(b"\x00\xff").head.lines == ("\x00\ufffd",)
    assert source(b"").head.lines == ()


def test_whole_documents(source):
    assert source(gzip.compress(b'\xef\xbb\xbf{"a":\r\n1}')).read_text() == '{"a":\r\n1}'
    assert source(b"\x00\xff" * BLOCK_BYTES).read_bytes() == b"\x00\xff" * BLOCK_BYTES
    with pytest.raises(InputError, match=r"trace\.csv, line 2: byte 0xff is not UTF-8"):
        source(b"a\nb\xff").read_text()


def test_a_source_is_read_once_and_knows_its_digest_then(source):
    content = b"line\n" * BLOCK_BYTES
    opened = source(content)
    with pytest.raises(RuntimeError, match="only after its last block"):
        print(opened.sha256)
    list(opened.numbered_lines())
    assert opened.sha256 == hashlib.sha256(content).hexdigest()
    with pytest.raises(RuntimeError, match="a source is read once"):
        opened.read_text()
