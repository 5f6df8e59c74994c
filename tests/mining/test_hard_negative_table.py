import os

import numpy as np
import pytest
from full_disk import full_disk

from tfxc.mining.hard_negative_table import HardNegativeTable


def table_of(folder, shape=(4, 2), query_dim=3):
    return HardNegativeTable(folder, shape, query_dim, num_classes=20)


def fill(table, value, epoch):
    table.write([np.full([3, 2], value), np.full([1, 2], value)], epoch)
    table.swap(epoch)


def test_a_swap_replaces_the_rows_and_removes_the_old_file(tmp_path):
    table = table_of(tmp_path / "made" / "here")
    assert table.rows(np.array([1, 3])).tolist() == [[-1, -1], [-1, -1]]
    fill(table, 5, epoch=0)
    fill(table, 6, epoch=3)
    assert table.rows(np.array([1])).tolist() == [[6, 6]] and table.epoch == 3
    assert os.listdir(table.folder) == ["hard-negatives-of-epoch-000003.table"]
    fill(table, 7, epoch=3)
    assert table.rows(np.array([0])).tolist() == [[7, 7]] and len(os.listdir(table.folder)) == 1


def test_resume_takes_the_newest_that_was_in_use_and_clears_the_rest(tmp_path):
    for epoch in (1, 4, 9):
        source = table_of(tmp_path / str(epoch))
        fill(source, epoch, epoch)
        name = f"hard-negatives-of-epoch-{epoch:06d}.table"
        os.rename(source.folder / name, tmp_path / name)
        os.rmdir(source.folder)
    table = table_of(tmp_path)
    table.write([np.zeros([4, 2], np.int32)], epoch=8)  # never swapped in
    (tmp_path / "writing-hard-negatives-of-epoch-000009.table").write_text("cut short by a kill")
    (tmp_path / "notes.writing").write_text("of the user")
    table.resume(epoch=5)
    assert table.epoch == 4 and table.rows(np.array([2])).tolist() == [[4, 4]]
    assert sorted(os.listdir(tmp_path)) == ["hard-negatives-of-epoch-000004.table", "notes.writing"]
    fresh = table_of(tmp_path)
    fresh.resume(epoch=-2)
    assert fresh.epoch is None and os.listdir(tmp_path) == ["notes.writing"]


def test_a_table_of_other_data_is_refused(tmp_path):
    table = table_of(tmp_path)
    fill(table, 1, epoch=0)
    with pytest.raises(ValueError, match=r"\(4, 2\).*, but rows int32 \(5, 2\).*Delete it"):
        table_of(tmp_path, (5, 2)).resume(epoch=1)


@pytest.mark.parametrize("damage", [lambda b: b[:0], lambda b: b[:60], lambda b: b"\1" + b[1:]])
def test_a_damaged_table_is_refused_by_name(tmp_path, damage):
    table = table_of(tmp_path)
    fill(table, 0, epoch=0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"{path.name} is (damaged|cut short).*Delete it"):
        table_of(tmp_path).resume(epoch=1)


def test_ids_of_no_class_are_refused_by_name(tmp_path):
    table = table_of(tmp_path)
    fill(table, 19, epoch=0)
    assert table.rows(np.array([1])).tolist() == [[19, 19]]
    for wrong in (20, -2):
        fill(table, wrong, epoch=0)
        with pytest.raises(ValueError, match=rf"epoch-000000.table holds the class id {wrong}, .* \[0, 20\)"):
            table.rows(np.array([1]))


def test_rows_that_were_in_use_are_put_back(tmp_path):
    table = table_of(tmp_path)
    fill(table, 5, epoch=0)
    before = table.in_use
    fill(table, 6, epoch=3)
    table.put_back(before, epoch=0)
    assert table.epoch == 0 and table.rows(np.array([2])).tolist() == [[5, 5]]
    assert os.listdir(tmp_path) == ["hard-negatives-of-epoch-000000.table"]
    table.put_back(None, None)
    assert table.in_use is None and table.epoch is None and os.listdir(tmp_path) == []


def test_queries_are_kept_while_collecting(tmp_path):
    table = table_of(tmp_path)
    table.collect(np.array([0]), np.ones([1, 3]))
    assert table.finish_collecting() is None
    table.start_collecting(epoch=2)
    table.collect(np.array([3, 1]), np.array([[1, 2, 3], [4, 5, 6]]))
    values, seen, _, epoch = table.finish_collecting()
    assert values.dtype == np.float32 and seen.tolist() == [False, True, False, True] and epoch == 2
    np.testing.assert_array_equal(values[[3, 1]], [[1, 2, 3], [4, 5, 6]])
    assert isinstance(values, np.memmap) and os.listdir(tmp_path) == []  # on disk, without a name


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    table = table_of(tmp_path, (100_000, 4), query_dim=64)
    with full_disk(1_000_000):
        blocks = (np.zeros([1000, 4], np.int32) for _ in range(100))
        for take in (lambda: table.write(blocks, 0), lambda: table.start_collecting(0)):
            with pytest.raises(OSError, match="File too large"):
                take()
    assert os.listdir(tmp_path) == [] and table.finish_collecting() is None


def test_ids_outside_are_named(tmp_path):
    table = table_of(tmp_path)
    with pytest.raises(ValueError, match=r"Example id 4 is outside \[0, 4\).*num_examples"):
        table.rows(np.array([0, 4]))
    table.start_collecting(0)
    with pytest.raises(ValueError, match="Example id -1 is outside"):
        table.collect(np.array([-1]), np.ones([1, 3]))
