"""Class counts given to a sampler: checked, and kept out of its config.

A config with ten million counts would be a 100 MB JSON text. The counts live in weights; a sampler
rebuilt from its config says ``counts="saved"`` and has them once its weights are loaded. Until then they
are NaN, and any use of them fails.
"""

import numpy as np
import tensorflow as tf

SAVED = "saved"


def check_counts(counts, what):
    """The counts as float64 [L], or ``SAVED``.

    Raises:
        ValueError: unless they are one finite, positive number a class.
    """
    if isinstance(counts, str) and counts == SAVED:
        return SAVED
    counts = np.asarray(counts, np.float64)
    if counts.ndim != 1 or not len(counts):
        raise ValueError(f"{what} needs counts of shape [L], one a class, but got shape {counts.shape}.")
    bad = np.flatnonzero(~(np.isfinite(counts) & (counts > 0)))
    if len(bad):
        raise ValueError(
            f"{what} needs a positive count for every class, or that class could never be drawn; "
            f"{len(bad)} of {len(counts)} are not, the first being class {bad[0]} with {counts[bad[0]]}. "
            "Pass counts + 1."
        )
    return counts


def match_classes(counts, num_classes, what):
    """Raises ValueError unless there are counts for exactly L classes."""
    if not isinstance(counts, str) and len(counts) != num_classes:
        raise ValueError(f"{what} got counts of {len(counts)} classes, but the head has {num_classes}.")


def gather_counts(variable, ids, what):
    """What a variable [L] made of the counts holds for class ids of any shape (-1 reads class 0).

    Raises:
        tf.errors.InvalidArgumentError: if the counts are "saved", but were never loaded.
    """
    loaded = tf.debugging.Assert(
        tf.logical_not(tf.math.is_nan(tf.gather(variable, 0))),
        [f'{what}(counts="saved") has no counts yet: load the weights it was saved with, or pass counts.'],
    )
    with tf.control_dependencies([loaded] if loaded is not None else []):
        return tf.gather(variable, tf.maximum(ids, 0))
