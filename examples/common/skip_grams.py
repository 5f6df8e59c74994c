"""The words around each word of a text, as batches."""

import numpy as np
import tensorflow as tf

import tfxc


def neighbours(text, window):
    """The words around each word of a ``tfxc.data.Sequences``, int32 [M, 2 window]; -1 outside its book."""
    book = np.repeat(np.arange(len(text)), np.diff(text.offsets))
    places = np.arange(len(text.items))[:, np.newaxis] + [*range(-window, 0), *range(1, window + 1)]
    inside = np.clip(places, 0, len(text.items) - 1)
    is_near = (places == inside) & (book[inside] == book[:, np.newaxis])
    return np.where(is_near, text.items[inside], -1)


def batches(text, window, batch_size, seed=None):
    """Batches ``(words [B, 1], the words around them [B, 2 window])``."""
    words, labels = tf.constant(text.items), tf.constant(neighbours(text, window))

    def batch(rows):
        return tf.gather(words, rows)[:, tf.newaxis], tf.gather(labels, rows)

    return tfxc.data.row_batches(len(text.items), batch_size, batch, seed)
