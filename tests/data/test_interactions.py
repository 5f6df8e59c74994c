import gzip
import lzma
import warnings

import pytest

from tfxc.data import Vocabulary, read_csv, read_interactions


def written(tmp_path, data):
    path = tmp_path / "log.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def as_names(sequences):
    return {user: sequences.vocabulary.decode(sequences[u]) for u, user in enumerate(sequences.user_ids)}


def test_order_of_appearance(tmp_path):
    with pytest.warns(UserWarning, match="line 5, the last, has no line end"):
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
    with pytest.raises(ValueError, match="found 4 fields.*name other columns"):
        read_interactions(written(tmp_path, "u i 5 100\n"))


@pytest.mark.parametrize("delimiter", [",", "::", ";"])
def test_what_stands_between_fields_is_guessed_in_the_message(tmp_path, delimiter):
    with pytest.raises(ValueError, match=f"found 1 fields.*pass delimiter='{delimiter}'"):
        read_interactions(written(tmp_path, f"u{delimiter}i{delimiter}100\n"))


@pytest.mark.parametrize("header", ["userId,movieId", "user_id,item_id", "SESSION ID,Item"])
def test_a_line_that_names_columns_is_told_of(tmp_path, header):
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\nann,milk\n")
    with pytest.warns(UserWarning, match="first line looks like names of columns, .* use tfxc.data.read_csv"):
        read_interactions(path, delimiter=",")


@pytest.mark.parametrize("name", ["timestamp", "ts", "Date"])
def test_a_column_of_times_by_another_name_is_told_of(tmp_path, name):
    path = tmp_path / "log.txt"
    path.write_text("ann milk 5\nann tea 3\n")
    with pytest.warns(UserWarning, match=f"'{name}' is not used, and the order of the file counts"):
        log = read_interactions(path, ("user", "item", name))
    assert log.times is None
    with warnings.catch_warnings(action="error"):
        read_interactions(path, ("user", "item", "time"))
        read_interactions(path, ("user", "item", "rating"))


def test_an_empty_delimiter_is_refused(tmp_path):
    (tmp_path / "log.txt").write_text("ann milk\n")
    with pytest.raises(ValueError, match="delimiter must be a string between the fields"):
        read_interactions(tmp_path / "log.txt", delimiter="")


def test_named_columns_quotes_and_times(tmp_path):
    path = written(
        tmp_path, '\ufeffwhen;who;what;why\r\n7;ann;"tea; green";"two\r\nlines"\r\n\r\n3;ann;milk;\r\n'
    )
    sequences = read_csv(path, user="who", item="what", time="when", delimiter=";")
    assert sequences.user_ids == ["ann"]
    assert sequences.vocabulary.decode(sequences[0]) == ["milk", "tea; green"]
    assert sequences.times.tolist() == [3, 7]


def test_blanks_around_names_are_none_of_them(tmp_path):
    log = read_csv(written(tmp_path, 'user,item\nann ," green tea "\nann,green tea\n'), "user", "item")
    assert log.user_ids == ["ann"] and log.vocabulary.names == ["green tea"]


def test_without_time_in_gz(tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"user,item\n1,9\n2,8\n1,8\n"))
    sequences = read_csv(path, "user", "item", vocabulary=Vocabulary([8, 9]))
    assert [sequence.tolist() for sequence in sequences] == [[1, 0], [0]]


def test_a_missing_column_of_csv(tmp_path):
    with pytest.raises(ValueError, match=r"no column 'stamp'; its columns are \['user', 'item'\]"):
        read_csv(written(tmp_path, "user,item\n1,2\n"), "user", "item", time="stamp")


@pytest.mark.parametrize(("data", "message"), [("", "no column"), ("user,item\n", "no interactions")])
def test_an_empty_csv_file(tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        read_csv(written(tmp_path, data), "user", "item")


BAD_CSV = b'user,item,time\nu,i,1\nu,i\nu,i,1,2\nu,"j"x,1\nu,\xff,1\nu,j,noon\n,j,1\nv,k,2\nu,"open,5\n'


def test_bad_records_raise_together(tmp_path):
    with pytest.raises(ValueError, match="7 bad of 10 lines") as error:
        read_csv(written(tmp_path, BAD_CSV), "user", "item", "time")
    for message in (
        "line 3: found 2 fields, expected 3",
        "line 4: found 4 fields, expected 3",
        "line 5: ",
        "line 6: not UTF-8",
        "line 7: the time 'noon'",
        "line 8: the user id is empty",
        "line 10: ",
    ):
        assert message in str(error.value)


def test_bad_records_are_skipped_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="7 bad of 10 lines"):
        sequences = read_csv(written(tmp_path, BAD_CSV), "user", "item", "time", on_error="skip")
    assert sequences.user_ids == ["u", "v"] and sequences.vocabulary.names == ["i", "k"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_quote_that_is_not_closed_is_a_bad_record_of_several_lines(tmp_path, end):
    lines = ["user,item", "", 'ann,"5 inch', "bob,x", 'cy,y"', "dan,z"]
    path = written(tmp_path, end.join([*lines, 'eve,"open', "fay,x", ""]))
    with pytest.raises(ValueError, match="2 bad of 8 lines") as error:
        read_csv(path, "user", "item")
    assert "line 5: the item id holds a line break, which may come from" in str(error.value)
    assert "(of lines 3 to 5)" in str(error.value)
    assert "line 8: unexpected end of data (of lines 7 to 8)" in str(error.value)
    with pytest.warns(UserWarning, match="2 bad of 8 lines"):
        assert read_csv(path, "user", "item", on_error="skip").user_ids == ["dan"]
    with pytest.raises(ValueError, match="line 5: the user id holds a line break"):
        read_csv(path, "item", "user")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("user,item\nann,tea\n".encode("utf-16"), "line 1"),
        (b"user,item,item\nann,tea,milk\n", "more than one column 'item'"),
    ],
)
def test_a_header_that_is_no_text_and_a_column_twice(tmp_path, data, message):
    path = written(tmp_path, data)
    with pytest.raises(ValueError, match=message):
        read_csv(path, user="user", item="item")
