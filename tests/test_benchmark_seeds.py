"""Benchmarks that train an example once a seed: whose results they show, and where they keep them."""

import json
import re
import shlex
import sys
from pathlib import Path

import daily_quality
import loss_quality
import pytest
import sparse_structure
import tagging_quality

from tfxc._keras import IS_KERAS_3

if not IS_KERAS_3:
    pytest.skip("the benchmarks are tried once, under Keras 3", allow_module_level=True)

PAPERS = (Path(__file__).resolve().parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")


def test_days_of_other_data_or_options_are_not_taken_for_these(tmp_path, monkeypatch, capsys):
    example, trained = daily_quality.daily_catalogue, []

    def train(argv):
        args = example.parse_arguments(argv)
        trained.append((args.data, args.seed))
        rows = [["1", "9", "1", "1", "0.1", title, "5", "3", "0.5000"] for title in ("carried over", "anew")]
        args.output.mkdir(parents=True, exist_ok=True)
        results = json.dumps({"columns": example.COLUMNS, "rows": rows})
        (args.output / "results.json").write_text(results, encoding="utf-8")

    def bench(*options):
        trained.clear()
        program = ["daily_quality.py", "--seeds", "0", "1", "--", "--output", str(tmp_path), *options]
        monkeypatch.setattr(sys, "argv", program)
        daily_quality.main()
        return trained

    monkeypatch.setattr(example, "main", train)
    monkeypatch.chdir(tmp_path)
    shop, books = Path("shop.txt"), Path("books.txt")
    for data in (shop, books):
        data.touch()
    assert bench("--data", "shop.txt") == [(shop, 0), (shop, 1)]
    assert bench("--data", "shop.txt") == []
    assert "carried over and anew: shop.txt" in capsys.readouterr().out
    assert bench("--data", "books.txt") == [(books, 0), (books, 1)]
    with pytest.raises(SystemExit, match="'days_before': 0.*'days_before': 40.*give another --output"):
        bench("--data", "shop.txt", "--days-before", "40")


def test_runs_of_losses_go_where_they_are_told(tmp_path, monkeypatch):
    folders = []

    def train(example, arguments, seeds):
        folders.append(arguments.output)
        return {
            name: [dict.fromkeys(("seconds", "ndcg_at_10", "recall_at_10"), 1.0)]
            for name in arguments.samplers
        }

    def bench(*options):
        program = ["loss_quality.py", "--runs", "gbce:uniform", "--", "--data", "shop.txt", *options]
        monkeypatch.setattr(sys, "argv", program)
        loss_quality.main()

    monkeypatch.setattr(loss_quality, "run_seeds", train)
    monkeypatch.chdir(tmp_path)
    Path("shop.txt").touch()
    bench()
    bench("--output", str(tmp_path))
    assert folders == ["runs/losses/shop/gbce", f"{tmp_path}/gbce"]


def write_points(folder, num_labels=70):
    """Points of two labels each, which name them, in the layout of one file."""
    for name in ("train", "test"):
        lines = [f"{i % num_labels},{(i * i + 1) % num_labels} {i % num_labels}:1" for i in range(40)]
        text = "\n".join([f"40 {num_labels} {num_labels}", *lines, ""])
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    for name in ("label_names", "vocabulary"):
        words = "".join(f"word{number}\n" for number in range(num_labels))
        (folder / f"{name}.txt").write_text(words, encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "options"),
    re.findall(r"`python benchmarks/(tagging_quality|sparse_structure)\.py (.*?)`", PAPERS),
)
def test_sweeps_of_the_papers_run_on_a_few_points(program, options, tmp_path, monkeypatch, capsys):
    write_points(tmp_path)
    ours, _, rest = options.partition(" -- ")
    table = tagging_quality.SWEEPS if "sweeps" in ours else tagging_quality.NEGATIVES
    table, epochs = (sparse_structure.ROWS, "2") if program == "sparse_structure" else (table, "7")
    for own in table.values():
        tagging_quality.example.parse_arguments([*tagging_quality.MINED, *own])
    few = ["--max-points", "20", "--dim", "4", "--ks", "1", "--epochs", epochs]
    folders = ["--seeds", "0", "--data", str(tmp_path), "--output", str(tmp_path / "runs")]
    chosen = ["--rows", *(some := [*table][2::3]), "--", *shlex.split(rest), *few]
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *shlex.split(ours), *folders, *chosen])
    in_this = lambda task, *given: {"peak": 0.0, **task(lambda: None, *given)}  # noqa: E731
    monkeypatch.setattr(sparse_structure, "in_process", in_this)
    sys.modules[program].main()
    assert re.findall(r"^\| ([^|]+) \| [\d.]+ \|", capsys.readouterr().out, re.MULTILINE) == some
