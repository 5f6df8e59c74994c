"""Quiet, small and repeatable: what every test process starts from."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
for threads in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(threads, "2")

import pytest  # noqa: E402

# Graphs are millions of objects that live on: to look through them for garbage takes a tenth of the time.
gc.set_threshold(50_000, 20, 50)

# Programs, which tests run in a process of their own.
collect_ignore = ["kill_training.py", "damage_files.py", "two_devices.py", "mutants.py", "wheel.py"]


@pytest.fixture(autouse=True)
def fixed_seed():
    """Python, NumPy and TensorFlow start every test from one seed."""
    from tfxc._keras import keras

    keras.utils.set_random_seed(0)
    yield
    # The end of an iterator of tf.data may wait as long as it has lived, since the thread that tunes it can
    # miss the call: those of this test go while they are young.
    gc.collect(1)


# What starts processes comes first: last, it would keep one worker busy and the other waiting.
EARLY = "test_examples.py", "test_distribution.py", "test_servers.py", "test_backup_and_restore.py"


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in EARLY)
