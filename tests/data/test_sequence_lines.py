import pytest

from tfxc.data import Vocabulary, read_sequences, read_sessions


def written(tmp_path, data):
    path = tmp_path / "sequences.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_read_sequences(tmp_path):
    sequences = read_sequences(written(tmp_path, "10 5 6 5 \n\n7 6\r\n"))
    assert sequences.user_ids == ["10", "7"] and sequences.vocabulary.names == ["5", "6"]
    assert [sequence.tolist() for sequence in sequences] == [[0, 1, 0], [1]]


def test_read_sessions(tmp_path):
    sessions = read_sessions(written(tmp_path, "a,b c\nb c,b c\na\n"), delimiter=",")
    assert sessions.user_ids is None and sessions.vocabulary.names == ["a", "b c"]
    assert [session.tolist() for session in sessions] == [[0, 1], [1, 1], [0]]


@pytest.mark.parametrize("lines", ["0 0 5\n1 2 5\n", "1 2 5\n1 0 0\n"])
def test_padding_is_told(lines, tmp_path):
    with pytest.warns(UserWarning, match="1 of 2 sequences, all of 3 items, .* '0', which look like padding"):
        read_sessions(written(tmp_path, lines))
    read_sessions(written(tmp_path, lines + "0 0\n"))  # of different lengths


def test_given_vocabulary(tmp_path):
    path = written(tmp_path, "a b\nc a\nb\n")
    with pytest.raises(ValueError, match="line 2: the item 'c' is not in the vocabulary"):
        read_sessions(path, vocabulary=Vocabulary("ba"))
    with pytest.warns(UserWarning, match="1 bad of 3"):
        sessions = read_sessions(path, vocabulary=Vocabulary("ba"), on_error="skip")
    assert [session.tolist() for session in sessions] == [[1, 0], [0]]
    with pytest.raises(ValueError, match="line 1: the item '7.0' is not in the vocabulary, but '7' is"):
        read_sequences(written(tmp_path, "ann 7.0\n"), vocabulary=Vocabulary("7"))


def test_bad_user_lines(tmp_path):
    data = b"u i j\nv\nu k\nw \xff\nx k\n"
    with pytest.raises(ValueError, match="3 bad of 5 lines") as error:
        read_sequences(written(tmp_path, data))
    assert "line 2: the user 'v' has no items" in str(error.value)
    assert "line 3: the user 'u' already has line 1" in str(error.value)
    assert "line 4: not UTF-8 at byte 2: b'w \\xff\\n'; save the file as UTF-8" in str(error.value)
    with pytest.warns(UserWarning, match="left out"):
        sequences = read_sequences(written(tmp_path, data), on_error="skip")
    assert sequences.user_ids == ["u", "x"] and sequences.vocabulary.names == ["i", "j", "k"]


def test_empty_field(tmp_path):
    with pytest.raises(ValueError, match="line 1: field 2 is empty"):
        read_sessions(written(tmp_path, "a,,b\n"), delimiter=",")


@pytest.mark.parametrize("read", [read_sequences, read_sessions])
def test_empty_file(tmp_path, read):
    with pytest.raises(ValueError, match="holds no sequences"):
        read(written(tmp_path, "\n"))


@pytest.mark.parametrize("read", [read_sequences, read_sessions])
@pytest.mark.parametrize("line", ['{"user": 1, "items": [5, 6]}', "[5, 6]", '["tea", "milk"]', "[[5], [6]]"])
def test_lists_of_json(line, read, tmp_path):
    with pytest.raises(ValueError, match="holds JSON.*from_lists takes lists"):
        read(written(tmp_path, f"{line}\n"))


def test_lines_that_look_like_another_form_are_told(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("tea,milk\nmilk,rum\n")
    with pytest.warns(UserWarning, match="read as a single item. If it holds several, pass delimiter=','"):
        assert len(read_sessions(path)) == 2
    assert read_sessions(path, ",").vocabulary.names == ["tea", "milk", "rum"]
    with pytest.raises(ValueError, match="the user 'tea,milk' has no items, and pass delimiter=','"):
        read_sequences(path)
    path.write_text("user_id items\nann tea milk\n")
    with pytest.warns(UserWarning, match="first line looks like names of columns, user_id items"):
        read_sequences(path)
