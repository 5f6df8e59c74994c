"""What a model has computed earlier is brought up to date: traced functions, cached class vectors."""

import contextlib
from typing import Any

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.optimizers import averages_weights
from tfxc._keras.training import LogFreeCallback, is_compiled, list_of_callbacks
from tfxc.fit_callback import FitCallback
from tfxc.layers.class_cache import cache_of, expire_class_vectors
from tfxc.layers.mach_head import num_probes_of
from tfxc.model.checks import refuse_consumed


class FreshMixin:
    """Traced functions and cached class vectors of a model, brought up to date before they are used."""

    _ranking: Any = None  # the traced function of ``rank``
    _traced_with: Any = None  # numbers that are constants of the traced functions

    def _forget_computed(self):
        """For ``compile``: layers may have adapted to other data since functions were traced."""
        self._ranking = None
        expire_class_vectors(self.head)

    def _freshen(self, x=None):
        """Brings traced functions and cached class vectors up to date; in a graph, what to wait for."""
        refuse_consumed(self)
        if not tf.executing_eagerly():
            return self.head.freshen()
        numbers_of_graphs = self.k, num_probes_of(self.head)
        if numbers_of_graphs != self._traced_with:
            self._traced_with = numbers_of_graphs
            self._ranking = self.predict_function = self.test_function = None
        if not self.built and x is not None and cache_of(self.head) is not None:
            self._build_on(x)
            if not self.built:
                raise ValueError(
                    f"{type(self.head).__name__} computes class vectors of a built model, and a generator is "
                    "not read to build it: call the model on one batch first, or give the encoder an Input."
                )
        return self.head.freshen()


class FreshCache(LogFreeCallback, FitCallback):
    """Has an evaluation or a prediction read class vectors of the weights that are then in place.

    Keras's ``SwapEMAWeights`` puts averages into the weights when one begins, and takes them out again at its
    end; also around the end of an epoch. This callback stands last, behind those that change the weights.
    """

    @contextlib.contextmanager
    def during_fit(self, model, arguments):
        yield
        # Averages may have taken the place of the weights. And a step counts itself before it changes them:
        # a cache that a thread made meanwhile, to rank, is older than it says.
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
    """Callbacks and, for a head with a cache, a ``FreshCache``; the ``CallbackList`` of ``fit`` has it."""
    if cache_of(head) is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return [*list_of_callbacks(callbacks), FreshCache()]
