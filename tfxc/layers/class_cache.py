"""Class vectors that an encoder has computed: kept until weights or features change."""

import contextlib
import contextvars

import numpy as np
import tensorflow as tf

from tfxc._keras.layers import layers_of
from tfxc._keras.weights import tf_variable
from tfxc.require import require

_BLOCK_ROWS = 4096  # classes that are encoded at once
_READS_OLD = contextvars.ContextVar("reads_old", default=False)


class ClassCache:
    """The class vectors of an ``EncodedHead``, ``encode(ids [n])`` [n, D], as computed last, and their age.

    ``age`` counts the training steps since. It is at least 1 before the vectors are first computed, and where
    they may be of other weights or features: after ``expire``, and while ``is_known`` is not set, as after a
    ``tf.train.Checkpoint`` was restored into a new head. Without ``ClassFeatures`` they count as they stand.
    """

    def __init__(self, features, encode):
        self._features, self._encode = features, encode
        self._vectors = self._steps = None
        self.is_known = False  # whether the vectors are certainly of the weights and features
        self._num_expired = 0

    def hold(self, vectors, steps):
        """Takes the weights, once they are made: the vectors [L, D], and an int64 that counts the steps."""
        self._vectors, self._steps = vectors, steps

    @property
    def age(self):
        """Training steps since the vectors were computed, see above."""
        is_known = self.is_known or self._features.variables is None
        return 1 if self._steps is None else max(self._num_steps(), 0 if is_known else 1)

    def _num_steps(self):
        return int(tf_variable(self._steps).numpy())

    def count_step(self):
        """Counts a training step; in a graph, each time it runs."""
        if self._steps is not None:
            tf_variable(self._steps).assign_add(1)

    def expire(self):
        """Says that the vectors are out of date, though there was no training step."""
        self.is_known = False
        self._num_expired += 1
        if self._steps is not None and self._features.variables is not None and not self._num_steps():
            tf_variable(self._steps).assign(1)  # graphs ask the variable alone

    def freshen(self, force=False):
        """As ``Head.freshen``: encodes all classes, in blocks."""
        if not tf.executing_eagerly():
            return require(
                tf.equal(tf_variable(self._steps), 0),
                "The class vectors of this EncodedHead are out of date, and a graph (a tf.function, a Keras "
                "model around this one) cannot compute them: call model.head.freshen() first.",
            )
        if not force and (_READS_OLD.get() or not self.age):
            return []
        before, num_expired = self._num_steps(), self._num_expired
        self.encode_rows(np.arange(self._features.num_classes))
        # A thread may train or set features meanwhile: what came after the first block still counts.
        self.is_known = num_expired == self._num_expired
        age = max(self._num_steps() - before, 0 if self.is_known else 1)
        tf_variable(self._steps).assign(age)
        return []

    def encode_rows(self, class_ids):
        """Encodes classes, in blocks. The function is traced anew: layers may have adapted to other data."""
        if not len(class_ids):
            return
        signature = [tf.TensorSpec([None], tf.int32)]
        encode = tf.function(self._encode, signature, autograph=False).get_concrete_function()
        for start in range(0, len(class_ids), _BLOCK_ROWS):
            ids = tf.constant(class_ids[start : start + _BLOCK_ROWS], tf.int32)
            tf_variable(self._vectors).scatter_update(tf.IndexedSlices(encode(ids), ids))


@contextlib.contextmanager
def old_class_vectors():
    """A context that reads cached class vectors as they are: to freshen them in each step costs too much."""
    token = _READS_OLD.set(True)
    try:
        yield
    finally:
        _READS_OLD.reset(token)


def cache_of(head):
    """The ``ClassCache`` of a head; None for a head that caches no class vectors."""
    return getattr(head, "class_cache", None)


def expire_class_vectors(layer):
    """Says that what heads in a layer or model have cached is out of date, though there was no step."""
    for part in layers_of(layer):
        if cache_of(part) is not None:
            part.class_cache.expire()
