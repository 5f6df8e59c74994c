import os

import numpy as np
import pytest

from tfxc.data.grouped_columns import GroupedColumns, GroupedFiles


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_blocks_in_order_of_users_and_times(kind, timed, tmp_path, monkeypatch):
    monkeypatch.setattr("tfxc.data.grouped_columns._ROWS_PER_BLOCK", 16)
    random = np.random.default_rng(0)
    users, times = random.integers(0, 6, 100).astype(np.int32), random.integers(0, 9, 100)
    items = np.arange(100, dtype=np.int32)
    columns = GroupedFiles(str(tmp_path)) if kind == "files" else GroupedColumns()
    for start in range(0, 100, 13):
        block = {"users": users, "items": items, **({"times": times} if timed else {})}
        columns.append({name: values[start : start + 13] for name, values in block.items()})
    offsets, arrays = columns.grouped(7)  # the last user has nothing
    want = np.lexsort((times, users)) if timed else np.argsort(users, kind="stable")
    np.testing.assert_array_equal(arrays["items"], want)
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(users, minlength=7))
    assert arrays.keys() == ({"items", "times"} if timed else {"items"})
    if kind == "files":
        assert len(os.listdir(tmp_path)) == 1 + timed and isinstance(arrays["items"], np.memmap)
