"""The tables of a benchmark: printed while it runs, and saved in a file for the documentation."""

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

_shown = []


def show(title, rows, columns):
    """Prints rows as a Markdown table, and collects them for ``keep``."""
    print(f"\n### {title}\n\n" + markdown(rows, columns), flush=True)
    _shown.append({"title": title, "columns": [*columns], "rows": [[*row] for row in rows]})


def markdown(rows, columns):
    """A Markdown table; floats have three digits."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(map(cell, row)) + " |")
    return "\n".join(lines)


def cell(value):
    """A cell of a table: a float with three digits, whole from 1000 on."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def add_results(parser):
    """Adds the option that ``keep`` takes."""
    parser.add_argument("--results", metavar="FILE", help="keep the tables in this JSON file, too")


def keep(path):
    """Writes the tables shown so far with their origin; with path None it writes nothing."""
    if path is None:
        return
    packages = "tfxc", "tensorflow", "keras", "faiss-cpu"
    result = {
        "command": _command(),
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "gflops": _product_rate(),
        },
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": _commit(),
        "tables": _shown,
    }
    aside = Path(f"{path}.tmp")
    aside.parent.mkdir(parents=True, exist_ok=True)
    aside.write_text(json.dumps(result, indent=1, default=float) + "\n", encoding="utf-8")
    aside.replace(path)


def _command():
    """The command line, without the paths of outputs, and without the folders of this machine's data."""
    words, skip = [], False
    for word in sys.argv[1:]:
        if skip or word in ("--results", "--folder", "--output"):
            skip = not skip
            continue
        words.append(Path(word).name if os.path.isabs(word) else word)
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def _commit():
    """The commit of this clone, "-dirty" if it has changes; None outside of a clone, or without Git."""
    folder = str(Path(__file__).parent)
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _product_rate(size=2048, turns=5):
    """GFLOP/s of a float32 matrix product in NumPy: machines of the same name differ by a factor of two."""
    factor, seconds = np.ones([size, size], np.float32), []
    for _ in range(turns):
        start = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - start)
    return round(2e-9 * size**3 / min(seconds))
