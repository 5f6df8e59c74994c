"""Where a call of ``fit`` is, for an error that stops it."""

from tfxc._keras.training import LogFreeCallback, steps_per_execution


class FitPosition(LogFreeCallback):
    """Follows a training; ``str`` of it is the batch and the epoch, from 1 as in the progress bar.

    Example:
        >>> place = FitPosition()
        >>> place.set_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
        >>> place.model.compile("sgd")
        >>> place.on_epoch_begin(1)
        >>> place.on_train_batch_begin(16)
        >>> str(place)
        'batch 17 of epoch 2'
    """

    def __init__(self):
        super().__init__()
        self._epoch, self._step = 1, "the beginning"

    def __str__(self):
        step = self._step
        if not isinstance(step, str):
            first, last = step + 1, step + steps_per_execution(self.model)
            step = f"batch {first}" if first == last else f"one of the batches {first} to {last}"
        return f"{step} of epoch {self._epoch}"

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._step = epoch + 1, "the beginning"

    def on_train_batch_begin(self, batch, logs=None):
        self._step = int(batch)

    def on_test_begin(self, logs=None):
        self._step = "the validation"
