"""The house as a whole: imports go down only, public names are documented, files stay short."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tfxc"
MAX_LINES = 350

# What each part may import besides itself, `_keras` and the leaves. A module not named here is a leaf.
CORE = {"ops", "sparsity", "hashing"}
STEP = {"samplers", "losses", "metrics"}
ALLOWED = {
    **dict.fromkeys(CORE, set()),
    **dict.fromkeys(STEP, CORE),
    "layers": CORE | STEP,
    **dict.fromkeys({"callbacks", "serving"}, CORE | STEP | {"layers"}),
    "inputs": set(),
    "head_losses": CORE | STEP | {"inputs", "layers"},
    "classifier": CORE | STEP | {"head_losses", "inputs", "layers", "serving"},
    "data": set(),
    "optimizers": {"ops"},
}


def part_of(path, package):
    """The part of the house a file belongs to: the folder or module right under the package."""
    return path.relative_to(package).with_suffix("").parts[0]


def imported_modules(tree, module):
    """Every dotted name a module imports, wherever the statement stands; relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def dotted_module(path, package):
    """The dotted name of a file; `__init__` stays in, so that relative levels count alike."""
    return ".".join([package.name, *path.relative_to(package).with_suffix("").parts])


def import_violations(path, package=PACKAGE):
    """What a file imports against the layering, one message each."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    part = part_of(path, package)
    for name in imported_modules(tree, dotted_module(path, package)):
        root, *rest = name.split(".")
        if root in ("keras", "tf_keras") or name.startswith(("tensorflow.keras", "tensorflow.python.keras")):
            if part != "_keras":
                yield f"imports {name}: take keras from tfxc._keras"
        elif root == package.name and part != "__init__":
            target = rest[0] if rest else "__init__"
            leaf = target not in {*ALLOWED, "__init__"} and (package / f"{target}.py").exists()
            below = target == "_keras" or target in ALLOWED.get(part, set()) or (leaf and part in ALLOWED)
            if target != part and not below:
                yield f"{part} imports {name}: imports go down only, and siblings do not import each other"


def attribute_violations(path, package=PACKAGE):
    """Keras reached through TensorFlow, and the compiled library reached from outside ops."""
    part = part_of(path, package)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr == "keras" and getattr(node.value, "id", "") == "tf" and part != "_keras":
            yield "uses tf.keras: take keras from tfxc._keras"
        if node.attr == "load_op_library" and part != "ops":
            yield "loads an op library: only tfxc.ops does"


MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(
    path
    for folder in ("tfxc", "custom_ops", "examples", "benchmarks", "tests")
    for suffix in ("py", "cc", "h", "cu")
    for path in (ROOT / folder).rglob(f"*.{suffix}")
)


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_go_down_only(path):
    assert [*import_violations(path), *attribute_violations(path)] == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_are_short(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{lines} lines; split it by concept"


def public_objects():
    """Every (module, name) of an `__all__` under tfxc."""
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                module = dotted_module(path, PACKAGE).removesuffix(".__init__")
                yield from ((module, name) for name in ast.literal_eval(node.value))


@pytest.mark.parametrize(("module", "name"), list(public_objects()))
def test_public_names_are_documented_by_an_example(module, name):
    item = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(item) or inspect.isfunction(item)):
        return
    text = item.__doc__ or ""
    assert ">>>" in text or "```" in text, f"{module}.{name} has no docstring with an example"


def made_up_package(root, files):
    package = root / "tfxc"
    empty = dict.fromkeys(["__init__.py", "_keras.py", "labels.py", "hashing.py"], "")
    for name, text in {**empty, **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("ops/a.py", "from tfxc.samplers import uniform"),
        ("samplers/a.py", "from tfxc import losses"),
        ("samplers/a.py", "from ..layers import head"),
        ("samplers/a.py", "def f():\n    import tfxc.layers.head"),
        ("samplers/a.py", "import tfxc"),
        ("samplers/a.py", "from tfxc import ExtremeClassifier"),
        ("serving.py", "from tfxc import classifier"),
        ("layers/a.py", "from tfxc.optimizers import LazyAdam"),
        ("data/__init__.py", "from tfxc import hashing"),
        ("data/__init__.py", "from ..hashing import universal"),
        ("optimizers/a.py", "from tfxc.losses import softmax"),
        ("labels.py", "from tfxc import hashing"),
        ("hashing.py", "from tfxc import sparsity"),
        ("layers/a.py", "import keras"),
        ("layers/a.py", "from tf_keras import layers"),
        ("layers/a.py", "from tensorflow import keras"),
        ("layers/a.py", "from keras.src import backend"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, file, statement):
    package = made_up_package(tmp_path, {file: statement})
    assert len(list(import_violations(package / file, package))) == 1


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("__init__.py", "from tfxc.layers import DenseHead\nfrom . import samplers"),
        ("_keras.py", "import keras\nimport tf_keras"),
        ("samplers/a.py", "from tfxc._keras import keras, register\nfrom tfxc.labels import pad"),
        ("samplers/a.py", "from tfxc.samplers.sampler import Sampler\nfrom .b import c\nfrom . import d"),
        ("samplers/__init__.py", "from .midx import MIDX\nfrom tfxc.ops.midx_draw import midx_draw"),
        ("classifier.py", "from tfxc import layers, samplers, labels\nimport numpy as np"),
        ("optimizers/a.py", "from ..ops import row_updates"),
    ],
)
def test_a_right_import_passes(tmp_path, file, statement):
    package = made_up_package(tmp_path, {file: statement})
    assert list(import_violations(package / file, package)) == []


@pytest.mark.parametrize(
    ("file", "statement", "count"),
    [
        ("layers/a.py", "x = tf.keras.layers.Dense", 1),
        ("layers/a.py", "x = tf.load_op_library('y')", 1),
        ("ops/a.py", "x = tf.load_op_library('y')", 0),
        ("layers/a.py", "x = self.keras", 0),
    ],
)
def test_a_forbidden_attribute_is_found(tmp_path, file, statement, count):
    package = made_up_package(tmp_path, {file: statement})
    assert len(list(attribute_violations(package / file, package))) == count
