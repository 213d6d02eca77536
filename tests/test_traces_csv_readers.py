"""CSV and binary traces as they are found in the wild, each read exactly; plain rows fast, all others one by one."""

import csv
import gzip
import io
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import InputError
from traces.reading import read_trace
from traces.schema import Trace
from traces.selection import window

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_2 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
OBJECTS = "# time, object, size, next_access_vtime\n"
S = 10**12  # in picoseconds


@pytest.fixture
def read(tmp_path):
    def read_content(content: str | bytes, name: str = "trace.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_trace(path, **options)

    return read_content


# BurstGPT


def test_burstgpt_counts_seconds_and_keeps_its_origin(read):
    rows = [
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,230,1317,Conversation log",
        "118,GPT-4,417,276,693,API log",
    ]
    trace = read(BURST + "\n".join(rows))
    assert trace.arrival_ps.tolist() == [5 * S, 45 * S, 118 * S]
    assert trace.num_prompt_tokens.tolist() == [472, 1087, 417]
    assert trace.num_output_tokens.tolist() == [18, 230, 276]
    assert not trace.has_prefix_information
    assert trace.session_id is None
    assert trace.licence == "CC-BY-4.0 if from HPMLL/BurstGPT", "anybody's own trace may have this form"
    assert window(trace, 5).arrival_ps.tolist() == [0, 40 * S, 113 * S]


def test_burstgpt_calls_that_failed_are_left_out_and_counted_by_reason(read):
    lengths = [(472, 18), (300, 0), (0, 0), (1087, 230), (417, 276), (100, 10)]
    text = BURST + "\n".join(f"{i},ChatGPT,{p},{o},{p + o},API log" for i, (p, o) in enumerate(lengths))
    trace = read(text, on_error="skip")
    assert trace.arrival_ps.tolist() == [0, 3 * S, 4 * S, 5 * S]
    assert trace.num_dropped == {"zero_output": 1, "zero_prompt": 1}
    with pytest.raises(InputError, match=r"trace\.csv, line 3, column Response tokens: 0; expected at least 1 output"):
        read(text)


def test_burstgpt_2_has_sessions_and_begins_on_day_225(read):
    rows = [
        "19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log",
        "19440161.5,,2,ChatGPT,36,29,65,API log",
        "19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,Conversation log",
        "19440192.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,9,GPT-4,1360,100,1460,Conversation log",
    ]
    trace = read(BURST_2 + "\n".join(rows))
    assert trace.arrival_ps.tolist() == [0, 51 * S, 51 * S + S // 2, 82 * S]
    assert trace.session_id.tolist() == [0, 1, -1, 0]
    assert trace.num_prompt_tokens.tolist() == [906, 36, 36, 1360]


def test_a_file_that_begins_late_on_its_own_clock_begins_at_0(read):
    """No run reaches day 60, though all of these are within an hour."""
    rows = [f"{60 * 86_400 + second},ChatGPT,1,1,2,API log\n" for second in (0, 3600)]
    assert read(BURST + "".join(rows)).arrival_ps.tolist() == [0, 3600 * S]
    kept = [f"{50 * 86_400 + second},ChatGPT,1,1,2,API log\n" for second in (0, 3600)]
    assert read(BURST + "".join(kept)).arrival_ps[0] == 50 * 86_400 * S


def test_what_64_bits_cannot_tell_is_a_bad_row(read):
    """BurstGPT_3.csv spans 110 days."""
    days = [225, 330, 332, 225.5]
    text = BURST + "".join(f"{int(day * 86_400)},ChatGPT,1,1,2,API log\n" for day in days)
    with pytest.raises(InputError, match=r"line 4, column Timestamp: '107\.0 days after the first'; .* 106 days"):
        read(text)
    trace = read(text, on_error="skip")
    assert trace.arrival_ps.tolist() == [0, 43_200 * S, 105 * 86_400 * S]
    assert trace.num_dropped == {"too_late": 1}


# Azure of 2024, Vidur


def test_azure_of_2024_has_zones_and_fractions_of_any_length(read):
    times = ["00:00:00.009930+00:00", "00:00:01+00:00", "00:00:01.5Z", "00:00:01.1234567", "23:59:59.999999999999"]
    trace = read(AZURE + "\n".join(f"2024-05-12 {time},{i + 1},1" for i, time in enumerate(times)))
    first = 9_930_000_000
    since_midnight = [first, S, 1_123_456_700_000, S * 3 // 2, 86_400 * S - 1]
    assert trace.arrival_ps.tolist() == [time - first for time in since_midnight]
    assert trace.num_prompt_tokens.tolist() == [1, 2, 4, 3, 5]


def test_vidur_times_are_rounded_to_the_picosecond_and_other_columns_are_not_read(read):
    header = ",arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    rows = ["0,0.0,374,44,418,8.5", "1,5.8926549999999995,91,16,107,5.68", "2,1e1,381,84,465,4.5", "3,.5,1,2,3,0.5"]
    trace = read(header + "\n".join(rows))
    assert trace.arrival_ps.tolist() == [0, S // 2, 5_892_655_000_000, 10 * S]
    assert trace.num_prompt_tokens.tolist() == [374, 1, 91, 381]
    assert trace.num_output_tokens.tolist() == [44, 2, 16, 84]


def test_vidur_files_of_lengths_alone_arrive_at_once(read):
    trace = read(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n2015,156,2171,12.9\n"
    )
    assert trace.arrival_ps.tolist() == [0, 0]
    assert trace.num_prompt_tokens.tolist() == [3772, 2015]


# What all CSV readers do

ROWS = {
    "azure": (AZURE, ["2023-11-16 23:59:59.5,10,1", "2023-11-17 00:00:01.25,20,2"], [0, 1.75]),
    "burstgpt": (BURST, ["2.5,ChatGPT,10,1,11,API log", "4.25,ChatGPT,20,2,22,API log"], [2.5, 4.25]),
    "vidur": (VIDUR, ["2.5,10,1", "4.25,20,2"], [2.5, 4.25]),
}
MANGLES = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "no last newline": lambda text: text.rstrip("\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "blank lines": lambda text: "\n" + text.replace("\n", "\n\n \t\n"),
    "quoted cells": lambda text: quoted(text),
    "blanks around cells": lambda text: text.replace(",", " , "),
    "columns the other way round": lambda text: reordered(text, [-1, -2]),
    "extra columns": lambda text: text.replace("\n", ',x,"y, z"\n'),
    "gzip": lambda text: gzip.compress(text.encode()),
}


def quoted(text: str) -> str:
    return "".join(",".join(f'"{cell}"' for cell in line.split(",")) + "\n" for line in text.splitlines())


def reordered(text: str, first: list[int]) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    order = first + [i - len(rows[0]) for i in range(len(rows[0])) if i - len(rows[0]) not in first]
    return "".join(",".join(row[i] for i in order) + "\n" for row in rows)


@pytest.mark.parametrize("mangle", MANGLES)
@pytest.mark.parametrize("name", ROWS)
def test_what_makes_no_difference(name, mangle, read):
    header, rows, arrivals_s = ROWS[name]
    trace = read(MANGLES[mangle](header + "\n".join(rows) + "\n"))
    assert (trace.arrival_ps / S).tolist() == arrivals_s
    assert trace.num_prompt_tokens.tolist() == [10, 20]
    assert trace.num_output_tokens.tolist() == [1, 2]


@pytest.mark.parametrize("name", ROWS)
def test_unsorted_rows_are_sorted_stably_and_duplicates_stay(name, read):
    header, (early, late), _ = ROWS[name]
    longer = late.replace(",20,", ",30,")
    trace = read(header + "\n".join([late, longer, early, late, early]))
    assert trace.num_prompt_tokens.tolist() == [10, 10, 20, 30, 20]


@pytest.mark.parametrize("name", ["burstgpt", "vidur"])
def test_a_row_without_a_time_arrives_with_the_row_before(name, read):
    header, _, _ = ROWS[name]
    rest = ",ChatGPT,1,1,2,API log" if name == "burstgpt" else ",1,1"
    assert read(header + rest + "\n0.1" + rest).arrival_ps.tolist() == [0, S // 10]
    assert read(header + "\n".join(["7" + rest, rest, "9" + rest, rest])).arrival_ps.tolist() == [
        7 * S,
        7 * S,
        9 * S,
        9 * S,
    ]
    assert read(header + "\n".join([rest, "20000007" + rest, rest, "20000009" + rest])).arrival_ps.tolist() == [
        0,
        0,
        0,
        2 * S,
    ]


BAD_CELLS = {
    "bad_time": [f"{time},1,1" for time in ("-1", "noon", "nan", "1e99", "1_0", "1.2.3", "٣", "1e999999999", ".")],
    "bad_value": ["0,12x,1", "0,-5,1", "0,1e3,1", "0,1.0,1", "0,,1", "0,1,2147483648", "0," + "9" * 30 + ",1", "0,٣,1"],
    "zero_prompt": ["0,0,1", "0,000,0"],
    "zero_output": ["0,1,0"],
    "malformed_row": ["0,1", "0,1,2,3", '0,1,"2', '0,1,"2"x'],
}  # fmt: skip


@pytest.mark.parametrize(("reason", "row"), [(reason, row) for reason, rows in BAD_CELLS.items() for row in rows])
def test_a_bad_row_among_plain_ones_is_named_or_counted(reason, row, read):
    text = VIDUR + "0,1,1\n" + row + "\n1,2,3\n"
    with pytest.raises(InputError, match=r"trace\.csv, line 3, column .+: .+; expected .+") as error:
        read(text)
    assert len(str(error.value)) < 400
    trace = read(text, on_error="skip")
    assert trace.num_prompt_tokens.tolist() == [1, 2]
    assert trace.num_dropped == {reason: 1}


def test_lines_are_counted_across_blocks(read):
    header, filling = VIDUR.replace("\n", ",filling\n"), "," + "x" * 90
    rows = ["7,12,1" + filling] * 30_000  # 2.9 MB: three blocks
    rows[29_000] = "7,12,x" + filling
    with pytest.raises(InputError, match=r"line 29002, column num_decode_tokens: 'x'"):
        read(header + "\n".join(rows))
    rows[10_000:10_000] = [""] * 17 + ['7,"12",1' + filling]
    with pytest.raises(InputError, match=r"line 29020, column num_decode_tokens: 'x'"):
        read(header + "\n".join(rows))


def test_a_header_that_does_not_fit_is_named(read):
    with pytest.raises(InputError, match=r"header 'a,b': no column TIMESTAMP; expected one of each: TIMESTAMP, Cont"):
        read("a,b\n1,2\n", format="azure")
    with pytest.raises(InputError, match=r"2 columns arrived_at; expected one of each"):
        read("arrived_at,arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3,4\n")
    with pytest.raises(InputError, match=r"header '': no column Timestamp"):
        read("", format="burstgpt")
    with pytest.raises(InputError, match=r"line 2: byte 0xff is not UTF-8"):
        read(BURST.encode() + b"1,\xff,1,1,2,API log\n")


times = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}".format,
    st.sampled_from(["2024", "0000", "20x4"]),
    st.sampled_from(["02", "12", "13"]),
    st.sampled_from(["01", "29", "30"]),
    st.sampled_from([" ", "T", "_"]),
    st.sampled_from(["00", "23", "24"]),
    st.sampled_from(["59", "60"]),
    st.sampled_from(["01", "1", "60"]),
    st.sampled_from(["", ".", ".5", ".123456789012", ".1234567890123", ",5"[1:]]),
    st.sampled_from(["", "Z", "+00:00", "+01:00", "Z ", "\r"]),
)
cells = st.one_of(
    st.text("0123456789", max_size=20),
    st.text("0123456789.", max_size=20),
    st.text("0123456789 .:-+ZTexé\r_", max_size=22),
    st.sampled_from(["1", "12", " 7", "0", "2024-05-12 00:00:00", "2024-W19-1 00:00:00", "a", "\u00a0a"]),
    times,
)


@pytest.mark.parametrize("header", [AZURE, VIDUR, BURST_2, OBJECTS], ids=["azure", "vidur", "burstgpt", "libcachesim"])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_blocks_are_read_as_row_by_row(header, data, read):
    """Quotes make the reader go row by row: it must find the same values, the same errors and the same drops."""
    num_columns = header.count(",") + 1
    rows = data.draw(st.lists(st.lists(cells, min_size=num_columns, max_size=num_columns), min_size=1, max_size=6))
    plain = header + "".join(",".join(row) + "\n" for row in rows)
    with_quotes = io.StringIO()
    csv.writer(with_quotes, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)

    for on_error in ("fail", "skip"):
        outcomes = []
        for text in (plain, header + with_quotes.getvalue()):
            try:
                trace = read(text, on_error=on_error)
                columns = {name: column.tolist() for name, column in trace.columns()}
                outcomes.append((columns, trace.num_dropped, trace.hash_ids and same(trace)))
            except InputError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


# libCacheSim


def same(trace: Trace) -> list[int]:
    """For each request the first that refers to the same object."""
    ids = trace.hash_ids.values.tolist()
    return [ids.index(object_id) for object_id in ids]


def test_libcachesim_csv_is_a_stream_of_one_block_requests(read):
    """The layout that libCacheSim's tracePrint writes; object ids take all 64 bits."""
    rows = [
        "0, 13053225291711363978, 737, 13",
        "0, 61177148907475485, 248, 6570713",
        "3, 13053225291711363978, 737, -1",
    ]
    trace = read(OBJECTS + "\n".join(rows))
    assert trace.arrival_ps.tolist() == [0, 0, 3 * S]
    assert same(trace) == [0, 1, 0]
    assert trace.hash_ids.offsets.tolist() == [0, 1, 2, 3]
    assert trace.hash_block_tokens == 1
    assert trace.num_prompt_tokens.tolist() == [1, 1, 1]
    assert trace.num_output_tokens.tolist() == [1, 1, 1]


def test_libcachesim_csv_by_other_names_and_of_one_size(read):
    trace = read("version,time,op,size,lbn\n1,33898,2a,512,42932745\n1,33898,2a,512,x\n1,33899,2a,512,42932745\n")
    assert same(trace) == [0, 1, 0]
    assert trace.hash_block_tokens == 512
    assert trace.num_prompt_tokens.tolist() == [512, 512, 512]
    assert trace.arrival_ps.tolist() == [33898 * S, 33898 * S, 33899 * S]
    assert read("obj-id,time\nk1,0\nk2,1\n").hash_block_tokens == 1


def test_libcachesim_csv_without_header_by_name(read):
    text = "1,a,5\n2,b,5\n9,a,5\n"
    trace = read(text, format="libcachesim_csv")
    assert same(trace) == [0, 1, 0]
    assert trace.arrival_ps.tolist() == [S, 2 * S, 9 * S]
    assert read("1,a,5,get,3\n", format="libcachesim_csv").num_requests == 1
    with pytest.raises(InputError, match="not recognised"):
        read(text)
    with pytest.raises(InputError, match=r"header 'a,b': no column time; expected one of time, timestamp"):
        read("a,b\n1,2\n", format="libcachesim_csv")


def records(*rows: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack("<IQIq", *row) for row in rows)


@pytest.mark.parametrize("name", ["w92.oracleGeneral", "w92.oracleGeneral.bin", "w92.oracleGeneral.bin.gz"])
def test_oracle_general_is_recognised_by_name_and_content(name, read):
    content = records((7, 2**64 - 1, 512, 2), (7, 5, 512, -1), (9, 2**64 - 1, 512, -1))
    trace = read(gzip.compress(content) if name.endswith("gz") else content, name)
    assert trace.arrival_ps.tolist() == [7 * S, 7 * S, 9 * S]
    ids = trace.hash_ids.values.tolist()
    assert ids[0] == ids[2] != ids[1]
    assert min(ids) >= 0, "negative keys are those of blocks that nobody shares"
    assert trace.hash_block_tokens == 512


def test_oracle_general_of_many_blocks_and_sizes(read):
    rows = [(10**9 + i // 3, i % 1000, 1 + i % 7, i + 1000) for i in range(100_000)]  # 2.4 MB: records cross the blocks
    trace = read(records(*rows), "t.bin", format="oracle_general")
    assert trace.hash_ids.values.tolist() == [row[1] for row in rows]
    assert trace.arrival_ps.tolist() == [
        i // 3 * S for i in range(100_000)
    ]  # seconds since 1970: counted from the first
    assert trace.hash_block_tokens == 1


def test_what_is_no_oracle_general_is_refused(read):
    good = records((7, 5, 512, -1))
    with pytest.raises(InputError, match=r"4 bytes after record 1; expected records of 24 bytes and nothing else"):
        read(good + b"more", "t.oracleGeneral")
    with pytest.raises(InputError, match=r"record 2, next_access_vtime: -77; expected -1 or the number of a later"):
        read(good + records((7, 5, 512, -77)), "t.bin", format="oracle_general")
    for name, content in {"t.bin": good, "t.oracleGeneral": records((7, 5, 512, -77))}.items():
        with pytest.raises(InputError, match="not recognised"):
            read(content, name)
    with pytest.raises(InputError, match="no request in it"):
        read(b"", format="oracle_general")
