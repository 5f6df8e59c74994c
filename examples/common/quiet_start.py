"""TensorFlow without the lines on its start, which hide what a program has to say."""

import contextlib
import os
import re
import sys
import tempfile

# They come before TensorFlow reads TF_CPP_MIN_LOG_LEVEL: about oneDNN, instruction sets and GPU drivers.
_START_UP = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|To enable the following instructions"
    r"|.*(oneDNN custom operations|cuda drivers|cuInit|cpu_feature_guard|cuda_diagnostics)"
)


def start_quietly():
    """Imports TensorFlow and has it look for devices; of what it writes to stderr only the rest is shown."""
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
    """Sends what C++ writes there, too."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
