"""Finds and loads the compiled op library; without it, ops take their TensorFlow paths."""

import contextlib
import contextvars
import functools
import json
import os
import re
import sys
import warnings
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import control_flow_util

_STOCK = contextvars.ContextVar("stock", default=False)
LIBRARY = Path(__file__).with_name("_tfxc_ops.so")
# The most draws or candidates of a query, as in custom_ops/common/limits.h. No real call comes near; a larger
# number is a mistake that would fill the memory.
MOST_PER_QUERY = 1 << 24
# What registrations() in custom_ops/build.py returns for the ops as this package calls them.
_REGISTRATIONS = "fcb5ed1de87c9f76"
_REMEDY = (
    "Estimates stay the same, but the samplers' draws, candidate scores and sparse row updates run on slower "
    "TensorFlow ops: a step with MIDX at a million classes takes nine times as long. "
    + (
        "To build the library, install g++ 11 or newer, then run in the folder of tfxc's source "
        '`pip install "setuptools>=77" wheel` and `pip install --no-build-isolation .`, or in a source '
        "checkout `python custom_ops/build.py`: both compile for the installed TensorFlow."
        if sys.platform == "linux"
        else "The library is for Linux: a container, or WSL on Windows, has it."
    )
)


def load():
    """The compiled ops as a module, or ``None`` where there are none or they are disabled.

    The environment variable ``TFXC_DISABLE_OPS=1`` disables them silently, at any time. One warning reports a
    library that is missing, broken, or built for another TensorFlow or from another version of tfxc.
    ``TFXC_OPS_LIBRARY=path`` chooses another library, such as one that ``custom_ops/build.py`` built for
    tests. It too must belong to this TensorFlow. If it cannot be loaded, ``load`` raises a RuntimeError:
    whoever chose a library does not want the results of another.
    """
    return None if os.environ.get("TFXC_DISABLE_OPS") == "1" else _load()


def available():
    """Whether the compiled ops are loaded."""
    return load() is not None


def use_compiled(*tensors):
    """Whether a wrapper should call the compiled op here and now, with these tensors or variables.

    It is False without a library, inside ``stock_ops``, inside XLA (which cannot call custom ops), where a
    GPU is visible (data would travel to the CPU kernels and back), and for other dtypes than float32.
    """
    return (
        not _STOCK.get()
        and all(tensor.dtype == tf.float32 for tensor in tensors)
        and available()
        and not tf.config.get_visible_devices("GPU")
        and not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def takes_table(table):
    """As ``use_compiled``, for kernels that read or change a table of float32 or bfloat16 in place.

    A table that an encoder shares with the head may be no variable: under mixed precision Keras passes a
    tensor, cast to bfloat16.
    """
    is_variable = table.dtype == tf.float32 or hasattr(table, "handle")
    return is_variable and table.dtype in (tf.float32, tf.bfloat16) and use_compiled()


@contextlib.contextmanager
def stock_ops():
    """A context, or a decorator, in which ops take their TensorFlow paths.

    It is for graphs that must run where tfxc is not installed, and for tests.
    """
    token = _STOCK.set(True)
    try:
        yield
    finally:
        _STOCK.reset(token)


def reads_tables(*names):
    """Registers compiled ops that only read variables, so that functions need not run them in order.

    Ops that compute gradients, ``...Grad``, refuse to be differentiated.
    """
    for name in names:
        auto_control_deps_utils.register_read_only_resource_op(f"Tfxc>{name}")
        if name.endswith("Grad"):
            tf.RegisterGradient(f"Tfxc>{name}")(_no_second_derivative)


def gradient_of(op, given, *attributes):
    """What the compiled op that computes the gradient of another makes of inputs, with its attributes."""
    words = re.findall("[A-Z][a-z]*", op.type.removeprefix("Tfxc>"))
    own = {name: op.get_attr(name) for name in attributes}
    return getattr(load(), f"tfxc_{'_'.join(words).lower()}_grad")(*given, **own)


def _no_second_derivative(op, *gradients):
    raise NotImplementedError(
        f"{op.type} has no derivative: compiled ops are differentiable once. Set TFXC_DISABLE_OPS=1 to "
        "compute the same by TensorFlow's ops, most of which have second derivatives."
    )


@functools.cache
def _load():
    chosen = os.environ.get("TFXC_OPS_LIBRARY")
    path = Path(chosen).resolve() if chosen else _for_this_tensorflow()
    problem = _find_problem(path)
    if problem is None:
        try:
            return tf.load_op_library(str(path))
        except (tf.errors.OpError, OSError, RuntimeError) as error:
            problem = f"The compiled op library {path.name} cannot be loaded: {error}."
    if chosen:
        raise RuntimeError(f"TFXC_OPS_LIBRARY is {chosen}. {problem} Build it, or unset the variable.")
    warnings.warn(f"{problem} {_REMEDY}", RuntimeWarning, stacklevel=4)
    return None


def _for_this_tensorflow():
    """The library that was built here or, in a wheel, the library for the running TensorFlow."""
    minor = ".".join(tf.__version__.split(".")[:2])
    packed = LIBRARY.parent / f"tensorflow_{minor}" / LIBRARY.name
    return packed if packed.exists() else LIBRARY


def _find_problem(path):
    """Why a library cannot be loaded, or ``None``."""
    if not path.exists():
        others = sorted(folder.name.partition("_")[2] for folder in path.parent.glob("tensorflow_*"))
        if others:
            known = ", ".join(others)
            return f"tfxc's compiled ops exist for TensorFlow {known}, but {tf.__version__} is running."
        return "tfxc's compiled ops were not built."
    try:
        record = json.loads(path.with_suffix(".json").read_text())
        built_for = record["tensorflow"]
    except (OSError, ValueError, KeyError):
        record, built_for = {}, "an unknown version"
    # TensorFlow's C++ interface changes between minor versions: a wrong library may crash.
    if built_for.split(".")[:2] != tf.__version__.split(".")[:2]:
        return f"tfxc's compiled ops were built for TensorFlow {built_for}, but {tf.__version__} is running."
    if record.get("ops") != _REGISTRATIONS:
        return f"tfxc's compiled ops in {path} are of another version of tfxc."
    return None
