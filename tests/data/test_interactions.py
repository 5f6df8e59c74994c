import pytest
from refusal_checks import refused

from tfxc.data import Vocabulary, read_sequences, read_sessions


def test_one_sequence_a_line(written):
    sequences = read_sequences(written("10 5 6 5 \n\n7 6\r\n"))
    assert sequences.user_ids == ["10", "7"] and sequences.vocabulary.names == ["5", "6"]
    assert [sequence.tolist() for sequence in sequences] == [[0, 1, 0], [1]]
    sessions = read_sessions(written("a,b c\nb c,b c\na\n"), delimiter=",")
    assert sessions.user_ids is None and sessions.vocabulary.names == ["a", "b c"]
    assert [session.tolist() for session in sessions] == [[0, 1], [1, 1], [0]]


@pytest.mark.parametrize("lines", ["0 0 5\n1 2 5\n", "1 2 5\n1 0 0\n"])
def test_padding_is_told(lines, written):
    with pytest.warns(UserWarning, match="1 of 2 sequences, all of 3 items, .* '0', which look like padding"):
        read_sessions(written(lines))
    read_sessions(written(lines + "0 0\n"))  # of different lengths


def test_given_vocabulary(written):
    path = written("a b\nc a\nb\n")
    refused("line 2: the item 'c' is not in the vocabulary", read_sessions, path, vocabulary=Vocabulary("ba"))
    with pytest.warns(UserWarning, match="1 bad of 3"):
        sessions = read_sessions(path, vocabulary=Vocabulary("ba"), on_error="skip")
    assert [session.tolist() for session in sessions] == [[1, 0], [0]]
    with pytest.raises(ValueError, match="line 1: the item '7.0' is not in the vocabulary, but '7' is"):
        read_sequences(written("ann 7.0\n"), vocabulary=Vocabulary("7"))


def test_bad_lines(written):
    path = written(b"u i j\nv\nu k\nw \xff\nx k\n")
    reasons = "line 2: the user 'v' has no items", "line 3: the user 'u' already has line 1"
    reasons += (r"line 4: not UTF-8 at byte 2: b'w \\xff\\n'; save the file as UTF-8",)
    refused(f"(?s)3 bad of 5 lines.*{'.*'.join(reasons)}", read_sequences, path)
    with pytest.warns(UserWarning, match="left out"):
        sequences = read_sequences(path, on_error="skip")
    assert sequences.user_ids == ["u", "x"] and sequences.vocabulary.names == ["i", "j", "k"]
    path = written(b"a b\nc d\re f\r\ng h\r\r\n")
    refused("1 bad of 3 lines\n  line 2: holds a carriage return, which may", read_sessions, path)
    refused("line 1: field 2 is empty", read_sessions, written("a,,b\n"), delimiter=",")


@pytest.mark.parametrize("read", [read_sequences, read_sessions])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no sequences"),
        ('{"user": 1, "items": [5, 6]}', "holds JSON.*from_lists takes lists"),
        *((line, "holds JSON") for line in ("[5, 6]", '["tea", "milk"]', "[[5], [6]]")),
    ],
)
def test_files_without_a_sequence(line, message, read, written):
    refused(message, read, written(f"{line}\n"))


def test_lines_that_look_like_another_form_are_told(written):
    path = written("tea,milk\nmilk,rum\n")
    with pytest.warns(UserWarning, match="read as a single item. If it holds several, pass delimiter=','"):
        assert len(read_sessions(path)) == 2
    assert read_sessions(path, ",").vocabulary.names == ["tea", "milk", "rum"]
    refused("the user 'tea,milk' has no items, and pass delimiter=','", read_sequences, path)
    with pytest.warns(UserWarning, match="first line looks like names of columns, user_id items"):
        read_sequences(written("user_id items\nann tea milk\n"))
