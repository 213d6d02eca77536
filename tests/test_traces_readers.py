"""What trace files look like in the wild, and what the readers make of it."""

from importlib import import_module

import pytest

from core.errors import InputError
from traces.reading import FORMATS, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MS = 10**9  # in picoseconds


@pytest.fixture
def read(tmp_path):
    def read_text(text: str, **options):
        path = tmp_path / "trace.txt"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read_trace(path, **options)

    return read_text


def mooncake(timestamp: object = 0, num_in: object = 600, num_out: object = 5, ids: object = (0, 1)) -> str:
    stamp = "" if timestamp is None else f'"timestamp": {timestamp}, '
    shown = ids if isinstance(ids, str) else list(ids)
    return f'{{{stamp}"input_length": {num_in}, "output_length": {num_out}, "hash_ids": {shown}}}'


def test_formats_have_the_names_that_their_readers_give_them():
    readers = [import_module(f"traces.readers.{known.module}") for known in FORMATS]
    assert [known.name for known in FORMATS] == [reader.NAME for reader in readers]


def test_azure_times_are_exact_to_the_last_of_seven_digits(read):
    trace = read(AZURE + "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319569,396,109")
    assert trace.arrival_ps.tolist() == [0, 51_996_900_000]  # 0.0519969 s
    assert trace.num_prompt_tokens.tolist() == [374, 396]
    assert trace.num_output_tokens.tolist() == [44, 109]


@pytest.mark.parametrize(
    "mangle",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\n\n  \n"),
        lambda text: text.rstrip("\n"),
        lambda text: "\n" + text,
    ],
    ids=["CRLF", "byte order mark", "blank lines", "no last newline", "blank first line"],
)
@pytest.mark.parametrize(
    "text",
    [
        AZURE + "2023-11-16 23:59:59.5,10,1\n2023-11-17 00:00:01.25,20,2\n",
        mooncake(0, 10, 1, [7]) + "\n" + mooncake(1750, 20, 2, [8]) + "\n",
        '{"kvtwin": "trace/1"}\n{"arrival_s": 0, "num_prompt_tokens": 10, "num_output_tokens": 1}\n'
        '{"arrival_s": 1.75, "num_prompt_tokens": 20, "num_output_tokens": 2}\n',
    ],
    ids=["azure", "mooncake", "kvtwin"],
)
def test_line_ends_and_blank_lines_make_no_difference(text, mangle, read):
    trace = read(mangle(text))
    assert trace.arrival_ps.tolist() == [0, 1750 * MS]
    assert trace.num_prompt_tokens.tolist() == [10, 20]
    assert trace.num_output_tokens.tolist() == [1, 2]


def test_azure_times_with_a_zone_or_without_fraction(read):
    trace = read(AZURE + "2024-05-12 00:00:00+00:00,10,1\n2024-05-12T00:00:00.009930Z,20,2\n")
    assert trace.arrival_ps.tolist() == [0, 9_930_000_000]


def test_mooncake_counts_milliseconds_and_keeps_its_origin(read):
    assert read(mooncake(0) + "\n" + mooncake(3000)).arrival_ps.tolist() == [0, 3000 * MS]
    assert read(mooncake(500) + "\n" + mooncake(3000.25)).arrival_ps.tolist() == [500 * MS, 3000 * MS + MS // 4]


def test_a_missing_mooncake_timestamp_is_that_of_the_row_before(read):
    first_missing = mooncake(None) + "\n" + mooncake(100)
    assert read(first_missing).arrival_ps.tolist() == [0, 100 * MS]
    later_missing = "\n".join([mooncake(50), mooncake(None), mooncake("null"), mooncake(100)])
    assert read(later_missing).arrival_ps.tolist() == [50 * MS, 50 * MS, 50 * MS, 100 * MS]


def test_unsorted_rows_are_sorted_and_ties_keep_their_order(read):
    rows = [mooncake(300, 1, 1, [0]), mooncake(100, 2, 1, [1]), mooncake(300, 3, 1, [2]), mooncake(100, 4, 1, [3])]
    trace = read("\n".join(rows))
    assert trace.arrival_ps.tolist() == [100 * MS, 100 * MS, 300 * MS, 300 * MS]
    assert trace.num_prompt_tokens.tolist() == [2, 4, 1, 3]
    assert [trace.hash_ids.row(row).tolist() for row in range(4)] == [[1], [3], [0], [2]]


def test_unsorted_azure_rows_start_at_the_earliest(read):
    trace = read(AZURE + "2023-11-16 00:00:02,10,1\n2023-11-16 00:00:01,20,2\n")
    assert trace.arrival_ps.tolist() == [0, 1000 * MS]
    assert trace.num_prompt_tokens.tolist() == [20, 10]


def test_the_partial_last_block_has_an_id_too(read):
    assert read(mooncake(num_in=512, ids=[0])).hash_ids.row(0).tolist() == [0]
    assert read(mooncake(num_in=513, ids=[0, 1])).hash_ids.row(0).tolist() == [0, 1]
    with pytest.raises(InputError, match=r"line 1, column hash_ids: '1 ids'; expected 2 = ceil\(513 / 512\)"):
        read(mooncake(num_in=513, ids=[0]))


SINCE_1970 = {
    "timestamp": mooncake(1_700_000_000_000),
    "arrival_time_ns": '{"input_toks": 1, "output_toks": 1, "arrival_time_ns": 1700000000000000000}',
    "arrival_s": '{"kvtwin": "trace/1"}\n{"arrival_s": 1700000000, "num_prompt_tokens": 1, "num_output_tokens": 1}',
    "requests[0].t": '{"block_size": 64, "requests": [{"t": 1700000000.5, "in": 5, "out": 2}]}',
}


@pytest.mark.parametrize(("key", "text"), SINCE_1970.items())
def test_a_time_since_1970_is_refused_where_times_count_from_the_start(key, text, read):
    """Formats of wall-clock times begin at 0 instead: their tests say so."""
    with pytest.raises(InputError) as error:
        read(text)
    assert key in str(error.value)
    assert str(error.value).endswith("(106 days; does it count from 1970, or in another unit?)")


BAD_ROWS = {
    "zero_output": [mooncake(num_out=0), "2023-11-16 00:00:02,10,0"],
    "zero_prompt": [mooncake(num_in=0, ids=[]), "2023-11-16 00:00:02,0,10"],
    "malformed_row": ['{"timestamp": 5, "inp', "[1, 2]", "[" * 100_000, "2023-11-16 00:00:02,10", "x,1,2,3"],
    "missing_value": ['{"timestamp": 1, "input_length": 5, "hash_ids": [0]}'],
    "bad_time": [
        mooncake(-1),
        mooncake('"noon"'),
        mooncake(10**16),
        mooncake("NaN"),
        "2023-02-30 00:00:00,1,1",
        "2023-11-16 25:00:00,1,1",
        "yesterday,1,1",
        ",1,1",
    ],
    "bad_value": [
        mooncake(num_in=-600),
        mooncake(num_in=600.0),
        mooncake(num_in="true"),
        mooncake(num_in='"600"'),
        mooncake(num_out=2**31),
        mooncake(ids="7"),
        mooncake(ids='[0, "1"]'),
        mooncake(ids=[0, 2**63]),
        "2023-11-16 00:00:02,12x,1",
        "2023-11-16 00:00:02,-5,1",
        "2023-11-16 00:00:02,1e3,1",
    ],
    "hash_block_mismatch": [mooncake(ids=[0]), mooncake(ids=[0, 1, 2])],
}


@pytest.mark.parametrize(("reason", "row"), [(reason, row) for reason, rows in BAD_ROWS.items() for row in rows])
def test_a_bad_row_is_refused_with_its_place_or_counted_by_reason(reason, row, read):
    text = AZURE + "2023-11-16 00:00:01,10,1\n" if "{" not in row and "[" not in row else mooncake() + "\n\n"
    text += row + "\n"

    told = r"trace\.txt, line 3, (column|character) .+(: .+| is missing); expected .+"
    with pytest.raises(InputError, match=told) as error:
        read(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400

    trace = read(text, on_error="skip")
    assert trace.num_requests == 1
    assert trace.num_dropped == {reason: 1}


def test_a_number_is_told_as_the_file_has_it(read):
    with pytest.raises(InputError, match=r"column input_length: 5\.5; expected a whole number"):
        read(mooncake().replace('"input_length": ', '"input_length": 5.5, "was": '))


@pytest.mark.parametrize(("row", "place"), [('{"timestamp": 5, "inp', 18), ('{"timestamp": 5,', 17)])
def test_a_line_that_ends_too_early_is_told_as_such(row, place, read):
    with pytest.raises(InputError, match=rf"line 2, character {place}: .*; expected .* \(was the file cut off\?\)$"):
        read(f"{mooncake()}\n{row}")


def test_failed_calls_are_left_out_and_counted_by_reason(read):
    rows = [(10, 1), (20, 0), (0, 0), (30, 3), (40, 4), (50, 5)]
    text = AZURE + "\n".join(f"2023-11-16 00:00:0{i},{num_in},{num_out}" for i, (num_in, num_out) in enumerate(rows))
    trace = read(text, on_error="skip")
    assert trace.num_requests == 4
    assert trace.num_dropped == {"zero_output": 1, "zero_prompt": 1}


def test_the_message_names_the_value(read):
    with pytest.raises(InputError, match="line 2, column ContextTokens: '12x'; expected a whole number from 1"):
        read(AZURE + "2023-11-16 00:00:01,12x,3\n")


def test_a_file_without_any_good_row_is_refused(read):
    with pytest.raises(InputError, match="no request in it \\(rows dropped: 1 zero_output\\)"):
        read(mooncake(num_out=0), on_error="skip")
    with pytest.raises(InputError, match="no request in it"):
        read(AZURE)


def test_times_that_leave_64_bits_are_refused(read):
    with pytest.raises(InputError, match="span more than 106 days"):
        read(AZURE + "0023-11-16 00:00:01,10,3\n2023-11-16 00:00:01,10,3\n")


@pytest.mark.parametrize(
    "text",
    [
        "a,b,c\n1,2,3\n",
        '{"prompt": "hello"}',
        '{"timestamp": 61.114}',
    ],
)
def test_an_unknown_format_lists_the_known_ones(text, read):
    with pytest.raises(InputError, match=r"not recognised.*kvtwin, .*azure, .*mooncake, "):
        read(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("TIMESTAMP,ContextToken,GeneratedTokens\n", "azure: CSV with the header TIMESTAMP,ContextTokens,Gen"),
        ("arrived,num_prefil_tokens,num_decode_tokens\n", "vidur: CSV with arrived_at"),
        ('{"timestamp": 1, "input_lenght": 9, "output_length": 3, "hash_ids": [1]}', "mooncake: JSON lines with"),
        ('{"chat_id": 1, "timestamp": 61.114, "input_length": 5}', "bailian: JSON lines with chat_id"),
    ],
)
def test_a_misspelt_column_is_answered_with_the_nearest_format(text, near, read):
    with pytest.raises(InputError, match=f"the nearest is {near}"):
        read(text)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_told_as_such(text, read):
    with pytest.raises(InputError, match=r"is empty; expected a trace, in one of the formats kvtwin, .*azure, "):
        read(text)


def test_format_and_on_error_by_name(read):
    assert read(mooncake(), format="mooncake").num_requests == 1
    with pytest.raises(InputError, match=r"trace\.format='monncake' is unknown.*mooncake"):
        read(mooncake(), format="monncake")
    with pytest.raises(InputError, match=r"trace\.on_error='ignore' is unknown; expected one of fail, skip"):
        read(mooncake(), on_error="ignore")
    with pytest.raises(InputError, match="line 1 \\(the header\\), key kvtwin: None; expected 'trace/1'"):
        read(mooncake(), format="kvtwin")
    with pytest.raises(InputError, match="line 1 \\(the header\\)"):
        read("", format="kvtwin")


def test_a_bad_first_row_does_not_hide_the_format(read):
    assert read('{"timestamp\n' + mooncake(), on_error="skip").num_dropped == {"malformed_row": 1}


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"absent\.csv: cannot be read"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(AZURE.encode() + b"2023-11-16 00:00:01,10,1\n\xe9t\xe9,10,1\n")
    with pytest.raises(InputError, match=r"latin\.csv, line 3: byte 0xe9 is not UTF-8; expected a text file"):
        read_trace(latin)
