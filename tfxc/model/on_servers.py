"""What works where variables lie on parameter servers; anything else is refused before it is built."""

import tensorflow as tf

from tfxc._keras.weights import variables_of
from tfxc.data.batching import EpochOrder
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.ops.remote import on_server, with_servers
from tfxc.samplers import MIDX, InBatch, LogUniform, Mixture, Uniform, Unigram

_HEADS = (DenseHead, UniformSparseHead)
_SAMPLERS = (Uniform, LogUniform, Unigram, InBatch, MIDX, Mixture)


def check_parts(head, sampler):
    """In the scope of a strategy with parameter servers: refuses what does not work there.

    Args:
        head: the model's.
        sampler: the model's, or None.

    Raises:
        ValueError: naming what does not work, and what to take instead.

    Example:
        >>> check_parts(tfxc.layers.MACHHead(10, num_buckets=4, num_repetitions=2), None)  # on this machine
    """
    if not with_servers():
        return
    if not isinstance(head, _HEADS):
        raise ValueError(
            f"{type(head).__name__} does not train with parameter servers: its classes cannot be cut into "
            "shards. Take DenseHead or UniformSparseHead, or train on one machine."
        )
    if isinstance(head, UniformSparseHead) and head.group_size > 1:
        raise ValueError(
            f"Groups of {head.group_size} classes cannot be cut into shards, which begin at any class: take "
            "group_size=1 with parameter servers."
        )
    _check_sampler(sampler)


def check_data(data):
    """Refuses a dataset whose order Python tells: a worker runs none of this process's Python.

    Args:
        data: what ``fit`` got; anything but a ``tf.data.Dataset`` is left to Keras.

    Raises:
        ValueError: for a shuffled pipeline of ``tfxc.data``.

    Example:
        >>> check_data(tf.data.Dataset.range(3))
    """
    steps = [data] if isinstance(data, tf.data.Dataset) else []
    while steps:
        step = steps.pop()
        if isinstance(getattr(step, "epoch_order", None), EpochOrder):
            raise ValueError(
                "A shuffled pipeline of tfxc.data asks Python for its order, which the workers of a cluster "
                "do not run. Make it with seed=None and shuffle it by TensorFlow: "
                "dataset.unbatch().shuffle(100_000).repeat().batch(128)."
            )
        steps.extend(step._inputs())


def is_on_servers(model):
    """Whether weights of a model lie on parameter servers."""
    return any(on_server(variable) for variable in variables_of(model))


def _check_sampler(sampler):
    if sampler is None:
        return
    if type(sampler) not in _SAMPLERS:
        names = ", ".join(known.__name__ for known in _SAMPLERS)
        raise ValueError(
            f"{type(sampler).__name__} does not train with parameter servers: it would read class vectors or "
            f"an index of them in every step. Take one of {names}."
        )
    if isinstance(sampler, Mixture):
        for part in sampler.samplers:
            _check_sampler(part)
