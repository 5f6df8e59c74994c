"""What a SavedModel makes of its weights when it is loaded, and so need not hold."""

import uuid

import tensorflow as tf

from tfxc.search.tiles import read


class MadeOnLoad(tf.Module):
    """The numbers of a weight in float32, computed once from their few bits when a SavedModel is loaded.

    A product of float32 with fewer bits first turns these into float32. For a few rows that is nothing beside
    reading them; for a whole matrix it takes as long as the product with a single query. What was made stays
    in memory beside the weight: with a server's model as long as that is loaded, in Python until the process
    ends.

    Args:
        weight: variable, of float32, of bfloat16 kept as uint16, or of int8.

    Example:
        >>> module = tf.Module()
        >>> module.made = MadeOnLoad(tf.Variable([[1, -2]], dtype=tf.int8))
        >>> module.serve = tf.function(lambda: module.made(), input_signature=[])
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> tf.saved_model.save(module, path)
        >>> tf.saved_model.load(path).serve().numpy().tolist()
        [[1.0, -2.0]]
    """

    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self._made = _Made(weight)

    def __call__(self):
        """The numbers, float32; in the graph of a SavedModel."""
        made = tf.raw_ops.ReadVariableOp(resource=self._made.resource_handle, dtype=tf.float32)
        return tf.ensure_shape(made, self.weight.shape)


class _Made(tf.saved_model.experimental.TrackableResource):
    def __init__(self, weight):
        super().__init__()
        self._weight = weight
        # Another export in the same process has a resource of its own.
        self._name = f"made_on_load_{uuid.uuid4()}"

    def _create_resource(self):
        shape = self._weight.shape
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=self._name)

    def _initialize(self):
        value = tf.cast(read(self._weight), tf.float32)
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=value)
