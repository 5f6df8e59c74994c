"""Bags of features, with weights or without, as one vector each."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import config_of, no_autocast
from tfxc._keras.weights import add_weight, tf_variable
from tfxc.arguments import one_of, positive_int
from tfxc.block_initializer import in_blocks
from tfxc.ids import PADDING, check_ids


@register
class EmbeddingBag(keras.layers.Layer):
    """The weighted sum of the vectors of a point's features: the first layer for bags of words.

    ``out[b] = Σ_f values[b, f] · table[ids[b, f]]``. "mean" divides it by ``Σ_f |values|``, "sqrtn" by
    ``(Σ_f values²)^½``. The gradient of the table is sparse. A point without features gives zeros.

    Args:
        num_features: F.
        dim: D, the width of a vector.
        combiner: "sum", "mean" or "sqrtn".
        embeddings_initializer: initializer of the table.

    Call arguments:
        inputs: a point lists a feature at most once (repeats add up, but "mean" and "sqrtn" count each).
            ``{"ids": int [B, F'], "values": float [B, F']}``, ids padded with -1;
            or plain ids, int [B, N], padded with 0, each of weight 1, as of ``TextVectorization``, whose
            ``vocabulary_size()`` is F (row 0 of the table is never read);
            or a ``tf.SparseTensor`` [B, F] of weights, as of ``TextVectorization`` with ``sparse=True`` and
            ``output_mode="count"`` or ``"multi_hot"`` (Keras's sparse "tf_idf" fails). Dense weights [B, F]
            are refused, and integers of that shape, which could be taken for ids.

    Returns:
        float32 [B, D].

    Raises:
        ValueError: for other arguments or inputs.
        tf.errors.InvalidArgumentError: for an id outside [-1, F).

    Example:
        >>> bag = EmbeddingBag(100, 4)
        >>> ids, values = tf.constant([[7, 3], [99, -1]]), tf.constant([[0.5, 1.0], [2.0, 0.0]])
        >>> bag({"ids": ids, "values": values}).shape
        TensorShape([2, 4])
        >>> bag(tf.constant([[7, 3, 7], [99, 0, 0]])).shape
        TensorShape([2, 4])
        >>> bag(tf.sparse.from_dense(tf.eye(2, 100))).shape
        TensorShape([2, 4])

    Reference:
        Joulin et al., "Bag of Tricks for Efficient Text Classification", 2017.
    """

    def __init__(
        self,
        num_features: int,
        dim: int,
        combiner: Literal["sum", "mean", "sqrtn"] = "sum",
        embeddings_initializer="uniform",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.num_features = positive_int(num_features, "num_features")
        self.dim = positive_int(dim, "dim")
        self.combiner = one_of(combiner, "combiner", ("sum", "mean", "sqrtn"))
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_jit = False
        no_autocast(self)  # weights are added up in float32

    def get_config(self):
        names = "num_features", "dim", "combiner", "embeddings_initializer"
        return {**super().get_config(), **config_of(self, *names)}

    def build(self, input_shape=None):
        shape = (self.num_features, self.dim)
        self.embeddings = add_weight(self, "embeddings", shape, in_blocks(self.embeddings_initializer))
        super().build(input_shape)

    def call(self, inputs):
        ids, values = self._ids_and_values(inputs)
        values = tf.where(ids >= 0, tf.cast(values, tf.float32), 0.0)
        # Padding reads a row that the batch reads anyway; a batch of padding alone reads nothing. With
        # momentum, even a gradient of zero would move a row.
        some_id = tf.reduce_max(ids)
        num_read = tf.where(some_id >= 0, tf.shape(ids)[1], 0)
        ids, values = ids[:, :num_read], values[:, :num_read]
        # tf.gather cannot read a table that a strategy has cut by its rows.
        rows = tf.nn.embedding_lookup(tf_variable(self.embeddings), tf.where(ids >= 0, ids, some_id))
        total = tf.linalg.matvec(rows, values, transpose_a=True)
        if self.combiner == "sum":
            return total
        mean = self.combiner == "mean"
        size = tf.reduce_sum(tf.abs(values) if mean else tf.square(values), 1, keepdims=True)
        return tf.math.divide_no_nan(total, size if mean else tf.sqrt(size))

    def _ids_and_values(self, inputs):
        """Ids [B, F'] padded with -1, and values."""
        if any(isinstance(part, tf.RaggedTensor) for part in tf.nest.flatten(inputs)):
            raise ValueError(
                'EmbeddingBag takes no RaggedTensor: pad plain ids with 0, ids.to_tensor(). In {"ids": ids, '
                '"values": values} pad the ids with -1: ids.to_tensor(-1), values.to_tensor().'
            )
        if isinstance(inputs, tf.SparseTensor):
            ids, values = self._of_sparse(inputs)
        elif isinstance(inputs, dict):
            ids, values = self._of_dict(inputs)
        else:
            ids, values = self._of_plain_ids(inputs)
        return check_ids(ids, self.num_features, "feature"), values

    def _of_dict(self, inputs):
        shapes = {name: getattr(part, "shape", None) for name, part in inputs.items()}
        ids, values = (tf.TensorShape(shapes.get(name, ())) for name in ("ids", "values"))
        if ids.rank != 2 or not ids.is_compatible_with(values):
            raise ValueError(f"EmbeddingBag takes ids and values of one shape [B, F'], but got {shapes}.")
        return inputs["ids"], inputs["values"]

    def _of_plain_ids(self, inputs):
        ids = tf.convert_to_tensor(inputs)
        # Without a keras.Input for them, Keras turns ids into floats, and sparse weights into dense ones.
        if len(ids.shape) != 2 or not ids.dtype.is_integer or ids.shape[1] == self.num_features:
            raise ValueError(
                f"EmbeddingBag takes plain ids as integers [B, N], but got {ids.dtype.name} {ids.shape}. "
                'Start a model of ids with keras.Input((None,), dtype="int64"), a model of weights of all '
                f"{self.num_features} features with keras.Input(({self.num_features},), sparse=True)."
            )
        ids = tf.cast(ids, tf.int64)  # unsigned integers have no -1
        return tf.where(ids == 0, tf.cast(PADDING, tf.int64), ids), tf.ones_like(ids, tf.float32)

    def _of_sparse(self, inputs):
        if inputs.shape.rank != 2 or not inputs.shape[1:].is_compatible_with([self.num_features]):
            raise ValueError(f"A SparseTensor must be [B, {self.num_features}], but is {inputs.shape}.")
        inputs = tf.sparse.reorder(inputs)
        rows, ids = tf.unstack(inputs.indices, axis=1)
        num_rows = inputs.dense_shape[0]

        def padded(flat, padding):
            return tf.RaggedTensor.from_value_rowids(flat, rows, num_rows).to_tensor(padding)

        return padded(ids, PADDING), padded(inputs.values, 0)

    def compute_output_shape(self, input_shape):
        shape = input_shape["ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape[:1], self.dim)
