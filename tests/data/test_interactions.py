import lzma
import warnings

import pytest

from tfxc.data import Vocabulary, read_interactions


def written(tmp_path, data):
    path = tmp_path / "log.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def as_names(sequences):
    return {user: sequences.vocabulary.decode(sequences[u]) for u, user in enumerate(sequences.user_ids)}


def test_order_of_appearance(tmp_path):
    sequences = read_interactions(written(tmp_path, "u2 30\nu1 5\n\nu2 5\r\nu2 30"))
    assert as_names(sequences) == {"u2": ["30", "5", "30"], "u1": ["5"]}
    assert sequences.vocabulary.names == ["30", "5"] and sequences.times is None


def test_newest_first_comes_out_oldest_first(tmp_path):
    sequences = read_interactions(
        written(tmp_path, "0\tc\t30.0\n0\tb2\t20\n0\tb1\t20\n1\ta\t5\n0\ta\t-1e3\n")
    )
    assert as_names(sequences) == {"0": ["a", "b2", "b1", "c"], "1": ["a"]}
    assert sequences.times.tolist() == [-1000, 20, 20, 30, 5]


def test_named_columns(tmp_path):
    path = written(tmp_path, "2010-10-19T23:55:27Z|52.3|the pub|7\n2010-10-18|1.0| home |7\n")
    sequences = read_interactions(path, ["time", "rating", "item", "user"], delimiter="|")
    assert as_names(sequences) == {"7": ["home", "the pub"]}
    assert sequences.times.tolist() == [1287360000, 1287532527]


def test_xz(tmp_path):
    path = tmp_path / "log.txt.xz"
    path.write_bytes(lzma.compress(b"u i\nu j\n"))
    assert as_names(read_interactions(path)) == {"u": ["i", "j"]}


def test_given_vocabulary(tmp_path):
    vocabulary = Vocabulary(["x", "j", "i"])
    sequences = read_interactions(written(tmp_path, "u i\nu j\n"), vocabulary=vocabulary)
    assert sequences[0].tolist() == [2, 1] and sequences.num_classes == 3
    with pytest.raises(ValueError, match="line 2: the item 'k' is not in the vocabulary"):
        read_interactions(written(tmp_path, "u i\nu k\n"), vocabulary=vocabulary)


BAD = b"u i 1\nu i\nu i 1 2\nu j soon\nu j nan\nu \xff 3\nv k 0\n"


def test_bad_lines_raise_together(tmp_path):
    with pytest.raises(ValueError, match="5 bad of 7 lines") as error:
        read_interactions(written(tmp_path, BAD))
    for message in (
        r"line 2: found 2 fields, expected 3 (user item time)",
        "line 3: found 4 fields",
        "line 4: the time 'soon' is neither a number nor an ISO 8601 date",
        "line 5: the time 'nan' is not finite",
        "line 6: not UTF-8",
        'on_error="skip"',
    ):
        assert message in str(error.value)


def test_bad_lines_are_skipped_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="5 bad of 7 lines"):
        sequences = read_interactions(written(tmp_path, BAD), on_error="skip")
    assert as_names(sequences) == {"u": ["i"], "v": ["k"]}
    assert sequences.vocabulary.names == ["i", "k"]  # a bad line numbers no item


def test_empty_ids(tmp_path):
    with pytest.raises(ValueError, match="line 1: the item id is empty\n.*line 2: the user id is empty"):
        read_interactions(written(tmp_path, "u,\n,i\nu,i\n"), delimiter=",")


@pytest.mark.parametrize("data", ["", "\n \n"])
def test_empty_file(tmp_path, data):
    with pytest.raises(ValueError, match="holds no interactions"):
        read_interactions(written(tmp_path, data))


def test_nothing_left_after_skipping(tmp_path):
    with pytest.warns(UserWarning, match="1 bad of 1"), pytest.raises(ValueError, match="no interactions"):
        read_interactions(written(tmp_path, "lonely\n"), on_error="skip")


@pytest.mark.parametrize("columns", [["user"], ["item", "time"], ["user", "item", "item"]])
def test_bad_columns(tmp_path, columns):
    with pytest.raises(ValueError, match="columns must name"):
        read_interactions(written(tmp_path, "u i\n"), columns)


def test_many_fields_need_names(tmp_path):
    with pytest.raises(ValueError, match="found 4 fields.*name the columns"):
        read_interactions(written(tmp_path, "u i 5 100\n"))


@pytest.mark.parametrize("delimiter", [",", "::", ";"])
def test_what_stands_between_fields_is_guessed_in_the_message(tmp_path, delimiter):
    with pytest.raises(ValueError, match=f"found 1 fields.*pass delimiter='{delimiter}'"):
        read_interactions(written(tmp_path, f"u{delimiter}i{delimiter}100\n"))


@pytest.mark.parametrize("header", ["userId,movieId", "user_id,item_id", "SESSION ID,Item"])
def test_a_line_that_names_columns_is_told_of(tmp_path, header):
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\nann,milk\n")
    with pytest.warns(
        UserWarning, match="first line looks like names of columns, .* take tfxc.data.read_csv"
    ):
        read_interactions(path, delimiter=",")


@pytest.mark.parametrize("name", ["timestamp", "ts", "Date"])
def test_a_column_of_times_by_another_name_is_told_of(tmp_path, name):
    path = tmp_path / "log.txt"
    path.write_text("ann milk 5\nann tea 3\n")
    with pytest.warns(UserWarning, match=f"'{name}' is not used, and the order of the file counts"):
        log = read_interactions(path, ("user", "item", name))
    assert log.times is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_interactions(path, ("user", "item", "time"))
        read_interactions(path, ("user", "item", "rating"))


def test_an_empty_delimiter_is_refused(tmp_path):
    (tmp_path / "log.txt").write_text("ann milk\n")
    with pytest.raises(ValueError, match="delimiter must be a string between the fields"):
        read_interactions(tmp_path / "log.txt", delimiter="")
