import ast
import importlib
import inspect
import json
import logging
import re
import sys
from pathlib import Path

import browser
import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import IS_KERAS_3, keras

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WITH_PROGRAMS = [page.stem for page in PAGES if page.stem != "papers"]  # test_example_helpers.py reads those
QUICK = {"cluster", "design", "recommenders", "resuming", "scale", "troubleshooting"}
# Pages whose programs train models of the package's own parts, whose graphs other tests have optimized.
OF_OUR_PARTS = {"catalogues", "evaluation", "heads", "index", "recipes", "resuming", "samplers"}
OF_OUR_PARTS |= {"troubleshooting"}


def program_of(page):
    """The Python of a page, each line where it stands in the page."""
    lines, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return "\n".join(lines)


def marks_of(page):
    marks = [] if page in OF_OUR_PARTS else [pytest.mark.optimized]
    return marks if page in QUICK else [*marks, pytest.mark.long]


@pytest.mark.both_keras
@pytest.mark.traced
@pytest.mark.parametrize("name", [pytest.param(own, marks=marks_of(own)) for own in WITH_PROGRAMS])
def test_programs_run(name, tmp_path, monkeypatch):
    if (name == "recommenders") == IS_KERAS_3:
        pytest.skip("runs under the other Keras")
    if name == "recommenders":
        pytest.importorskip("tensorflow_recommenders")
    monkeypatch.chdir(tmp_path)
    page = DOCS / f"{name}.md"
    program = program_of(page)
    assert ast.parse(program).body, "a page without a program"
    exec(compile(program, str(page), "exec"), {"__name__": name})


def test_the_metric_of_the_guide_counts_no_empty_slot():
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"\n(class FirstHitAtK.*?)\n\n\n", page, flags=re.DOTALL)
    names = {"tf": tf, "tfxc": tfxc}
    exec(program, names)
    metric = names["FirstHitAtK"](1)
    metric.update_state([[3], [3], [3]], [[-1], [3], [4]])
    assert float(metric.result()) == pytest.approx(1 / 3)


@pytest.mark.parametrize("package", ["hnswlib", "usearch", "scann"])
def test_programs_for_other_packages_run_where_they_are_installed(package):
    """Blocks marked "py" stand alone: each indexes ``vectors`` and finds ``ids`` for ``queries``."""
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    (program,) = re.findall(rf"```py\n(import {package}.*?)```", page, flags=re.DOTALL)
    try:
        importlib.import_module(package)
    except (ImportError, tf.errors.NotFoundError) as error:  # not there, or for another TensorFlow
        pytest.skip(str(error))
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal([n, 32]).astype("float32") for n in (3000, 20))
    names = {"np": np, "vectors": vectors, "queries": queries}
    exec(program, names)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    found = np.mean([np.isin(exact[row], names["ids"][row]) for row in range(len(queries))])
    assert found > 0.9


def public_classes():
    for name in tfxc.__all__:
        module = importlib.import_module(f"tfxc.{name}") if inspect.ismodule(getattr(tfxc, name)) else tfxc
        for public in getattr(module, "__all__", []):
            item = getattr(module, public)
            if inspect.isclass(item) and name != "data" and not issubclass(item, tuple):
                yield item


CLASSES = sorted(set(public_classes()), key=str)


@pytest.mark.parametrize("item", CLASSES, ids=lambda item: item.__name__)
def test_classes_document_arguments_and_errors(item):
    takes_nothing = item.__init__ is keras.callbacks.Callback.__init__
    parts = [">>>"] if takes_nothing else ["Args:", "Raises:", ">>>"]
    missing = [part for part in parts if part not in inspect.getdoc(item)]
    assert not missing, f"{item.__name__} documents no {', '.join(missing)}"


@pytest.mark.parametrize("item", CLASSES, ids=lambda item: item.__name__)
def test_classes_are_named_in_the_guide(item):
    name = re.compile(rf"\b{item.__name__}\b")
    guide = any(name.search(page.read_text(encoding="utf-8")) for page in PAGES)
    assert guide, f"no page of docs/ says when to choose {item.__name__}"


@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_in_the_guide_and_keeps_no_output(path):
    """They run as the guide is built: see ``docs/hooks/notebooks.py``."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith("# ")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert f"notebooks/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    config = pytest.importorskip("mkdocs.config")
    pytest.importorskip("nbconvert")
    from mkdocs.commands.build import build

    if not IS_KERAS_3:
        pytest.skip("built once, under Keras 3")
    folder = tmp_path_factory.mktemp("site")
    paths, disabled = list(sys.path), logging.root.manager.disable
    build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    sys.path[:], logging.root.manager.disable = paths, disabled
    return folder


@pytest.mark.long
def test_the_reference_holds_all_that_is_public(site):
    packages = [name for name in tfxc.__all__ if inspect.ismodule(getattr(tfxc, name))]
    assert {page.name for page in (site / "reference").iterdir()} == {"tfxc", *packages}
    for name in packages:
        for item in getattr(tfxc, name).__all__:
            text = (site / "reference" / name / "index.html").read_text(encoding="utf-8")
            ids = (f"tfxc.{name}.{item}", f"tfxc.{name}.{item}.{item}")  # or a module of that name hides it
            assert any(f'id="{one}"' in text for one in ids), f"{ids[0]} is not in the reference"
    top = (site / "reference" / "tfxc" / "index.html").read_text(encoding="utf-8")
    for item in set(tfxc.__all__) - set(packages):
        assert f'id="tfxc.{item}"' in top or f'id="tfxc.{item}.{item}"' in top, item


@pytest.mark.long
def test_an_entry_shows_arguments_errors_example_reference_and_source(site):
    text = (site / "reference" / "samplers" / "index.html").read_text(encoding="utf-8")
    start = text.index('id="tfxc.samplers.MIDX"')
    entry = re.sub(r"<[^>]+>", "", text[start : text.index('id="tfxc.samplers.Mixture"')])
    entry = re.sub(r"\s+", " ", entry)
    for part in ("num_codewords", "Raises:", "&gt;&gt;&gt; sampler = MIDX(", "Reference:", "Source code in"):
        assert part in entry, part


@pytest.mark.long
@pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_finds_nothing_wrong(site):
    assert browser.check(site) == []
