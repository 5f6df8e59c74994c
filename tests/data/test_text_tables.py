import io
from contextlib import nullcontext

import pytest

from tfxc.data.text_tables import Watched, check_quotes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,open", None),  # nothing follows
        ('1,"open\n', "line 2 is not closed"),
        ('"1","x"\n2,"open\n', "line 3 is not closed"),
        ('\n\n1,"\n\n', "line 4 is not closed"),
        ('1,"x\ny"z,"\n', "line 2 .*next to text in line 3"),
        ('1,"Hello\r\n2,"World"\r\n', "line 2 .*next to text in line 3"),
        ('1,27" monitor\n"x","y ""z"" "\n2,"a"x b', None),
        ('1,"x"y"\n"Weird Al" Yankovic,x\n', "in line 3 text follows"),
        ('"x" y,27" "monitor"\n', "in line 2 text follows"),
        ('"x \\"q\\" y",1\n', r"in line 2 text follows.*write \"\" for"),
        ('1,"x \\"q\\" y"\n"open\n2,3"\n', None),  # a bad row of a column that is read
        ('1,"27"" monitor', None),
    ],
)
@pytest.mark.parametrize("start", ["a,b\n", "\ufeffa,b\n"])
def test_broken_quotes(text, message, start):
    """Column 0 is read."""
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        check_quotes("t.csv", io.BytesIO((start + text).encode()), ",", ["a", "b"], {0}, 10)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_inside_quotes_are_counted(end):
    text = end.join(['"a', 'b",c', "1,x", "", "  ", '2,"x', "", 'y"', '"3', 'z",4', '5,"', '"']) + end
    with pytest.warns(UserWarning, match="'c' holds 3 line ends, the first in row 11. If these are not"):
        check_quotes("t.csv", io.BytesIO(text.encode()), ",", ["a\nb", "c"], {0}, 10)
    with pytest.warns(UserWarning, match="'a' holds 2 line ends, the first in row 0. If"):
        check_quotes("t.csv", io.BytesIO(text.encode()), ",", ["a\nb", "c"], {1}, 0)


def test_a_stream_notes_its_quotes():
    for text, has_quotes in ((b"a,b\n" * 5, False), (b'a,"b"\n' * 5, True)):
        with Watched(io.BytesIO(text)) as stream:
            assert b"".join(iter(lambda: stream.read(3), b"")) == text and stream.has_quotes is has_quotes
