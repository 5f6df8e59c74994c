"""Repetitions of a MACH head that were trained apart, put together."""

from collections.abc import Iterable

import numpy as np

from tfxc._keras.weights import tf_variable
from tfxc.hashing.universal import universal_coefficients
from tfxc.layers.mach_head import MACHHead

_MAY_DIFFER = ("name", "trainable", "first_repetition", "kernel_initializer", "bias_initializer")


def merge_mach_heads(heads: Iterable[MACHHead]) -> MACHHead:
    """One head with the repetitions of several, each of which reads its own part of the query.

    Each of several processes or machines may train some repetitions, with an encoder of its own. The query of
    the merged head is the queries of all encoders, side by side in the order of the repetitions.

    Args:
        heads: built ``MACHHead`` of equal size and seed, whose repetitions follow on one another.

    Returns:
        A built ``MACHHead`` whose ``num_groups`` is the number of heads, ordered by ``first_repetition``.
        It is frozen if all heads are.

    Raises:
        ValueError: if sizes, arguments (other than initializers) or hash functions differ, a repetition comes
            twice, or one between the first and the last is missing. Whether heads are missing before the
            first or after the last, only the caller knows.

    Example:
        >>> heads = [MACHHead(50, 8, 2, seed=3, first_repetition=first) for first in (2, 0)]
        >>> for head in heads:
        ...     head.build((None, 4))
        >>> merged = merge_mach_heads(heads)
        >>> merged(tf.ones([1, 8])).shape, merged.num_repetitions
        (TensorShape([1, 50]), 4)
    """
    heads = sorted(heads, key=lambda head: head.first_repetition)
    _check(heads)
    first, count = heads[0], len(heads)
    config = {"num_repetitions": count * first.num_repetitions, "num_groups": count * first.num_groups}
    config["trainable"] = any(head.trainable for head in heads)
    merged = MACHHead.from_config({**first.get_config(), **config})
    merged.build((None, count * first.query_dim))
    kernels = [kernel for head in heads for kernel in head.kernels]
    for target, kernel in zip(merged.kernels, kernels, strict=True):
        tf_variable(target).assign(tf_variable(kernel))
    tf_variable(merged.bias).assign(np.concatenate([tf_variable(head.bias).numpy() for head in heads]))
    hashes = np.concatenate([tf_variable(head.hashes).numpy() for head in heads])
    tf_variable(merged.hashes).assign(hashes)
    return merged


def _check(heads):
    if not heads:
        raise ValueError("There is no head to merge: pass the heads of all repetitions.")
    unbuilt = [head.first_repetition for head in heads if not head.built]
    if unbuilt:
        raise ValueError(f"The heads of repetitions {unbuilt} are not built: build them, load their weights.")
    first, due = heads[0], heads[0].first_repetition
    for head in heads:
        for name, value in _arguments(first).items():
            own = _arguments(head)[name]
            if own != value:
                raise ValueError(
                    f"Heads to merge must be alike, but {name} is {value!r} for repetition "
                    f"{first.first_repetition} and {own!r} for repetition {head.first_repetition}."
                )
        if head.first_repetition != due:
            what = "missing" if head.first_repetition > due else "there twice"
            raise ValueError(f"Repetition {min(due, head.first_repetition)} is {what}: pass each once.")
        due += head.num_repetitions
        numbers = range(head.first_repetition, due)
        drawn = universal_coefficients(head.num_classes, numbers, head.seed)
        if not np.array_equal(drawn, tf_variable(head.hashes).numpy()):
            raise ValueError(
                f"The hash functions from repetition {head.first_repetition} on are not those of its seed, "
                f"{head.seed}: does the file come from another version or run? Train these repetitions anew."
            )


def _arguments(head):
    """The arguments that all heads must have in common."""
    config = {**head.get_config(), "width of the query": head.query_dim}
    return {name: value for name, value in config.items() if name not in _MAY_DIFFER}
