import pytest

from tfxc import progress as module
from tfxc.progress import progress


@pytest.mark.parametrize(("patience", "num_lines"), [(0, 2), (30, 0)])
def test_a_log_has_lines_of_long_work_alone(patience, num_lines, monkeypatch, capfd):
    monkeypatch.setattr(module, "_PATIENCE", patience)
    with progress(10, "Cells", "classes") as bar:
        for _ in range(2):
            bar.update(5)
    lines = [line for line in capfd.readouterr().err.split("\n") if "Cells: " in line]
    assert (len(lines) >= num_lines) if num_lines else not lines
    assert not lines or "Cells: 100% of 10 classes in" in lines[-1]


def test_without_a_title_nothing_is_told(monkeypatch, capfd):
    monkeypatch.setattr(module, "_PATIENCE", 0)
    with progress(10, None, "classes") as bar:
        bar.update(10)
    assert not capfd.readouterr().err
