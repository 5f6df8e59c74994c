import bz2
import gzip
import lzma

import pytest
from refusal_checks import refused

from tfxc.data import from_frame, read_csv
from tfxc.data.line_reader import LineReader

OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


@pytest.mark.parametrize(("suffix", "opener"), [(".txt", open), *OPENERS.items()])
def test_compressions_and_line_ends(tmp_path, suffix, opener, monkeypatch):
    monkeypatch.setattr("tfxc.data.line_reader._PROGRESS_LINES", 2)
    path = tmp_path / f"lines{suffix}"
    with opener(path, "wb") as file:
        file.write("\ufeffone\r\ntwo\u2028é\n\nlast".encode())
    lines = LineReader(path)
    with pytest.warns(UserWarning, match=r"lines.*: line 4, the last, has no line end \(b'last'\)"):
        assert list(lines) == ["one\r\n", "two\u2028é\n", "\n", "last"]
    assert lines.number == 4
    lines.report()


@pytest.mark.parametrize(("suffix", "opener"), OPENERS.items())
def test_truncated_mislabelled_or_missing_archive(tmp_path, suffix, opener):
    path = tmp_path / f"lines{suffix}"
    with opener(path, "wb") as file:
        file.write(b"line\n" * 1000)
    path.write_bytes(path.read_bytes()[:-12])
    refused("cannot be decompressed", list, LineReader(path))
    path.write_bytes(b"plain text\n")
    refused("not what its suffix says", list, LineReader(path))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(LineReader(path))


@pytest.mark.parametrize("name", ["lines.zip", "LINES.ZIP", "lines.tar.gz"])
@pytest.mark.parametrize("read", [LineReader, lambda path: from_frame(path, "user", "item")])
def test_an_archive_is_refused(read, name, tmp_path):
    refused(f"{name} is an archive, .*: unpack it first", read, tmp_path / name)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_file_whose_name_does_not_say_so(pack, written):
    path = written(pack(b"user,item\nann,tea\n"))
    assert list(LineReader(path)) == ["user,item\n", "ann,tea\n"]
    assert from_frame(path, "user", "item").user_ids == ["ann"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"a b\rc\r", ["a b\r", "c\r"]),
        (b"a b\r\nc\r\n", ["a b\r\n", "c\r\n"]),
        (b"tea\rmilk\nrum\n", ["tea\rmilk\n", "rum\n"]),  # within a line of a file of other ends
    ],
)
def test_line_ends_of_another_system(text, lines, written):
    assert list(LineReader(written(text))) == lines


@pytest.mark.parametrize("delimiter", ["", 5, b","])
def test_delimiters_that_are_none(delimiter, written):
    lines = LineReader(written("a,b\n"))
    refused("delimiter must be a string between the fields, .* but got", next, lines.fields(delimiter))
    for own in (delimiter, None, "::"):
        refused("delimiter must be one character .* but got", next, lines.records(own))


def test_a_field_that_is_longer_than_a_reader_of_lines_takes(written):
    path = written(f"u,i,text\nann,tea,{'long ' * 40_000}\n", "log.csv")
    assert from_frame(path, "u", "i").user_ids == ["ann"]
    message = "line 2: field larger than .* may not be closed, or tfxc.data.from_frame reads fields so long"
    refused(message, read_csv, path, "u", "i")
