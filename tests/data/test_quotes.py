import gzip
from contextlib import nullcontext

import pyarrow as pa
import pytest

from tfxc.data.quotes import QuotedLines


def lines_of(text, tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    lines = QuotedLines("t.csv", lambda: pa.input_stream(tmp_path / "t.csv.gz"), ",")
    lines.note("a", pa.array([None, "x", "x\ny\r\nz"]), 0)
    lines.note("a", pa.array(["x\ry"]), 3)
    return lines


@pytest.mark.parametrize("chunk", [1, 2, 5, 1 << 18])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b\n1,"open\n', 2),
        ('a,b\n"1","x"\n"open', 3),
        ('a,b\n\n1,"', 3),
        ('a\n"x\ny"\n1,"x\ny"z,"', 5),
        ('a\n1,27" monitor\n"x\ny"\n', 2),
        ('"a" ,b\n1,2\n', 1),
    ],
)
def test_the_line_of_a_broken_quote(text, line, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("tfxc.data.quotes._BYTES_PER_CHUNK", chunk)
    for start in ("", "\ufeff"):
        message = rf"quote in line {line} is not closed.*'a' holds 3 .* in row 12"
        with pytest.raises(ValueError, match=message):
            lines_of(start + text, tmp_path).report(lambda position: position + 10)


@pytest.mark.parametrize("chunk", [1, 2, 5, 1 << 18])
@pytest.mark.parametrize(
    "text", ["", '"\n"', '"a","b"\r\n"1 ""x\r\n""","2"', 'a\n""\n"""",""\n', '1,"\n\n"\n']
)
def test_quotes_in_order(text, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("tfxc.data.quotes._BYTES_PER_CHUNK", chunk)
    for start in ("", "\ufeff"):
        with pytest.warns(UserWarning, match="'a' holds 3 line ends, the first in row 2. If these are not"):
            lines_of(start + text, tmp_path).report(lambda position: position)


@pytest.mark.filterwarnings("error")
def test_no_line_ends_no_second_look(tmp_path):
    lines = QuotedLines("t.csv", None, ",")
    lines.note("a", pa.array(["x", None, ""]), 0)
    lines.note("a", pa.array([], pa.string()), 3)
    lines.report(lambda position: position)


@pytest.mark.parametrize("chunk", [1, 5, 1 << 18])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b\n1,"Weird Al" Yankovic\n', 2),
        ('a,b\n"x" y,27" monitor\n\n"x","""Al"" ""\n"\n"x",""y\r\n', 6),  # column 0 is not read
        ('a,b\n"x" y,27" "monitor"\n"x" , x\n"x" y,"x""y"', None),
        ('a,b\n"x" y,"27"" monitor', None),  # not closed
    ],
)
def test_the_line_of_a_quote_that_closes_early(text, line, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("tfxc.data.quotes._BYTES_PER_CHUNK", chunk)
    (tmp_path / "t.csv").write_text("\ufeff" + text, newline="")
    lines = QuotedLines("t.csv", lambda: pa.input_stream(tmp_path / "t.csv"), ",", {1})
    with lines.watched() as stream:
        while stream.read(3):
            pass
    with pytest.raises(ValueError, match=f"in line {line} text follows") if line else nullcontext():
        lines.report(None)
