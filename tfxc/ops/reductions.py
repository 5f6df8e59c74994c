"""The reductions over all classes that the compiled ops know, in TensorFlow ops."""

import tensorflow as tf

# By name, what each makes of logits [N, L]: a number a row.
REDUCTIONS = {
    "squared_hinge": lambda logits: tf.reduce_sum(tf.square(tf.nn.relu(1.0 + logits)), 1),
    "softplus": lambda logits: tf.reduce_sum(tf.nn.softplus(logits), 1),
    "logsumexp": lambda logits: tf.reduce_logsumexp(logits, 1),
}
