"""The pages of docs/benchmarks say what the result files say, and no figure in them is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from write_pages import Results, between_marks, read_results, rendered, stray_figures

from tfxc._keras import IS_KERAS_3

if not IS_KERAS_3:
    pytest.skip("Keras has no part in the pages", allow_module_level=True)

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

STEP = {"columns": ["step", "ms"], "rows": [["ours", 2.0], ["theirs", 8123.4]]}
QUALITY = {"columns": ["run", "NDCG"], "rows": [["full", "0.68 ± 0.01"], ["half", 0.34]]}
FILE = {
    "command": "python benchmarks/a.py",
    "date": "2026-01-01",
    "machine": {"processor": "a processor", "cores": 2, "gflops": 90},
    "versions": {"tfxc": "0.2.0"},
    "commit": "0123abcd",
    "tables": [{"title": "A step at 10 classes", **STEP}, {"title": "Quality", **QUALITY}],
}


def test_pages_are_what_the_results_say():
    for path, text in rendered(Results(read_results(BENCHMARKS / "results"))).items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run make pages"


def test_tables_figures_and_conditions_of_a_result():
    results = Results({"a": FILE})
    assert results.figure("a", "A step", "theirs", "ms") / results.figure("a", "A step", "ours", "ms") > 4000
    assert results.figure("a", "A step", ["ours", 2.0], "step") == "ours"
    table = results.table("a", "A step", columns=["ms", "step"], renamed={"ms": "milliseconds"})
    assert table.splitlines() == [
        "| milliseconds | step |",
        "|---|---|",
        "| 2 | ours |",
        "| 8,123 | theirs |",
    ]
    assert results.table("a", "A step", rows=["theirs"]).splitlines()[2:] == ["| theirs | 8,123 |"]
    conditions = results.conditions("a")
    assert "2 cores of a processor, which multiply matrices at 90 GFLOP/s" in conditions
    assert "benchmarks/a.py" in conditions and "tfxc 0.2.0; commit 0123abcd; 2026-01-01" in conditions
    # A mean is a number without its deviation.
    assert [results.mean("a", "Quality", run, "NDCG") for run in ("full", "half")] == [0.68, 0.34]


def test_what_is_not_there_is_named():
    results = Results({"a": FILE})
    with pytest.raises(KeyError, match="no benchmarks/results/b.json"):
        results.table("b", "A step")
    with pytest.raises(KeyError, match="0 tables 'Speed'"):
        results.table("a", "Speed")
    with pytest.raises(KeyError, match="no rows"):
        results.table("a", "A step", rows=["ours", "nobody's"])


def test_a_typed_figure_is_found_and_what_is_filled_in_is_none():
    for text in ("It takes 12 ms.", "3.5x faster", "a share of 98 %", "63 MB"):
        assert stray_figures(text), text
    for text in ("`--epochs 3 s`", "{{ figure('a', 'b', 'c', 'd') }} ms", "at 1,000,000 classes"):
        assert not stray_figures(text), text


def test_the_rest_of_a_file_stays():
    text = "before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n"
    assert between_marks(text, " new\n") == text.replace("old", "new")


def test_a_benchmark_keeps_its_tables(tmp_path):
    program = tmp_path / "speed.py"
    program.write_text(
        "import argparse\nfrom _tables import add_results, keep, show\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--data')\nadd_results(parser)\n"
        "show('Title', [['a', 1.5]], ['name', 's'])\nkeep(parser.parse_args().results)\n"
    )
    options = ["--data", tmp_path / "train.txt", "--results", tmp_path / "out" / "r.json"]
    command = [sys.executable, program, *options]
    environment = {"PYTHONPATH": str(BENCHMARKS), "PATH": ""}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert "| a | 1.5 |" in done.stdout
    result = json.loads((tmp_path / "out" / "r.json").read_text())
    assert result["tables"] == [{"title": "Title", "columns": ["name", "s"], "rows": [["a", 1.5]]}]
    assert result["command"] == "python benchmarks/speed.py --data train.txt"
    assert result["versions"]["tfxc"] and result["commit"] is None  # PATH does not lead to Git
