import os

import numpy as np
import pytest

from tfxc.data.grouping import GroupedColumns, GroupedFiles, by_group, decreases_inside, sort_by_time


@pytest.mark.parametrize(("num", "num_groups"), [(0, 3), (1, 1), (1000, 7), (5, 1000)])
def test_by_group_is_a_stable_sort(num, num_groups):
    groups = np.random.default_rng(0).integers(0, num_groups, num).astype(np.int32)
    positions, offsets = by_group(groups, num_groups)
    np.testing.assert_array_equal(positions, np.argsort(groups, kind="stable"))
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(groups, minlength=num_groups))


KINDS = {
    "fractions": lambda times: times / 100,
    "days": lambda times: times.astype("datetime64[D]"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 10, 1 << 16])
def test_sort_by_time_keeps_the_order_of_equal_times(kind, block, monkeypatch):
    monkeypatch.setattr("tfxc.data.grouping._PER_BLOCK", block)
    random = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 9, 50))])
    times = KINDS[kind](random.integers(-5, 1000, offsets[-1]) % 40 * 25 - 500)
    want = [np.argsort(times[a:b], kind="stable") + a for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    want = np.concatenate(want)
    ordered, positions = times.copy(), np.arange(len(times))
    sort_by_time(offsets, ordered, [positions])
    np.testing.assert_array_equal(positions, want)
    np.testing.assert_array_equal(ordered, times[want])
    assert not decreases_inside(offsets, ordered) and decreases_inside(offsets, times)


def test_nothing_to_sort():
    sort_by_time(np.array([0]), np.zeros(0), [])
    sort_by_time(np.array([0, 0, 0]), np.zeros(0), [])
    assert not decreases_inside(np.array([0, 0]), np.zeros(0))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_blocks_in_order_of_users_and_times(kind, timed, tmp_path, monkeypatch):
    monkeypatch.setattr("tfxc.data.grouping._ROWS_PER_BLOCK", 16)
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
