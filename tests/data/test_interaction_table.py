import numpy as np
import pyarrow as pa
import pytest

from tfxc.data import Vocabulary
from tfxc.data.bad_rows import BadRows
from tfxc.data.choices import Choices
from tfxc.data.interaction_table import InteractionTable
from tfxc.data.tables import open_table


def table_of(columns, vocabularies, bad):
    table = open_table(pa.table(columns), list(columns), [], bad)
    return InteractionTable(table, "u", "i", (), None, vocabularies, bad, Choices())


def test_kinds_of_further_columns():
    columns = {"hour": [7, 8], "place": ["x", None], "known": ["b", "z"], "good": [True, False]}
    columns |= {"u": [1, 1], "i": [2, 3]}
    given = Vocabulary(["a", "b"])
    log = table_of(columns, {"hour": None, "place": None, "known": given, "good": None}, BadRows("t", "row"))
    (block,) = log.blocks()
    want = {"hour": [7, 8], "place": [0, -1], "known": [1, -1], "good": [True, False]}
    assert {name: block[key].tolist() for name, key in log.keys.items()} == want
    assert block[log.keys["hour"]].dtype == np.int64 and block[log.keys["good"]].dtype == bool
    assert log.vocabulary_of("place").names == ["x"] and log.vocabulary_of("known") is given
    assert log.vocabulary_of("hour") is None


def test_a_name_that_only_bad_rows_have_gets_no_id():
    bad = BadRows("t", "row", "skip")
    log = table_of({"u": ["x", "a", "b"], "i": [None, 1, 2], "n": [1.0, 2.0, float("inf")]}, {"n": None}, bad)
    with pytest.warns(UserWarning, match="2 bad of 3 rows"):
        (block,) = log.blocks()
    assert block["users"].tolist() == [0] and log.users.names() == ["a"] and bad.number == 2


def test_names_of_a_block_of_nothing_but_bad_rows_get_no_ids(monkeypatch):
    monkeypatch.setattr("tfxc.data.interaction_table._ROWS_PER_BLOCK", 4)
    monkeypatch.setattr("tfxc.data.tables.ROWS_PER_BATCH", 2)
    columns = {
        "u": [*"abab", "zed", "yan", "a"],
        "i": [*"xyxy", "ghost", "elf", "x"],
        "c": [*"pppp", "new", "p", "p"],
        "n": [1.0] * 4 + [None] * 3,
    }
    log = table_of(columns, {"c": None, "n": None}, BadRows("t", "row", "skip"))
    with pytest.warns(UserWarning, match="3 bad of 7 rows"):
        (block,) = log.blocks()
    assert block["users"].tolist() == [0, 1, 0, 1]
    assert log.users.names() == [*"ab"] and log.items.names() == [*"xy"]
    assert log.vocabulary_of("c").names == ["p"]
