"""What an encoder gives: queries, [B, D] or, of sequences, [B, T, D]."""

import tensorflow as tf

from tfxc._keras.layers import mask_of

_WANTED = "The encoder must give floats [B, D] or, of sequences, [B, T, D]"


def check_queries(query):
    """The output of an encoder, if it is one of queries.

    Raises:
        ValueError: for several outputs, another number of dimensions, or other numbers.

    Example:
        >>> check_queries(tf.zeros([4, 8])).shape
        TensorShape([4, 8])
        >>> check_queries(tf.zeros([4]))
        Traceback (most recent call last):
        ...
        ValueError: The encoder must give floats [B, D] or, of sequences, [B, T, D], but gave float32 (4,).
    """
    if not tf.is_tensor(query) or not hasattr(query, "shape"):
        raise ValueError(f"{_WANTED}, but gave a {type(query).__name__}.")
    if not query.dtype.is_floating or query.shape.rank not in (2, 3):
        raise ValueError(f"{_WANTED}, but gave {query.dtype.name} {query.shape}.")
    return query


def query_width(encoder):
    """D of an encoder's queries, or None while it is not known.

    Raises:
        ValueError: for an encoder whose outputs cannot be queries.

    Example:
        >>> query_width(keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]))
        3
    """
    try:
        shape = encoder.output_shape
    except (AttributeError, RuntimeError):
        return None
    if isinstance(shape, dict | list) or (shape and isinstance(shape[0], tuple | list)):
        kind = "dict" if isinstance(shape, dict) else "list"
        raise ValueError(
            f"{_WANTED}, but gives a {kind} of {len(shape)}: make keras.Model(encoder.inputs, query) of the "
            "one that is the query; several tasks are several tfxc.head_loss in a model of your own."
        )
    if len(shape) not in (2, 3):
        raise ValueError(f"{_WANTED}, but gives {tuple(shape)}.")
    return shape[-1]


def last_position(query):
    """Queries [B, D]: of sequence queries [B, T, D] the last position that is not masked.

    Example:
        >>> last_position(tf.reshape(tf.range(6.0), [1, 3, 2])).numpy().tolist()
        [[4.0, 5.0]]
    """
    if query.shape.rank != 3:
        return query
    mask = mask_of(query)
    if mask is None:
        return query[:, -1]
    steps = tf.range(tf.shape(mask)[1])
    last = tf.reduce_max(tf.where(tf.cast(mask, tf.bool), steps, 0), axis=1)
    return tf.gather(query, last, batch_dims=1)
