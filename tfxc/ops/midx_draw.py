"""Exact draws from the softmax over quantised class vectors (the MIDX proposal)."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ops import library
from tfxc.require import finite_rows, require

# A sum over cells below this may have lost terms to underflow.
_SMALLEST_TOTAL = 1e-280


class CellIndex(NamedTuple):
    """The inverted multi-index: classes sorted by cell, cell ``(a, b)`` being number ``a·C + b``."""

    cell_mass: tf.Tensor  # [C, C] float32, summed weight of the classes in each cell
    cell_offsets: tf.Tensor  # [C² + 1] int32; cell c has the slots from offsets[c] to offsets[c + 1]
    slots: tf.Tensor  # [L, 4] int32, see pack_slots: one class each, sorted by cell, with its alias


def pack_slots(threshold, alias, class_ids, weight):
    """Packs the alias tables of all cells with their classes: a draw then reads one or two cache lines.

    Threshold and alias [L] are of ``tfxc.samplers.alias.alias_table``; ids and weights [L] hold each class
    once. Returns NumPy int32 [L, 4], the arguments as columns, threshold and weight as bits of their float32.
    """
    threshold, weight = (np.asarray(part, np.float32).view(np.int32) for part in (threshold, weight))
    return np.stack([threshold, np.int32(alias), np.int32(class_ids), weight], axis=1)


def midx_draw(row_logits, column_logits, index, num_samples, seed):
    """Draws S classes a query, with replacement; the log-probability of each draw, and ``log Z``.

    A class of weight ``m_i`` in cell ``(a, b)`` has the probability
    ``Q(i|z) = m_i exp(u_a + v_b) / Σ_ab mass_ab exp(u_a + v_b)``. The op draws the cell first, then a class
    of the cell by its weight, by the alias method. The cost is O(C² + S log C) a query, whatever L. The
    compiled op's random numbers belong to (seed, query, draw), whatever the number of threads. The TensorFlow
    path has the same distribution; its draws for the same seed differ.

    The logits ``u`` and ``v``, ``[N, C]`` float32, are query times row and column codewords. S is in
    [1, 2^24], the seed ``[2]`` integers. Returns ``class_ids [N, S]`` int32; ``log_prob [N, S]`` float32,
    always finite; and ``log Z [N]`` float32, see :func:`midx_log_partition`; without a gradient. Raises an
    InvalidArgumentError for a logit that is not finite, whose query it names, or a malformed index.
    """
    num_samples = positive_int(num_samples, "num_samples", most=library.MOST_PER_QUERY)
    dtypes = CellIndex(tf.float32, tf.int32, tf.int32)
    index = CellIndex(*map(tf.convert_to_tensor, index, dtypes))
    rows, columns = (tf.stop_gradient(tf.cast(x, tf.float32)) for x in (row_logits, column_logits))
    seed = tf.cast(seed, tf.int64)
    if not library.use_compiled():
        return _draw(rows, columns, index, num_samples, seed)
    return tuple(library.load().tfxc_midx_draw(rows, columns, *index, seed, num_samples=num_samples))


def midx_log_partition(row_logits, column_logits, cell_mass):
    """``log Z = log Σ_ab mass_ab exp(u_a + v_b)``, so that ``log Q(i|z) = u_a + v_b − log Z (+ log m_i)``.

    Row and column logits ``u``, ``v`` are finite ``[N, C]``, masses ``[C, C]`` at least 0; all 0 gives -inf.
    The result is ``[N]`` float32, computed in float64.
    """
    rows, columns, mass = (tf.cast(x, tf.float64) for x in (row_logits, column_logits, cell_mass))
    relative_rows, row_shift = _relative(rows, tf.reduce_any(mass > 0, axis=1))
    relative_columns, column_shift = _relative(columns, tf.reduce_any(mass > 0, axis=0))
    total = tf.reduce_sum(tf.matmul(tf.exp(relative_rows), mass) * tf.exp(relative_columns), axis=1)
    log_partition = tf.cond(
        tf.reduce_all(total > _SMALLEST_TOTAL),
        lambda: tf.math.log(total) + (row_shift + column_shift)[:, 0],
        # The cell of the best row and the best column may be empty, and far above all others.
        lambda: tf.reduce_logsumexp(_cell_logits(rows, columns, mass), axis=1),
    )
    return tf.cast(log_partition, tf.float32)


def _draw(row_logits, column_logits, index, num_samples, seed):
    checks = [
        *finite_rows(row_logits, "row_logits"),
        *finite_rows(column_logits, "column_logits"),
        *_require_index(index, num_codewords=tf.shape(row_logits)[1]),
    ]
    with tf.control_dependencies(checks):
        rows, columns, mass = (tf.cast(x, tf.float64) for x in (row_logits, column_logits, index.cell_mass))
    rows, row_shift = _relative(rows, tf.reduce_any(mass > 0, axis=1))
    columns, column_shift = _relative(columns, tf.reduce_any(mass > 0, axis=0))
    logits = _cell_logits(rows, columns, mass)
    shift = tf.reduce_max(logits, axis=1, keepdims=True)
    logits -= shift
    cumulative = tf.cumsum(tf.exp(logits), axis=1)
    total = cumulative[:, -1:]
    cell_seed, class_seed = tf.unstack(tf.random.split(seed, 2))
    shape = [tf.shape(rows)[0], num_samples]
    uniform = tf.random.stateless_uniform(shape, cell_seed, dtype=tf.float64)
    # Rounding may lift the product to the total, past the last cell that has mass.
    below = tf.math.nextafter(total, tf.zeros_like(total))
    cell = tf.searchsorted(cumulative, tf.minimum(uniform * total, below), side="right")
    class_ids, log_weight = _choose_in_cell(index, cell, class_seed)
    log_prob = tf.gather(logits, cell, batch_dims=1) - tf.math.log(total)
    log_prob += log_weight - tf.math.log(tf.gather(tf.reshape(mass, [-1]), cell))
    with tf.control_dependencies(_require_drawn(class_ids, log_weight, tf.shape(index.slots)[0])):
        log_partition = (tf.math.log(total) + shift + row_shift + column_shift)[:, 0]
        return tf.identity(class_ids), tf.cast(log_prob, tf.float32), tf.cast(log_partition, tf.float32)


def _choose_in_cell(index, cell, seed):
    """The ids of classes of the given cells, and the log of their weights."""
    start = tf.gather(index.cell_offsets, cell)
    size = tf.gather(index.cell_offsets, cell + 1) - start
    place = tf.random.stateless_uniform(tf.shape(cell), seed, dtype=tf.float64) * tf.cast(size, tf.float64)
    threshold, alias, _, _ = _unpacked(index.slots, start + tf.cast(place, tf.int32))
    stays = place - tf.floor(place) < tf.cast(threshold, tf.float64)
    slot = tf.where(stays, start + tf.cast(place, tf.int32), alias)
    _, _, class_ids, weight = _unpacked(index.slots, slot)
    return class_ids, tf.math.log(tf.cast(weight, tf.float64))


def _unpacked(slots, places):
    threshold, alias, class_ids, weight = tf.unstack(tf.gather(slots, places), axis=-1)
    return tf.bitcast(threshold, tf.float32), alias, class_ids, tf.bitcast(weight, tf.float32)


def _relative(logits, in_use):
    """Logits relative to the largest logit in use, -inf where not in use; and that largest logit."""
    logits = tf.where(in_use, logits, -float("inf"))
    shift = tf.reduce_max(logits, axis=1, keepdims=True)
    return logits - shift, shift


def _cell_logits(rows, columns, mass):
    """``[N, C²]`` log of ``mass_ab exp(u_a + v_b)``, -inf for an empty cell."""
    logits = rows[:, :, None] + columns[:, None, :] + tf.math.log(mass)
    return tf.reshape(logits, [tf.shape(rows)[0], tf.size(mass)])


def _require_index(index, num_codewords):
    mass, offsets = index.cell_mass, index.cell_offsets
    sizes = tf.reshape(offsets[1:] - offsets[:-1], tf.shape(mass))
    num_classes = tf.shape(index.slots)[0]
    sound = (mass >= 0) & tf.math.is_finite(mass) & ((sizes > 0) | (mass == 0))
    well_ordered = tf.reduce_all(sizes >= 0) & (offsets[0] == 0) & (offsets[-1] == num_classes)
    square = tf.reduce_all(tf.shape(mass) == num_codewords)
    return [
        *require(square, "cell_mass must be [C, C], but its shape is", tf.shape(mass)),
        *require(well_ordered, "cell_offsets must start at 0, never decrease and end at L =", num_classes),
        *require(tf.reduce_all(sound), "cell_mass must hold each cell's summed weight. Rebuild the index."),
        *require(tf.reduce_any(mass > 0), "All of cell_mass is 0: there is no class to draw."),
    ]


def _require_drawn(class_ids, log_weight, num_classes):
    in_range = tf.reduce_all((class_ids >= 0) & (class_ids < num_classes))
    positive = tf.reduce_all(tf.math.is_finite(log_weight))
    return [
        *require(in_range, "slots lead to a class outside 0 to L - 1, where L =", num_classes),
        *require(positive, "slots lead to a class whose weight is not a positive number. Rebuild the index."),
    ]
