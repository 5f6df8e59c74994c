"""The alias method: draws in constant time from a fixed distribution over L classes, or from several."""

import numpy as np
import tensorflow as tf


def alias_table(weights, offsets=None):
    """Thresholds float64 [L] and aliases int32 [L] of the alias method, vectorised.

    Slot j keeps class j with probability ``threshold[j]``, else gives ``alias[j]``. In the usual
    sequential sweep, a heavy slot fills light slots until its own rest falls below 1, and the next heavy slot
    fills that one. Running sums of the light slots' gaps and the heavy slots' excess tell which slot fills
    which, so two sorted searches replace the sweep.

    Weights [L] are at least 0, of any scale. Offsets [G + 1], from 0 to L, make G distributions side by side,
    each over the classes between two of them; if their weights are all 0, their slots mean nothing.

    Reference:
        Walker, "An Efficient Method for Generating Discrete Random Variables", 1977; Hübschle-Schneider,
        Sanders, "Parallel Weighted Random Sampling", 2022 (the sweep).
    """
    weights = np.asarray(weights, np.float64)
    offsets = np.array([0, len(weights)] if offsets is None else offsets)
    sizes = np.diff(offsets)
    group = np.repeat(np.arange(len(sizes)), sizes)
    totals = np.bincount(group, weights, len(sizes))
    scaled = weights * np.divide(sizes, totals, out=np.zeros(len(sizes)), where=totals > 0)[group]
    threshold, alias = np.ones(len(weights)), np.arange(len(weights), dtype=np.int32)
    is_heavy = scaled >= 1
    # Rounding may leave a distribution of equal weights without a heavy slot: its slots keep their classes.
    num_heavy = np.bincount(group, is_heavy, len(sizes)).astype(np.int64)
    light, heavy = np.flatnonzero(~is_heavy & (num_heavy > 0)[group]), np.flatnonzero(is_heavy)
    if not len(light):
        return threshold, alias
    last = np.cumsum(num_heavy) - 1  # the last heavy slot of each distribution
    gaps, excess = np.cumsum(1 - scaled[light]), np.cumsum(scaled[heavy] - 1)
    # Over a distribution both sums grow by the same but for rounding; here they get the same start and end.
    filled = np.concatenate([[0.0], gaps])[np.searchsorted(light, offsets)]
    given = np.concatenate([[0.0], excess])[np.searchsorted(heavy, offsets)]
    excess += (filled - given)[group[heavy]]
    excess = np.minimum(excess, filled[group[heavy] + 1])
    threshold[light] = scaled[light]
    # Both searches use the same sums, one from the left and one from the right, so they split ties alike.
    filler = np.searchsorted(excess, np.concatenate([[0.0], gaps[:-1]]), side="left")
    last_of = last[group[light]]
    alias[light] = heavy[np.clip(filler, last_of - num_heavy[group[light]] + 1, last_of)]
    # Each heavy slot is emptied by a light one; rounding may leave the last heavy slots without.
    emptied = np.searchsorted(gaps, excess, side="right")
    index = np.flatnonzero((emptied < len(light)) & (np.arange(len(heavy)) < last[group[heavy]]))
    index = index[group[light[emptied[index]]] == group[heavy[index]]]
    threshold[heavy[index]] = np.clip(1 - (gaps[emptied[index]] - excess[index]), 0, 1)
    alias[heavy[index]] = heavy[index + 1]
    return threshold, alias


def alias_draw(threshold, alias, shape, seed):
    """Class ids int32 of the given shape, drawn from an alias table, two variables [L]."""
    slot_seed, keep_seed = tf.unstack(tf.random.split(seed, 2))
    slot = tf.random.stateless_uniform(shape, slot_seed, 0, threshold.shape[0], tf.int64)
    keep = tf.random.stateless_uniform(shape, keep_seed, dtype=tf.float64) < tf.gather(threshold, slot)
    return tf.where(keep, tf.cast(slot, tf.int32), tf.gather(alias, slot))
