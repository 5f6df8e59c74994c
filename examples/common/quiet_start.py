"""Imports TensorFlow without its start-up messages, which hide the output of a program."""

import contextlib
import os
import re
import sys
import tempfile

# Messages about oneDNN, instruction sets and GPU drivers, which come before TensorFlow reads
# TF_CPP_MIN_LOG_LEVEL.
_START_UP = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|To enable the following instructions"
    r"|.*(oneDNN custom operations|cuda drivers|cuInit|cpu_feature_guard|cuda_diagnostics)"
)


def start_quietly():
    """Imports TensorFlow and lets it look for devices; shows only its other messages on stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryFile("w+") as file:
        try:
            with _stderr_to(file):
                import tensorflow as tf

                tf.config.list_logical_devices()
        finally:
            file.seek(0)
            sys.stderr.writelines(line for line in file if not _START_UP.match(line))


@contextlib.contextmanager
def _stderr_to(file):
    """Redirects stderr, also for C++ code."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
