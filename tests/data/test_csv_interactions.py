import gzip

import pytest

from tfxc.data import Vocabulary, read_csv


def written(tmp_path, data):
    path = tmp_path / "log.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


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


def test_missing_column(tmp_path):
    with pytest.raises(ValueError, match=r"no column 'stamp'; its columns are \['user', 'item'\]"):
        read_csv(written(tmp_path, "user,item\n1,2\n"), "user", "item", time="stamp")


@pytest.mark.parametrize(("data", "message"), [("", "no column"), ("user,item\n", "no interactions")])
def test_empty_file(tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        read_csv(written(tmp_path, data), "user", "item")


BAD = b'user,item,time\nu,i,1\nu,i\nu,i,1,2\nu,"j"x,1\nu,\xff,1\nu,j,noon\n,j,1\nv,k,2\nu,"open,5\n'


def test_bad_records_raise_together(tmp_path):
    with pytest.raises(ValueError, match="7 bad of 10 lines") as error:
        read_csv(written(tmp_path, BAD), "user", "item", "time")
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
        sequences = read_csv(written(tmp_path, BAD), "user", "item", "time", on_error="skip")
    assert sequences.user_ids == ["u", "v"] and sequences.vocabulary.names == ["i", "k"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_quote_that_is_not_closed_is_a_bad_record_of_several_lines(tmp_path, end):
    lines = ["user,item", "", 'ann,"5 inch', "bob,x", 'cy,y"', "dan,z"]
    path = written(tmp_path, end.join([*lines, 'eve,"open', "fay,x", ""]))
    with pytest.raises(ValueError, match="2 bad of 8 lines") as error:
        read_csv(path, "user", "item")
    assert "line 5: the item id holds a line break, as behind a quote" in str(error.value)
    assert "(of lines 3 to 5)" in str(error.value)
    assert "line 8: unexpected end of data (of lines 7 to 8)" in str(error.value)
    with pytest.warns(UserWarning, match="2 bad of 8 lines"):
        assert read_csv(path, "user", "item", on_error="skip").user_ids == ["dan"]
    with pytest.raises(ValueError, match="line 5: the user id holds a line break"):
        read_csv(path, "item", "user")


def test_a_header_that_is_no_text_is_named(tmp_path):
    path = written(tmp_path, "user,item\nann,tea\n".encode("utf-16"))
    with pytest.raises(ValueError, match="line 1"):
        read_csv(path, user="user", item="item")


def test_a_column_twice(tmp_path):
    path = written(tmp_path, b"user,item,item\nann,tea,milk\n")
    with pytest.raises(ValueError, match="more than one column 'item'"):
        read_csv(path, user="user", item="item")
