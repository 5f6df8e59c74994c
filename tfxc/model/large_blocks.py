"""Large blocks of memory that a step frees, and the next one needs again."""

import ctypes
import os
import sys

from tfxc._keras import keras

# As in malloc.h, and the most bytes that glibc comes to, which adjusts both to what it is asked for.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST_TRIMMED, _MOST_MAPPED = 64 << 20, 32 << 20


class KeepLargeBlocks(keras.callbacks.Callback):
    """Has the C library keep what a training step frees.

    Under Python 3.11, TensorFlow asks glibc to return free memory to the system at once, as soon as data come
    from a Python generator. Each large tensor of each step is then made of pages that the system has to clear
    first, and a sampled step takes up to twice as long. After the first batch of an epoch this callback sets
    the limits that glibc would have come to by itself. Where there is no glibc, or the environment says how
    malloc is to be tuned, it does nothing.
    """

    async_safe = _supports_tf_logs = True  # it waits for no logs, and need not be waited for

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            keep_large_blocks()


def keep_large_blocks():
    """Lets glibc keep up to 64 MB of free memory, and blocks of up to 32 MB among them.

    Example:
        >>> keep_large_blocks()
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if tuned or "malloc" in os.environ.get("GLIBC_TUNABLES", "") or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MOST_MAPPED)
        mallopt(_TRIM_THRESHOLD, _MOST_TRIMMED)
