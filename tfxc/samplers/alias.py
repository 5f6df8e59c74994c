"""The alias method: draws from any fixed distribution over L classes in constant time."""

import numpy as np
import tensorflow as tf


def alias_table(weights):
    """Thresholds float64 [L] and aliases int32 [L] of the alias method, vectorised.

    Slot j keeps class j with probability ``threshold[j]``, else gives ``alias[j]``. In the usual
    sequential sweep, a heavy slot fills the light ones before it until its own rest falls below 1 and the
    next heavy slot fills it. Which one fills which follows from running sums of the light slots' gaps
    and the heavy slots' excess, so two sorted searches replace the sweep.

    Args:
        weights: positive numbers [L], of any scale.

    Example:
        >>> threshold, alias = alias_table(np.array([1.0, 3.0]))
        >>> threshold.tolist(), alias.tolist()
        ([0.5, 1.0], [1, 1])

    Reference:
        Walker, "An Efficient Method for Generating Discrete Random Variables", 1977; Hübschle-Schneider,
        Sanders, "Parallel Weighted Random Sampling", 2022 (the sweep).
    """
    weights = np.asarray(weights, np.float64)
    scaled = weights * (len(weights) / weights.sum())
    light, heavy = np.flatnonzero(scaled < 1), np.flatnonzero(scaled >= 1)
    threshold, alias = np.ones(len(weights)), np.arange(len(weights), dtype=np.int32)
    if not len(light) or not len(heavy):
        return threshold, alias
    gaps, excess = np.cumsum(1 - scaled[light]), np.cumsum(scaled[heavy] - 1)
    last = len(heavy) - 1
    threshold[light] = scaled[light]
    # The very sums searched below and "left" against "right": equal sums must be split alike in both.
    filler = np.searchsorted(excess, np.concatenate([[0.0], gaps[:-1]]), side="left")
    alias[light] = heavy[np.minimum(filler, last)]
    # The light slot that empties each heavy one; rounding may leave the last ones without.
    emptied = np.searchsorted(gaps, excess, side="right")
    has = (emptied < len(light)) & (np.arange(len(heavy)) < last)
    index = np.flatnonzero(has)
    threshold[heavy[index]] = np.clip(1 - (gaps[emptied[index]] - excess[index]), 0, 1)
    alias[heavy[index]] = heavy[index + 1]
    return threshold, alias


def alias_draw(threshold, alias, shape, seed):
    """Class ids int32 of the given shape, drawn from an alias table (two [L] variables)."""
    slot_seed, keep_seed = tf.unstack(tf.random.split(seed, 2))
    slot = tf.random.stateless_uniform(shape, slot_seed, 0, threshold.shape[0], tf.int64)
    keep = tf.random.stateless_uniform(shape, keep_seed, dtype=tf.float64) < tf.gather(threshold, slot)
    return tf.where(keep, tf.cast(slot, tf.int32), tf.gather(alias, slot))
