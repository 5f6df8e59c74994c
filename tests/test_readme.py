import re
from pathlib import Path

import pytest

from tfxc._keras import IS_KERAS_3

pytestmark = [pytest.mark.traced, pytest.mark.optimized]
ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.skipif(not IS_KERAS_3, reason="the README imports Keras 3 by name")
def test_the_programs_in_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"u{user},p{(user * step) % 17},2026-01-{step + 1:02}" for user in range(20) for step in range(9)]
    Path("log.csv").write_text("\n".join(["user,product,when", *rows, ""]), encoding="utf-8")
    names = {}
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(program, "README.md", "exec"), names)
        if "x" in names and not names.get("checked"):  # the first: a model that has learnt
            names["checked"] = True
            held_out = names["x"][-2000:], names["y"][-2000:]
            recall = names["model"].evaluate(*held_out, batch_size=256, return_dict=True, verbose=0)
            shown = re.findall(r"val_recall_at_10: ([0-9.]+)", TEXT)
            assert abs(recall["recall_at_10"] - float(shown[-1])) < 0.01  # rounding differs by processor
            assert (tmp_path / "served" / "1" / "saved_model.pb").exists()
    assert len(names["names"]) == 17 and names["model"].head.num_classes == 1_000_000


def test_it_is_read_in_five_minutes():
    assert len(TEXT.splitlines()) <= 150 and len(TEXT.split()) <= 1300


def test_links_lead_somewhere():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", TEXT)]
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert links and not missing


def test_its_commands_exist():
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"make ([a-z-]+)", TEXT)
    assert commands and set(commands) <= set(targets)
