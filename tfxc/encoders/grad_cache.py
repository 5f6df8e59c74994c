"""An encoder that trains on large batches in the memory of small ones."""

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import mask_of, no_autocast, require_layer, with_mask
from tfxc._keras.training import random_states
from tfxc._keras.weights import tf_variable
from tfxc.arguments import positive_int
from tfxc.ops.in_chunks import in_chunks


@register
class GradCache(keras.layers.Layer):
    """An encoder that trains on a large batch in the memory of a chunk of it, with the same gradients.

    A step with ``InBatch`` has as many candidates as the batch has labels, and what the encoder computes for
    the batch has to stay until the gradient. This one computes chunk by chunk and keeps the outputs alone;
    the gradient computes each chunk once more. Wrap both encoders, with
    ``EncodedHead(GradCache(items, 512), features)``, or the one that needs it.

    Around an item encoder it cuts the loss, too: shared candidates are scored for a chunk of the queries at a
    time, so there are no logits, batch x batch. They stay with losses that look at candidates one by one
    (``SoftmaxAtK``, ``GBCE``, ``label_smoothing`` of the softmax, ``decoupled`` of its "ranking"), with
    ``LearnedMIDX`` and, for the log expected counts, in a ``Mixture`` with ``InBatch``. The gradient of an
    ``Embedding`` has one row for each distinct id of the batch.

    Under Keras 3 an ``Embedding`` reads its whole table at each call, so here twice a chunk: where it has
    millions of rows, take an ``EmbeddingBag`` or large chunks. Where the item encoder is wrapped and shares
    layers with the encoder, save weights or a checkpoint: a ``.keras`` file could not tell what is shared.

    Dropout draws the same masks both times. Without ``training=True`` (``evaluate``, ``predict``, an export)
    the encoder runs as it is. A training step belongs in a ``tf.function``, as ``fit`` makes one: eagerly,
    each call traces the encoder anew.

    Args:
        encoder: a Keras model or layer, one or several dense tensors [B, ...] -> a tensor [B, ...].
        chunk_size: examples at a time, at least 1; the last chunk of a batch may have fewer.

    Call arguments:
        inputs: the encoder's.

    Returns:
        The encoder's output.

    Raises:
        ValueError: in a training step, for a RaggedTensor or SparseTensor, for an encoder with
            BatchNormalization or anything else that changes weights by what it sees of a batch, or that adds
            a loss of it, or that draws random numbers by ops without a state, such as ``tf.random.uniform``.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> cached = GradCache(encoder, chunk_size=512)
        >>> cached(tf.ones([2000, 8]), training=True).shape
        TensorShape([2000, 16])

    Reference:
        Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
    """

    def __init__(self, encoder: keras.Model, chunk_size: int, **kwargs) -> None:
        # In a mixed layer Keras reads weights in the compute dtype, but gradients are of the variables.
        super().__init__(**{**kwargs, "dtype": "float32"})
        require_layer(encoder, "encoder")
        self.encoder = encoder
        self.chunk_size = positive_int(chunk_size, "chunk_size")
        no_autocast(self)

    @property
    def inputs(self):
        """The encoder's symbolic inputs; None if it does not tell them."""
        return getattr(self.encoder, "inputs", None)

    @property
    def input(self):
        """The encoder's symbolic inputs in their structure."""
        return self.encoder.input

    @property
    def output_shape(self):
        """The encoder's."""
        return self.encoder.output_shape

    def get_config(self):
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder, "chunk_size": self.chunk_size}

    @classmethod
    def from_config(cls, config):
        encoder = config["encoder"]
        if isinstance(encoder, dict):
            encoder = keras.saving.deserialize_keras_object(encoder)
        return cls(**{**config, "encoder": encoder})

    def build(self, input_shape=None):
        """Nothing to build: the encoder builds itself."""
        self.built = True

    def call(self, inputs, training=None):
        if not training:
            return self.encoder(inputs, training=training)
        parts = tf.nest.flatten(inputs)
        for part in parts:
            if part is not None and not isinstance(part, tf.Tensor):
                raise ValueError(
                    f"GradCache cuts dense tensors [B, ...] into chunks, but got a {type(part).__name__}: "
                    "pass ragged.to_tensor(), or ids padded with 0 in place of a SparseTensor."
                )
        if not self.encoder.built:
            first = [None if part is None else part[:1] for part in parts]
            self.encoder(tf.nest.pack_sequence_as(inputs, first), training=False)
        random_states(self.encoder)
        given = {place: part for place, part in enumerate([*parts, *map(mask_of, parts)]) if part is not None}

        def encode(*rows):
            rows = dict(zip(given, rows, strict=True))
            rows = [with_mask(rows.get(place), rows.get(place + len(parts))) for place in range(len(parts))]
            output = self.encoder(tf.nest.pack_sequence_as(inputs, rows), training=training)
            if not tf.is_tensor(output):
                raise ValueError(f"The encoder must give one tensor, but gave {output!r}.")
            mask = mask_of(output)
            return [output] if mask is None else [output, mask]

        variables = list(map(tf_variable, self.encoder.trainable_weights))
        output, *mask = in_chunks(encode, given.values(), variables, self.chunk_size)
        graph = tf.compat.v1.get_default_graph()
        lost = [loss.name for loss in self.encoder.losses if getattr(loss, "graph", graph) is not graph]
        if lost:
            raise ValueError(
                f"A layer adds the loss {lost[0]}, by add_loss or an activity_regularizer, but it sees one "
                "chunk of the batch at a time, and twice: leave it out, or regularize weights."
            )
        return with_mask(output, *mask)
