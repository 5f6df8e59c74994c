"""Exact draws from the softmax over quantised class vectors (the MIDX proposal)."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.ops import library
from tfxc.ops.checks import check_number
from tfxc.require import require

# Below this the sum over cells may have lost terms to underflow.
_SMALLEST_TOTAL = 1e-280
_GUIDE_BLOCK = 1 << 16  # places of a guide at a time


class CellIndex(NamedTuple):
    """The inverted multi-index: classes sorted by cell, cell ``(a, b)`` being number ``a·C + b``.

    Attributes:
        cell_mass: ``[C, C]`` float32, summed weight of the classes in each cell.
        cell_offsets: ``[C² + 1]`` int32; cell ``c`` holds ``cell_classes[offsets[c]:offsets[c + 1]]``.
        cell_classes: ``[L]`` int32, every class id once, sorted by cell.
        cumulative_weight: ``[L + 1]`` float64, 0 and then the running sum of the weights of
            ``cell_classes``.
        guide: ``[L]`` int32, where the compiled op looks first, see :func:`guide_table`. It draws the
            same wherever that is, but soonest by that table.
    """

    cell_mass: tf.Tensor
    cell_offsets: tf.Tensor
    cell_classes: tf.Tensor
    cumulative_weight: tf.Tensor
    guide: tf.Tensor


def guide_table(cell_offsets, cumulative_weight):
    """Where the classes of each cell that n equal shares of its weight begin with are, int32 [L], in NumPy.

    A number below the weight of a cell of n classes falls into one of n equal shares. From where that share
    begins the class that the number falls on is a step or two away, on average, whatever the weights.

    >>> guide_table([0, 4], [0.0, 1.0, 2.0, 3.0, 9.0]).tolist()  # shares begin at 0, 2.25, 4.5 and 6.75
    [0, 2, 3, 3]

    Reference: Chen, Asau, On Generating Random Variates from an Empirical Distribution, 1974.
    """
    offsets, sums = np.asarray(cell_offsets), np.asarray(cumulative_weight)
    share = np.diff(sums[offsets]) / np.maximum(np.diff(offsets), 1)
    guide = np.empty(offsets[-1], np.int32)
    for start in range(0, len(guide), _GUIDE_BLOCK):  # or it would take ten times the memory of the guide
        place = np.arange(start, min(start + _GUIDE_BLOCK, len(guide)))
        cell = np.searchsorted(offsets, place, side="right") - 1
        begin = sums[offsets[cell]] + (place - offsets[cell]) * share[cell]
        guide[place] = np.searchsorted(sums, begin, side="right") - 1
    return guide


def midx_draw(row_logits, column_logits, index, num_samples, seed):
    """Draws S classes a query, with replacement; the log-probability of each draw, and ``log Z``.

    A class of weight ``m_i`` in cell ``(a, b)`` comes with probability
    ``Q(i|z) = m_i exp(u_a + v_b) / Σ_ab mass_ab exp(u_a + v_b)``: first the cell, by inverting the
    float64 distribution over all C² cells with 53 random bits, then a class of the cell by its
    weight. The cost is O(C² + S log C) a query, whatever L. The compiled
    op's random numbers belong to (seed, query, draw), whatever the number of threads. Without
    it :func:`midx_draw_reference` draws; its draws for the same seed are others.

    Args:
        row_logits: ``[N, C]`` float32, ``u``: query times row codewords.
        column_logits: ``[N, C]`` float32, ``v``: query times column codewords.
        index: A :class:`CellIndex`.
        num_samples: S, at least 1.
        seed: ``[2]`` integers; the same seed gives the same draws.

    Returns:
        ``class_ids [N, S]`` int32; ``log_prob [N, S]`` float32, always finite; and ``log Z [N]`` float32, as
        of :func:`midx_log_partition`. No gradient.

    Raises:
        ValueError: ``num_samples`` outside [1, 2^24].
        tf.errors.InvalidArgumentError: NaN or infinite logits (naming the query), a malformed
            index, or no mass at all.

    >>> index = CellIndex(cell_mass=[[3.0, 0.0], [0.0, 1.0]], cell_offsets=[0, 3, 3, 3, 4],
    ...                   cell_classes=[1, 2, 3, 0], cumulative_weight=[0, 1, 2, 3, 4],
    ...                   guide=[0, 1, 2, 3])
    >>> zeros = tf.zeros([1, 2])
    >>> ids, log_prob, log_z = midx_draw(zeros, zeros, index, num_samples=3, seed=[1, 2])
    >>> ids.shape.as_list(), tf.exp(log_prob).numpy().round(3).tolist(), round(float(tf.exp(log_z[0])), 3)
    ([1, 3], [[0.25, 0.25, 0.25]], 4.0)

    Reference: Chen, Lian, Wu, et al., Adaptive Sampled Softmax with Inverted Multi-Index:
    Methods, Theory and Applications, 2025.
    """
    arguments = _convert(row_logits, column_logits, index, num_samples, seed)
    if not library.use_compiled():
        return _draw(*arguments)
    rows, columns, index, num_samples, seed = arguments
    return tuple(library.load().tfxc_midx_draw(rows, columns, *index, seed, num_samples=num_samples))


def midx_draw_reference(row_logits, column_logits, index, num_samples, seed):
    """:func:`midx_draw` in stock TensorFlow ops: the same distribution, other random numbers.

    >>> index = CellIndex([[1.0]], [0, 1], [0], [0, 1], [0])
    >>> midx_draw_reference(tf.zeros([1, 1]), tf.zeros([1, 1]), index, 2, seed=[0, 0])[0].numpy().tolist()
    [[0, 0]]
    """
    return _draw(*_convert(row_logits, column_logits, index, num_samples, seed))


def midx_log_partition(row_logits, column_logits, cell_mass):
    """``log Z = log Σ_ab mass_ab exp(u_a + v_b)``, so that ``log Q(i|z) = u_a + v_b − log Z (+ log m_i)``.

    Args:
        row_logits: ``[N, C]`` finite ``u``.
        column_logits: ``[N, C]`` finite ``v``.
        cell_mass: ``[C, C]``, at least 0; all 0 gives -inf.

    Returns:
        ``[N]`` float32, computed in float64.

    >>> midx_log_partition([[0.0, 1.0]], [[0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]).numpy().tolist()
    [0.0]
    """
    rows, columns, mass = (tf.cast(x, tf.float64) for x in (row_logits, column_logits, cell_mass))
    relative_rows, row_shift = _relative(rows, tf.reduce_any(mass > 0, axis=1))
    relative_columns, column_shift = _relative(columns, tf.reduce_any(mass > 0, axis=0))
    total = tf.reduce_sum(tf.matmul(tf.exp(relative_rows), mass) * tf.exp(relative_columns), axis=1)
    log_partition = tf.cond(
        tf.reduce_all(total > _SMALLEST_TOTAL),
        lambda: tf.math.log(total) + (row_shift + column_shift)[:, 0],
        # The best row and the best column may meet in an empty cell far above all others.
        lambda: tf.reduce_logsumexp(_cell_logits(rows, columns, mass), axis=1),
    )
    return tf.cast(log_partition, tf.float32)


def _convert(row_logits, column_logits, index, num_samples, seed):
    check_number("num_samples", num_samples)
    dtypes = CellIndex(tf.float32, tf.int32, tf.int32, tf.float64, tf.int32)
    index = CellIndex(*(tf.convert_to_tensor(part, dtype) for part, dtype in zip(index, dtypes, strict=True)))
    row_logits = tf.stop_gradient(tf.cast(row_logits, tf.float32))
    column_logits = tf.stop_gradient(tf.cast(column_logits, tf.float32))
    return row_logits, column_logits, index, int(num_samples), tf.cast(seed, tf.int64)


def _draw(row_logits, column_logits, index, num_samples, seed):
    checks = [
        *_require_finite("row_logits", row_logits),
        *_require_finite("column_logits", column_logits),
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
    cell = tf.searchsorted(cumulative, tf.minimum(uniform * total, _below(total)), side="right")
    position, log_weight = _choose_in_cell(index, cell, class_seed)
    log_prob = tf.gather(logits, cell, batch_dims=1) - tf.math.log(total)
    log_prob += log_weight - tf.math.log(tf.gather(tf.reshape(mass, [-1]), cell))
    class_ids = tf.gather(index.cell_classes, position)
    with tf.control_dependencies(_require_drawn(class_ids, log_weight, tf.size(index.cell_classes))):
        log_partition = (tf.math.log(total) + shift + row_shift + column_shift)[:, 0]
        return tf.identity(class_ids), tf.cast(log_prob, tf.float32), tf.cast(log_partition, tf.float32)


def _choose_in_cell(index, cell, seed):
    """The position in ``cell_classes`` and the log of the class's weight."""
    start = tf.gather(index.cell_offsets, cell)
    end = tf.gather(index.cell_offsets, cell + 1)
    sums = index.cumulative_weight
    low, high = tf.gather(sums, start), tf.gather(sums, end)
    value = low + tf.random.stateless_uniform(tf.shape(cell), seed, dtype=tf.float64) * (high - low)
    above = tf.searchsorted(sums, tf.reshape(tf.minimum(value, _below(high)), [-1]), side="right")
    position = tf.clip_by_value(tf.reshape(above, tf.shape(cell)) - 1, start, end - 1)
    return position, tf.math.log(tf.gather(sums, position + 1) - tf.gather(sums, position))


def _relative(logits, in_use):
    """Logits relative to the largest one in use, and that one; -inf where not in use."""
    logits = tf.where(in_use, logits, -float("inf"))
    shift = tf.reduce_max(logits, axis=1, keepdims=True)
    return logits - shift, shift


def _cell_logits(rows, columns, mass):
    """``[N, C²]`` log of ``mass_ab exp(u_a + v_b)``, -inf for an empty cell."""
    logits = rows[:, :, None] + columns[:, None, :] + tf.math.log(mass)
    return tf.reshape(logits, [tf.shape(rows)[0], tf.size(mass)])


def _below(x):
    return tf.math.nextafter(x, tf.zeros_like(x))


def _require_finite(name, logits):
    bad = tf.where(~tf.math.is_finite(logits))[:1, 0]
    message = f"{name} must be finite, but there is NaN or infinity in the row of query"
    return require(tf.equal(tf.size(bad), 0), message, bad)


def _require_index(index, num_codewords):
    mass, offsets = index.cell_mass, index.cell_offsets
    sizes = tf.reshape(offsets[1:] - offsets[:-1], tf.shape(mass))
    num_classes = tf.size(index.cell_classes)
    sums = tf.gather(index.cumulative_weight, tf.clip_by_value(offsets, 0, num_classes))
    expected = tf.reshape(sums[1:] - sums[:-1], tf.shape(mass))
    rounding = 1e-12 * index.cumulative_weight[-1]
    # An infinite sum would allow any mass by way of the rounding.
    ends = tf.stack([index.cumulative_weight[0], index.cumulative_weight[-1]])
    runs = tf.equal(ends[0], 0.0) & tf.math.is_finite(ends[1])
    exact = tf.cast(mass, tf.float64)
    agrees = tf.abs(exact - expected) <= 1e-5 * exact + rounding
    sound = agrees & (mass >= 0) & tf.math.is_finite(mass) & ((sizes > 0) | (mass == 0))
    well_ordered = tf.reduce_all(sizes >= 0) & (offsets[0] == 0) & (offsets[-1] == num_classes)
    square = tf.reduce_all(tf.shape(mass) == num_codewords)
    return [
        *require(runs, "cumulative_weight must run from 0 to a finite number, but runs over", ends),
        *require(square, "cell_mass must be [C, C], but its shape is", tf.shape(mass)),
        *require(well_ordered, "cell_offsets must start at 0, never decrease and end at L =", num_classes),
        *require(tf.reduce_all(sound), "cell_mass must hold each cell's summed weight. Rebuild the index."),
        *require(tf.reduce_any(mass > 0), "All of cell_mass is 0: there is no class to draw."),
    ]


def _require_drawn(class_ids, log_weight, num_classes):
    in_range = tf.reduce_all((class_ids >= 0) & (class_ids < num_classes))
    positive = tf.reduce_all(tf.math.is_finite(log_weight))
    return [
        *require(in_range, "cell_classes holds an id outside 0 to L - 1, where L =", num_classes),
        *require(positive, "cumulative_weight decreases: a drawn class has a weight that is not positive."),
    ]
