"""Exact draws in proportion to a kernel of query and class features: a block first, then a class in it."""

from typing import NamedTuple

import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ids import int32_ids
from tfxc.ops import library
from tfxc.require import finite_rows, in_range, require

# The TensorFlow path gathers about this many floats of rows at a time.
_ELEMENTS_AT_ONCE = 1 << 22

library.reads_tables("BlockDraw", "BlockLogProb")


class Kernel(NamedTuple):
    """The weight of a class with inner product o: ``max(quadratic·o² + linear·o + constant, floor)``.

    The floor, the smallest weight of a class, is above 0.
    """

    quadratic: float
    linear: float
    constant: float
    floor: float

    def __call__(self, products):
        """The weights for inner products of any shape."""
        weights = (self.quadratic * products + self.linear) * products + self.constant
        return tf.maximum(weights, self.floor)


class BlockIndex(NamedTuple):
    """Classes in blocks of consecutive ids; the last block may be shorter."""

    rows: tf.Variable  # [L, F] float32, the features of the classes; read in place
    block_size: int  # b, the classes of a block
    kernel: Kernel


def block_draw(query, block_mass, index, num_samples, seed):
    """Draws S classes a query, with replacement, and the log-probability of each draw.

    The op draws a block B with probability ``P(B) ∝ max(mass_B + constant·|B|, floor·|B|)``, then a class of
    B with ``P(i|B) ∝ w_i``, the kernel of ``query · rows[i]``: ``w_i / Σ_j w_j`` in all, where no class is
    below the floor. The cost is O(L/b + S·b·F) a query. The compiled op's random numbers belong to (seed,
    query, draw), whatever the number of threads. The TensorFlow path has the same distribution; its draws for
    the same seed differ.

    Query features are ``[N, F]`` float32, masses ``[N, ceil(L / b)]`` float32,
    ``Σ_{i in B} (quadratic·o_i² + linear·o_i)``; S is in [1, 2^24], the seed ``[2]`` integers. Returns
    ``class_ids [N, S]`` int32 and ``log_prob [N, S]`` float32, always finite, without a gradient. Raises
    ValueError for arguments that do not fit, and an InvalidArgumentError, which names the query, for a mass
    that is not finite or a weight beyond float32.
    """
    query, block_mass = _convert(query, block_mass, index)
    positive_int(num_samples, "num_samples", most=library.MOST_PER_QUERY)
    seed = tf.cast(seed, tf.int64)
    if not library.use_compiled(index.rows):
        return _draw(query, block_mass, index, num_samples, seed)
    options = {"kernel": list(index.kernel), "block_size": index.block_size, "num_samples": num_samples}
    return library.load().tfxc_block_draw(index.rows.handle, query, block_mass, seed, **options)


def block_log_prob(query, block_mass, index, class_ids):
    """log Q ``[N, P]`` of classes ``[N, P]`` int32 in ``[0, L)``, at O(b·F) a class; finite, no gradient.

    That is the log-probability of a draw of :func:`block_draw`, which tells of the other arguments.
    """
    query, block_mass = _convert(query, block_mass, index)
    class_ids = int32_ids(class_ids, index.rows.shape[0])
    if not library.use_compiled(index.rows):
        return _log_prob(query, block_mass, index, class_ids)
    options = {"kernel": list(index.kernel), "block_size": index.block_size}
    return library.load().tfxc_block_log_prob(index.rows.handle, query, block_mass, class_ids, **options)


def _convert(query, block_mass, index):
    if not index.kernel.floor > 0:
        raise ValueError(f"The kernel's floor must be above 0, but got {index.kernel.floor}.")
    positive_int(index.block_size, "block_size")
    query, block_mass = (tf.stop_gradient(tf.cast(x, tf.float32)) for x in (query, block_mass))
    num_classes, width = index.rows.shape
    num_blocks = -(-num_classes // index.block_size)
    fits = (
        query.shape.is_compatible_with([None, width])
        and block_mass.shape.is_compatible_with([None, num_blocks])
        and query.shape[:1].is_compatible_with(block_mass.shape[:1])
    )
    if not fits:
        raise ValueError(
            f"query must be [N, {width}] and block_mass [N, {num_blocks}], for rows [{num_classes}, {width}] "
            f"in blocks of {index.block_size}, but their shapes are {query.shape} and {block_mass.shape}."
        )
    return query, block_mass


def _draw(query, block_mass, index, num_samples, seed):
    block_seed, class_seed = tf.unstack(tf.random.split(seed, 2))
    shape = [tf.shape(query)[0], num_samples]
    mass = _floored(block_mass, index)
    blocks = _invert(mass, tf.random.stateless_uniform(shape, block_seed, dtype=tf.float64))
    uniform = tf.random.stateless_uniform(shape, class_seed, dtype=tf.float64)

    def choose(weights, uniform):
        rows = tf.reshape(weights, [-1, tf.shape(weights)[2]])
        return tf.reshape(_invert(rows, tf.reshape(uniform, [-1, 1])), tf.shape(uniform))

    return _visit(query, mass, blocks, index, choose, uniform)


def _log_prob(query, block_mass, index, class_ids):
    with tf.control_dependencies(in_range(class_ids, 0, index.rows.shape[0], "class_ids: the id")):
        blocks, position = class_ids // _block_size(index), class_ids % _block_size(index)
    mass = _floored(block_mass, index)
    return _visit(query, mass, blocks, index, lambda weights, position: position, position)[1]


def _visit(query, mass, blocks, index, choose, item):
    """Class ids and log-probabilities [N, S] of classes chosen in blocks [N, S], a few queries at a time."""

    def some_queries(inputs):
        query, mass, blocks, item = inputs
        weights = _weights(query, blocks, index)
        position = choose(weights, item)
        share = tf.gather(weights, position, batch_dims=2) / tf.reduce_sum(weights, 2)
        block_share = tf.gather(mass, blocks, batch_dims=1) / tf.reduce_sum(mass, 1, keepdims=True)
        log_prob = tf.math.log(share) + tf.math.log(block_share)
        return blocks * _block_size(index) + position, tf.cast(log_prob, tf.float32)

    num_queries, num_samples = tf.shape(blocks)[0], tf.shape(blocks)[1]
    at_once = _ELEMENTS_AT_ONCE // tf.maximum(num_samples * _block_size(index) * index.rows.shape[1], 1)
    at_once = tf.clip_by_value(at_once, 1, tf.maximum(num_queries, 1))
    num_turns = tf.maximum(-(-num_queries // at_once), 1)

    def in_turns(part, filler=0):
        missing = num_turns * at_once - num_queries
        padded = tf.pad(part, [[0, missing], [0, 0]], constant_values=tf.cast(filler, part.dtype))
        return tf.reshape(padded, [num_turns, at_once, tf.shape(part)[1]])

    parts = (in_turns(query), in_turns(mass, 1), in_turns(blocks), in_turns(item))
    signature = tuple(tf.TensorSpec([None, blocks.shape[1]], dtype) for dtype in (tf.int32, tf.float32))
    chosen = tf.map_fn(some_queries, parts, fn_output_signature=signature)
    shape = [num_turns * at_once, num_samples]
    ids, log_prob = (tf.reshape(part, shape)[:num_queries] for part in chosen)
    message = "The weights of a query are not finite. Check the query and the rows for NaN and overflow."
    with tf.control_dependencies(require(tf.reduce_all(tf.math.is_finite(log_prob)), message)):
        return tf.identity(ids), tf.stop_gradient(log_prob)


def _weights(query, blocks, index):
    """Weights float64 [N, S, b] of the classes of blocks [N, S]; 0 past the last class."""
    num_classes, block_size = index.rows.shape[0], _block_size(index)
    ids = blocks[:, :, tf.newaxis] * block_size + tf.range(block_size)
    rows = tf.gather(index.rows, tf.minimum(ids, num_classes - 1))
    products = tf.linalg.matvec(rows, query[:, tf.newaxis])
    return tf.where(ids < num_classes, index.kernel(tf.cast(products, tf.float64)), 0.0)


def _block_size(index):
    """The classes of a full block, at most all classes."""
    return max(min(index.block_size, index.rows.shape[0]), 1)


def _floored(block_mass, index):
    """The masses by which blocks are drawn, float64 [N, num_blocks]."""
    with tf.control_dependencies(finite_rows(block_mass, "block_mass")):
        mass = tf.cast(block_mass, tf.float64)
    block_size = _block_size(index)
    starts = tf.range(0, index.rows.shape[0], block_size)
    sizes = tf.cast(tf.minimum(index.rows.shape[0] - starts, block_size), tf.float64)
    return tf.maximum(mass + index.kernel.constant * sizes, index.kernel.floor * sizes)


def _invert(weights, uniform):
    """Indices [N, S] drawn by uniform numbers [N, S], with probability proportional to weights [N, n]."""
    sums = tf.cumsum(weights, axis=1)
    index = tf.searchsorted(sums, uniform * sums[:, -1:], side="right")
    # Rounding may lift the product to the total, past the last index that has weight.
    last = tf.reduce_max(tf.where(weights > 0, tf.range(tf.shape(weights)[1]), 0), axis=1, keepdims=True)
    return tf.minimum(index, last)
