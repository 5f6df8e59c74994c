"""Writes docs/benchmarks and the README's table from the result files, so that nobody types a figure.

    python benchmarks/write_pages.py [--check]

A command wrote ``benchmarks/results/NAME.json`` with ``--results``. ``benchmarks/pages/NAME.md`` is a page in
Jinja2 that names tables, rows and columns of the results in place of figures. A page with a measured figure
of its own is refused. ``--check`` writes nothing, and ends with status 1 if a page differs from the results.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import jinja2
from _tables import markdown

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
MARKS = "<!-- figures -->", "<!-- end of figures -->"


class Results:
    """The results as a page reads them: tables, figures, conditions."""

    def __init__(self, files):
        self.files = files

    def _table(self, name, title):
        if name not in self.files:
            raise KeyError(f"There is no benchmarks/results/{name}.json; there are {sorted(self.files)}.")
        found = [table for table in self.files[name]["tables"] if table["title"].startswith(title)]
        if len(found) != 1:
            titles = [table["title"] for table in self.files[name]["tables"]]
            raise KeyError(f"{name} has {len(found)} tables {title!r}...; it has {titles}.")
        return found[0]

    def table(self, name, title, columns=None, renamed=None, rows=None):
        """A table as Markdown with these columns and rows; ``renamed`` gives columns other headings."""
        table = self._table(name, title)
        missing = set(rows or ()) - {row[0] for row in table["rows"]}
        if missing:
            raise KeyError(f"The table {title!r} of {name} has no rows {sorted(missing)}.")
        columns = columns or table["columns"]
        places = [table["columns"].index(column) for column in columns]
        chosen = [row for row in table["rows"] if rows is None or row[0] in rows]
        cells = [[row[place] for place in places] for row in chosen]
        return markdown(cells, [(renamed or {}).get(column, column) for column in columns])

    def figure(self, name, title, row, column):
        """The figure in this column of the row that begins with ``row``, a cell or a list of them."""
        table, first = self._table(name, title), row if isinstance(row, list) else [row]
        (found,) = [cells for cells in table["rows"] if cells[: len(first)] == first]
        return found[table["columns"].index(column)]

    def mean(self, name, title, row, column):
        """The mean of a figure over seeds, without its deviation."""
        found = self.figure(name, title, row, column)
        return float(found.split(" ± ")[0]) if isinstance(found, str) else found

    def conditions(self, *names):
        """The commands, machines and versions of a section, in a folded block."""
        lines = ["<details><summary>Commands and conditions</summary>", ""]
        for name in names:
            file = self.files[name]
            machine = f"{file['machine']['cores']} cores of {file['machine']['processor']}"
            if "gflops" in file["machine"]:
                machine += f", which multiply matrices at {file['machine']['gflops']} GFLOP/s"
            versions = ", ".join(f"{package} {version}" for package, version in file["versions"].items())
            if file.get("commit"):
                versions += f"; commit {file['commit']}"
            lines.append(f"* `{file['command']}`<br>{machine}; {versions}; {file['date']}")
        return "\n".join([*lines, "", "</details>"])


def read_results(folder):
    """Result files by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def stray_figures(source):
    """Numbers in the text of a page, without its code, links and markup."""
    text = re.sub(
        r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|```.*?```|`[^`]*`|\]\([^)]*\)", "", source, flags=re.DOTALL
    )
    return re.findall(r"(?<![\w@^-])\d[\d,.]*(?:\s?(?:ms|MB|GB|s|%|x))(?!\w)", text)


def rendered(results):
    """The content of each file by its path."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    context = {name: getattr(results, name) for name in ("table", "figure", "mean", "conditions")}
    pages = {}
    for source in sorted((FOLDER / "pages").glob("*.md")):
        text = source.read_text(encoding="utf-8")
        if stray_figures(text):
            raise ValueError(
                f"{source.name} has figures of its own: {stray_figures(text)}. Take them from a result."
            )
        page = environment.from_string(text).render(context)
        if source.name == "README.md":
            pages[ROOT / "README.md"] = between_marks((ROOT / "README.md").read_text(encoding="utf-8"), page)
        else:
            pages[ROOT / "docs" / "benchmarks" / source.name] = page
    return pages


def between_marks(text, inside):
    """The text with the part between its marks replaced."""
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n{inside.strip()}\n{MARKS[1]}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check, stale = parser.parse_args().check, []
    for path, text in rendered(Results(read_results(FOLDER / "results"))).items():
        old = path.read_text(encoding="utf-8") if path.exists() else None
        if old == text:
            continue
        if check:
            stale.append(str(path.relative_to(ROOT)))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    if stale:
        sys.exit(
            f"Not what benchmarks/results says: {', '.join(stale)}. Run python benchmarks/write_pages.py."
        )


if __name__ == "__main__":
    main()
