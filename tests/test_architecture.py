"""The house as a whole: imports go down only, public names are documented, files stay short."""

import ast
import functools
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tfxc"
MAX_LINES = 350

# Floor by floor, what stands side by side: a part imports from its own floor and from those below it.
FLOORS = (
    {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "class_vectors", "labels"},
    {"ops", "sparsity", "hashing", "class_vectors", "labels"},
    {"samplers", "losses", "metrics", "search", "optimizers"},
    {"layers"},
    {"mining", "resume"},
    {"callbacks"},
    {"cluster"},
    {"model", "serving"},
    {"catalogue", "report"},
)
# What Keras keeps to itself, and which Keras runs: for _keras alone to know, and all that begins so.
KERAS_PRIVATE = {"IS_KERAS_3", "_flatten_layers", "_learning_rate", "_trainable_variables", "_index_dict"}
KERAS_PRIVATE |= {"_autocast", "_iterations", "_supports_tf_logs", "_chief_worker_only", "_direction"}
KERAS_PREFIX = "_keras"
APART = {"data", "encoders"}  # these import the ground floor alone
ALLOWED = {part: set().union(*FLOORS[: floor + 1]) for floor, parts in enumerate(FLOORS) for part in parts}
ALLOWED.update({part: set(FLOORS[0]) for part in APART})
ALLOWED["encoders"].add("ops")  # chunks of a batch, with their gradient
ALLOWED["layers"].add("encoders")  # an item encoder in chunks asks for a loss in chunks
ALLOWED["resume"].add("data")  # a training that goes on orders its data
ALLOWED["cluster"].add("data")  # a pipeline tells whether workers can run it
ALLOWED["model"].add("data")  # the first batch of a pipeline builds a model
ALLOWED["serving"].add("data")  # class names are a column of tfxc.data
ALLOWED["catalogue"].add("data")  # sequences tell what stands beside a new class


def part_of(path, package):
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
    return ".".join([package.name, *path.relative_to(package).with_suffix("").parts])


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def import_violations(path, package):
    part = part_of(path, package)
    for name in imported_modules(parsed(path), dotted_module(path, package)):
        root, *rest = name.split(".")
        if root in ("keras", "tf_keras") or name.startswith(("tensorflow.keras", "tensorflow.python.keras")):
            if part != "_keras":
                yield f"imports {name}: take keras from tfxc._keras"
        elif rest[-1:] == ["IS_KERAS_3"]:
            if part != "_keras":
                yield f"imports {name}: what differs between the two Keras belongs in tfxc._keras"
        elif root == package.name and part not in ("__init__", "_keras"):
            target = rest[0] if rest else "__init__"
            if target not in ALLOWED[part] | {part, "_keras"}:
                yield f"{part} imports {name}: imports go down only"


def looked_up_by_name(node):
    """The constant name in getattr(x, "name") and its like, else None."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
        return node.args[1].value if isinstance(node.args[1], ast.Constant) else None
    return None


def attribute_violations(path, package):
    """Keras reached through TensorFlow, its privates, and the compiled library reached from outside ops."""
    part = part_of(path, package)
    for node in ast.walk(parsed(path)):
        name = looked_up_by_name(node) or getattr(node, "attr", "")
        if part != "_keras" and (name in KERAS_PRIVATE or name.startswith(KERAS_PREFIX)):
            yield f"uses {name}: only tfxc._keras knows what Keras keeps to itself"
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
    for suffix in ("py", "cc", "h")
    for path in (ROOT / folder).rglob(f"*.{suffix}")
)


def relative(path):
    return str(path.relative_to(ROOT))


def violations(path, package=PACKAGE):
    return [*import_violations(path, package), *attribute_violations(path, package)]


def test_imports_go_down_only():
    wrong = {relative(path): violations(path) for path in MODULES}
    assert {path: found for path, found in wrong.items() if found} == {}


# Names of TensorFlow and Keras that nobody else chooses.
NAMES_OF_OTHERS = "_sharded_container|max_shard_size"


def test_only_the_cluster_names_a_server_or_a_shard():
    found = {}
    for path in (path for path in MODULES if part_of(path, PACKAGE) != "cluster"):
        text = re.sub(NAMES_OF_OTHERS, "", path.read_text(encoding="utf-8"))
        found[relative(path)] = re.findall(r"(?i).*(?:server|shard).*", text)
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_long_files_are_named():
    for path in SOURCES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:  # a file is split by idea, never by length
            told = f"{relative(path)} has {lines} lines: does it hold more than one idea?"
            warnings.warn(told, stacklevel=1)


def public_objects():
    """Every (module, name) of an `__all__` under tfxc."""
    for path in MODULES:
        for node in parsed(path).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                module = dotted_module(path, PACKAGE).removesuffix(".__init__")
                yield from ((module, name) for name in ast.literal_eval(node.value))


def test_public_names_are_documented_by_an_example():
    found = set(public_objects())
    assert {("tfxc", "ExtremeClassifier"), ("tfxc.samplers", "MIDX")} <= found
    for module, name in found:
        item = getattr(importlib.import_module(module), name)
        text = item.__doc__ or ""
        if inspect.isclass(item) or inspect.isfunction(item):
            assert ">>>" in text or "```" in text, f"{module}.{name} has no docstring with an example"


FORBIDDEN = """\
ops/a.py: from tfxc.samplers import uniform
samplers/a.py: from ..layers import head
samplers/a.py: def f(): import tfxc.layers.head
samplers/a.py: import tfxc
samplers/a.py: from tfxc import ExtremeClassifier
layers/a.py: from tfxc.model import step
data/__init__.py: from tfxc import hashing
data/__init__.py: from ..hashing import universal
encoders/a.py: from tfxc.layers import DenseHead
encoders/a.py: from tfxc import data
ids.py: from tfxc import hashing
layers/a.py: import keras
layers/a.py: from tf_keras import layers
layers/a.py: from tensorflow import keras
layers/a.py: from keras.src import backend
optimizers/a.py: from tfxc._keras import IS_KERAS_3
layers/a.py: x = tf.keras.layers.Dense
layers/a.py: x = tf.load_op_library('y')
layers/a.py: x = y._keras_mask
layers/a.py: x = getattr(y, '_keras_mask', None)
layers/a.py: for x in y._flatten_layers(): pass
layers/a.py: import tfxc._keras as k; k.IS_KERAS_3"""
ALLOWED_LINES = """\
__init__.py: from tfxc.layers import DenseHead; from . import samplers
_keras.py: import keras, tf_keras
_keras.py: x = getattr(y, '_keras_mask', None)
samplers/a.py: from tfxc._keras import keras; from tfxc.labels import pad
samplers/a.py: from tfxc.samplers.sampler import Sampler; from .b import c
samplers/a.py: from . import d
samplers/__init__.py: from .midx import a; from tfxc.ops.midx_draw import b
model/classifier.py: from tfxc import layers, labels; import numpy
optimizers/a.py: from ..ops import row_updates
encoders/a.py: from tfxc._keras import keras; from tfxc.arguments import a
ops/a.py: x = tf.load_op_library('y')
layers/a.py: x = self.keras"""


@pytest.mark.parametrize(("lines", "count"), [(FORBIDDEN, 1), (ALLOWED_LINES, 0)], ids=["wrong", "right"])
def test_what_is_forbidden_is_found_and_nothing_else(lines, count, tmp_path):
    for number, line in enumerate(lines.splitlines()):
        file, _, statement = line.partition(": ")
        package = tmp_path / str(number) / "tfxc"
        path = package / file
        path.parent.mkdir(parents=True)
        path.write_text(statement)
        assert len(violations(path, package)) == count, line
