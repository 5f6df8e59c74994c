"""A sparse head whose weights lie anywhere, as the stock sparse product of TensorFlow takes them."""

import numpy as np
import tensorflow as tf

import tfxc
from tfxc._keras.weights import add_weight, constant, tf_variable
from tfxc.optimizers.slots import reset_slots


class UnstructuredHead(tfxc.layers.Head):
    """K weights a class in the mean, between any classes and inputs: one class may read many, another none.

    Beside ``UniformSparseHead`` in a comparison: a connection takes 16 bytes more than a weight, and a step
    holds an array of the weights times the queries.
    """

    indexable = False

    def __init__(self, num_classes, fan_in, bias_initializer="zeros", seed=0, **kwargs):
        super().__init__(num_classes, **kwargs)
        self.fan_in, self.bias_initializer, self.random = (
            fan_in,
            bias_initializer,
            np.random.default_rng(seed),
        )

    def build(self, input_shape):
        self.num_inputs = input_shape[-1]
        size = self.num_classes * self.fan_in
        pairs = self.random.choice(self.num_classes * self.num_inputs, size, replace=False)
        weights = self.random.uniform(-0.5, 0.5, [1, size]) * (12 * 0.001 / self.fan_in) ** 0.5
        self.kernel = add_weight(self, "kernel", (1, size), constant(weights.astype(np.float32)))
        self.pairs = add_weight(self, "pairs", (size,), constant(pairs), dtype="int64", trainable=False)
        self.bias = add_weight(self, "bias", (self.num_classes,), self.bias_initializer)
        super().build(input_shape)

    def blocks(self, query):
        pairs = tf_variable(self.pairs).read_value()
        places = tf.stack([pairs // self.num_inputs, pairs % self.num_inputs], 1)
        weights = tf.SparseTensor(places, tf_variable(self.kernel)[0], [self.num_classes, self.num_inputs])
        logits = tf.transpose(tf.sparse.sparse_dense_matmul(weights, query, adjoint_b=True))
        return lambda start, stop: (logits + tf_variable(self.bias))[:, start:stop]

    def score(self, query, class_ids):
        return tf.gather(self._all_logits(query), tf.maximum(class_ids, 0), batch_dims=1)

    def reduce(self, query, labels, loss):
        logits = self._all_logits(query)
        state = loss.over_classes.update(loss.over_classes.init(tf.shape(query)[0]), logits)
        return loss.over_classes.finish(state), tf.gather(logits, tf.maximum(labels, 0), batch_dims=1)

    def rewire(self, fraction, optimizer=None):
        """Moves the weakest of all weights to pairs without one; the new ones are 0."""
        pairs, weights = tf_variable(self.pairs).numpy(), tf_variable(self.kernel).numpy()
        dropped = np.argsort(np.abs(weights[0]))[: round(fraction * pairs.size)]
        magnitude = float(np.abs(weights[0, dropped]).mean())
        drawn = self.random.choice(self.num_classes * self.num_inputs, 2 * pairs.size, replace=False)
        pairs[dropped] = drawn[~np.isin(drawn, pairs)][: len(dropped)]
        weights[0, dropped] = 0.0
        tf_variable(self.pairs).assign(pairs)
        tf_variable(self.kernel).assign(weights)
        reset_slots(optimizer, self.kernel, dropped[np.newaxis])
        return {"moved": len(dropped), "dropped_magnitude": magnitude}
