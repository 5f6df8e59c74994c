"""Cached class vectors while other callbacks change the weights."""

import contextlib

from tfxc._keras import keras
from tfxc._keras.optimizers import averages_weights
from tfxc._keras.training import LogFreeCallback, is_compiled, list_of_callbacks
from tfxc.fit_callback import FitCallback
from tfxc.layers.class_cache import cache_of, expire_class_vectors


class FreshCache(LogFreeCallback, FitCallback):
    """Has an evaluation or a prediction read class vectors of the weights that are then in place.

    Keras's ``SwapEMAWeights`` puts averages into the weights when one begins, and takes them out again at its
    end; also around the end of an epoch. This callback stands last, behind those that change the weights.
    """

    @contextlib.contextmanager
    def during_fit(self, model, arguments):
        yield
        # Averages may have taken the place of the weights. And a step counts itself before it changes them: a
        # cache that a thread made meanwhile, to rank, is older than it says.
        expire_class_vectors(model.head)

    def on_test_begin(self, logs=None):
        expire_averaged(self.model)
        self.model.head.freshen()

    def on_test_end(self, logs=None):
        expire_averaged(self.model)

    def on_epoch_end(self, epoch, logs=None):
        expire_averaged(self.model)

    on_predict_begin, on_predict_end = on_test_begin, on_test_end


def expire_averaged(model):
    """Says that cached class vectors are out of date where averages may have taken the place of weights."""
    if is_compiled(model) and averages_weights(model.optimizer):
        expire_class_vectors(model.head)


def with_fresh_cache(callbacks, head):
    """Callbacks as Keras takes them, and behind them a ``FreshCache`` for a head that caches class vectors.

    A ``CallbackList`` stays as it is: it is that of ``fit``.
    """
    if cache_of(head) is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return [*list_of_callbacks(callbacks), FreshCache()]
