"""A matrix that a SavedModel computes from its weights when it is loaded, and does not store."""

import uuid

import tensorflow as tf


class MadeOnLoad(tf.Module):
    """A matrix of float32, computed once from weights of fewer bits when a SavedModel is loaded.

    To convert a whole matrix takes as long as its product with a single query. The matrix stays in memory
    beside the weights: in TensorFlow Serving as long as the model is loaded, in Python until the process
    ends. ``make`` maps the weights' values to the matrix, which has the first weight's shape.
    """

    def __init__(self, make, *weights):
        super().__init__()
        self.weights = weights
        self._made = _Made(make, weights)

    def __call__(self):
        """The matrix, for the graph of a SavedModel."""
        made = tf.raw_ops.ReadVariableOp(resource=self._made.resource_handle, dtype=tf.float32)
        return tf.ensure_shape(made, self.weights[0].shape)


class _Made(tf.saved_model.experimental.TrackableResource):
    def __init__(self, make, weights):
        super().__init__()
        self._make, self._weights = make, weights
        # A unique name: every export in the process has a resource of its own.
        self._name = f"made_on_load_{uuid.uuid4()}"

    def _create_resource(self):
        shape = self._weights[0].shape
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=self._name)

    def _initialize(self):
        value = self._make(*(tf.convert_to_tensor(weight) for weight in self._weights))
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=value)
