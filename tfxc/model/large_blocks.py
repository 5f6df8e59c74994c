"""Large blocks of memory that a step frees, and the next one needs again."""

from tfxc._keras.training import LogFreeCallback
from tfxc.malloc import keep_large_blocks


class KeepLargeBlocks(LogFreeCallback):
    """Has the C library keep what a training step frees.

    Under Python 3.11, TensorFlow asks glibc to return free memory to the system at once, as soon as data come
    from a Python generator. Each large tensor of each step is then made of pages that the system has to clear
    first, and a sampled step takes up to twice as long. After the first batch of an epoch this callback sets
    the limits that glibc would have come to by itself.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self._is_due = True  # the number of the first report is that of its last step, of several at once

    def on_train_batch_end(self, batch, logs=None):
        if self._is_due:
            self._is_due = False
            keep_large_blocks()
