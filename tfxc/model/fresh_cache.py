"""Cached class vectors while other callbacks change the weights."""

from tfxc._keras import keras
from tfxc._keras.optimizers import averages_weights
from tfxc._keras.training import LogFreeCallback, is_compiled, list_of_callbacks


class FreshCache(LogFreeCallback):
    """Has an evaluation or a prediction read class vectors of the weights that are then in place.

    Keras's ``SwapEMAWeights`` puts averages into the weights when one begins, and takes them out again at its
    end; also around the end of an epoch. To stand last among the callbacks, so that the others have changed
    the weights by then.
    """

    def on_test_begin(self, logs=None):
        expire_averaged(self.model)
        if self.model.head.cache_age:
            self.model.head.refresh()

    def on_predict_begin(self, logs=None):
        self.on_test_begin()

    def on_test_end(self, logs=None):
        expire_averaged(self.model)

    def on_predict_end(self, logs=None):
        expire_averaged(self.model)

    def on_epoch_end(self, epoch, logs=None):
        expire_averaged(self.model)


def expire_averaged(model):
    """Says that cached class vectors are out of date where averages may have taken the place of weights."""
    if is_compiled(model) and averages_weights(model.optimizer):
        model.head.expire_cache()


def with_fresh_cache(callbacks, head):
    """Callbacks as Keras takes them, and behind them a ``FreshCache`` for a head that caches class vectors.

    A ``CallbackList`` stays as it is: it is that of ``fit``.
    """
    if head.cache_age is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return [*list_of_callbacks(callbacks), FreshCache()]
