"""Quiet, small and repeatable: what every test process starts from."""

import contextlib
import gc
import os
import sys
import zlib
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Two workers share two processors: more threads of theirs would only wait for each other.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402

# Programs, which tests run in a process of their own.
PROGRAMS = "kill_training", "two_devices", "mutants", "wheel", "elsewhere"
collect_ignore = [f"{name}.py" for name in PROGRAMS]
# Examples and what benchmarks share, which tests import.
sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("examples", "benchmarks")]


@pytest.fixture(autouse=True)
def fixed_seed(request):
    """Python, NumPy and Keras start every test from one seed, TensorFlow from one of the test's own.

    ``tf.random.set_seed`` makes TensorFlow forget the kernels it has built for ops that run eagerly, which
    would be built again in every test. They are kept: with seeds of their own, no test goes on in the random
    numbers of another one.
    """
    from tensorflow.python.eager.context import context, pywrap_tfe

    from tfxc._keras import keras

    with patch.object(pywrap_tfe, "TFE_ContextClearCaches", lambda _: None):
        keras.utils.set_random_seed(0)
    context()._seed = zlib.crc32(request.node.nodeid.encode()) >> 1


@pytest.fixture(autouse=True)
def graphs_are_traced(request, monkeypatch):
    """A test that makes a graph of its own is marked so, or nothing would trace it."""
    import tensorflow as tf

    if request.node.get_closest_marker("traced"):
        return
    function, module = tf.function, request.node.path.stem

    def only_for_others(*args, **options):
        if sys._getframe(1).f_globals["__name__"] == module:
            pytest.fail("This test calls tf.function, so it needs pytest.mark.traced.")
        return function(*args, **options)

    monkeypatch.setattr(tf, "function", only_for_others)


@pytest.fixture(autouse=True, scope="module")
def garbage_is_collected_once_a_module():
    """Objects that stay, such as traced functions that a module caches, are not looked through again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def background_work_of_usual_priority():
    """A thread of the idle class, as a search or a backup is, would wait for the other worker's tests."""
    with patch("tfxc.mining.background_search.lower_priority"), patch("tfxc.resume.folder.lower_priority"):
        yield


@pytest.fixture(autouse=True, scope="session")
def arrays_are_read_without_graphs():
    """Keras makes four graphs each time that it reads arrays: all but optimized tests read them by rows."""
    import numpy as np
    import tensorflow as tf

    from tfxc._keras import IS_KERAS_3

    if not IS_KERAS_3:
        yield
        return
    from keras.src.trainers.data_adapters import array_data_adapter

    read = array_data_adapter.ArrayDataAdapter.get_tf_dataset

    def read_rows(adapter):
        arrays, options = tf.nest.flatten(adapter._inputs), tf.data.Options()
        is_plain = all(isinstance(array, np.ndarray) and array.dtype.kind in "fi" for array in arrays)
        if not (is_plain and tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer")):
            return read(adapter)
        arrays = array_data_adapter.array_slicing.convert_to_sliceable(adapter._inputs, "tensorflow")
        rows = tf.data.Dataset.from_tensor_slices(array_data_adapter.tree.lists_to_tuples(arrays))
        options.experimental_optimization.apply_default_optimizations = False  # as Keras
        if adapter._shuffle:
            rows = rows.shuffle(adapter._num_samples, seed=0)  # in the same orders each time, as by Keras
        return rows.batch(adapter._batch_size, not adapter._partial_batch_size).with_options(options)

    with patch.object(array_data_adapter.ArrayDataAdapter, "get_tf_dataset", read_rows):
        yield


@pytest.fixture(scope="session")
def with_long_tests(request):
    """Whether a program that tests share is to do all that they read, or what the quick ones do."""
    return any(item.get_closest_marker("long") for item in request.session.items)


@pytest.fixture
def reloaded(tmp_path):
    """A function of a model, which saves it, to what Keras loads from the file."""
    from tfxc._keras import keras

    def saved_and_loaded(model):
        model.save(tmp_path / "model.keras")
        return keras.models.load_model(tmp_path / "model.keras")

    return saved_and_loaded


@pytest.fixture
def served_by(tmp_path):
    """A function of a model and options, which exports it, to what TensorFlow loads from the folder."""
    import tensorflow as tf

    def exported_and_loaded(model, **options):
        model.export(tmp_path / "served", **options)
        return tf.saved_model.load(str(tmp_path / "served"))

    return exported_and_loaded


@pytest.fixture(params=[pytest.param("compiled", marks=pytest.mark.kernels), "stock"])
def path(request):
    """Runs a test twice: with the compiled ops, and with the TensorFlow ops that take their place."""
    from tfxc.ops import library

    with library.stock_ops() if request.param == "stock" else contextlib.nullcontext():
        yield request.param


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup(item):
    """Marks that say whether a test runs, and whether its functions are traced and their graphs optimized."""
    import tensorflow as tf

    from tfxc.ops import library

    tf.config.run_functions_eagerly(item.get_closest_marker("traced") is None)
    rewrites = item.get_closest_marker("optimized") is not None
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not rewrites})
    if item.get_closest_marker("kernels") and not library.use_compiled():
        pytest.skip("needs the compiled ops")


# What starts processes comes first: last, it would keep one worker busy and the other waiting.
EARLY = "examples", "distribution", "option_pairs", "servers", "threads", "backup_and_restore"


def pytest_ignore_collect(collection_path, config):
    """Where tests of both Keras are asked for, modules without any are not imported, which takes long."""
    if "both_keras" in config.option.markexpr and collection_path.name.startswith("test_"):
        has_one = "_keras" in collection_path.parts or "both_keras" in collection_path.read_text()
        return None if has_one else True
    return None


# AutoGraph rewrites the functions of this test alone; elsewhere it would only take time.
AUTOGRAPH = "test_autograph"


@pytest.hookimpl(tryfirst=True)  # before those that a marker does not choose are left out
def pytest_collection_modifyitems(config, items):
    from processes import quicken
    from tensorflow.python.autograph.core import config as autograph
    from tensorflow.python.data.ops.options import AutotuneOptions

    quicken()

    # The end of an iterator may wait for as long as it has lived: the thread that tunes it can miss the call.
    enabled = AutotuneOptions.enabled
    AutotuneOptions.enabled = property(lambda options: enabled.fget(options) or False, enabled.fset)
    for item in items:
        if "_keras" in item.path.parts:  # where the two Keras differ, with the examples of its docstrings
            item.add_marker("both_keras")
        if {"ops", "fuzz"} & {*item.path.parts} or isinstance(item, pytest.DoctestItem):
            item.add_marker("traced")
        if {"ops", "fuzz", "search"} & {*item.path.parts}:
            item.add_marker("optimized")
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in EARLY)
    modules = {item.module.__name__ for item in items if hasattr(item, "module")} - {AUTOGRAPH}
    autograph.CONVERSION_RULES = *map(autograph.DoNotConvert, modules), *autograph.CONVERSION_RULES
