"""The README's program runs as it stands."""

import re
from pathlib import Path

import pytest

from tfxc._keras import IS_KERAS_3

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.skipif(not IS_KERAS_3, reason="the README imports Keras 3 by name")
def test_the_program_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(program, str(README), "exec"), names)
    assert names["model"].predict(names["x"][:3], verbose=0)["ids"].shape == (3, 10)
    assert (tmp_path / "served" / "1" / "saved_model.pb").exists()
