"""What holds for draws by every kernel, and for those that TensorFlow's ops make in its place."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from kernel_calls import cell_index, floats
from lsh_checks import SCHEMES, random_queries, random_tables

from tfxc.ops.block_draw import BlockIndex, Kernel, block_draw, block_log_prob
from tfxc.ops.lsh_draw import lsh_draw, lsh_log_expected_count
from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition

BLOCKS = BlockIndex(tf.Variable(floats(50, 4)), 8, Kernel(0.0, 1.0, 0.0, 0.05))
CELLS, TABLES = CellIndex(*cell_index()), random_tables(200, 5, 8)
QUERIES = floats(2000, 4), floats(2000, 7), random_queries(2000, 1, 5, 8)


def block(query, mass, _):
    """For some queries: a function of a number and a seed to draws, and one of ids to log-probabilities."""
    return partial(block_draw, query, mass, BLOCKS), partial(block_log_prob, query, mass, BLOCKS)


def midx(query, mass, _):
    u, v = query[:, :3], mass[:, :3]

    def log_prob_of(ids):
        row, column = np.divmod(np.repeat(np.arange(9), np.diff(CELLS.cell_offsets))[ids], 3)
        logits = np.take_along_axis(u, row, 1) + np.take_along_axis(v, column, 1)
        return logits - midx_log_partition(u, v, CELLS.cell_mass)[:, tf.newaxis]

    return partial(midx_draw, u, v, CELLS), log_prob_of


def lsh(name, *parts):
    codes, scheme = parts[2], SCHEMES[name]
    log_count_of = partial(lsh_log_expected_count, codes, tables=TABLES, scheme=scheme)
    return lambda _, seed: lsh_draw(codes, TABLES, scheme, seed), log_count_of


@pytest.fixture(params=[block, midx, *(pytest.param(partial(lsh, name), id=name) for name in SCHEMES)])
def ask(request):
    """A function of the number of queries."""
    return lambda size: request.param(*(part[:size] for part in QUERIES))


def test_same_seed_same_draws_in_eager_and_graph(path, ask):
    draw = partial(ask(9)[0], 33)
    first, again = draw([11, 12]), tf.function(draw)(tf.constant([11, 12], tf.int64))
    tf.nest.map_structure(np.testing.assert_array_equal, first, again)
    for other in ([11, 13], [10, 12], [11, 12 + 2**40]):
        assert (draw(other)[0] != first[0]).numpy().mean() > 0.3


@pytest.mark.kernels
def test_compiled_draws_belong_to_the_query_whatever_the_batch_and_the_threads(ask):
    """2,000 queries are drawn in several parts, 3 in one."""
    for few, many in zip(ask(3)[0](40, [8, 9]), ask(2000)[0](40, [8, 9]), strict=True):
        np.testing.assert_array_equal(few, many[:3])


@pytest.mark.kernels
@pytest.mark.parametrize("ask", [block, midx], indirect=True)
def test_compiled_draws_belong_to_their_number(ask):
    for few, many in zip(ask(3)[0](5, [8, 9])[:2], ask(3)[0](50, [8, 9])[:2], strict=True):
        np.testing.assert_array_equal(few, many[:, :5])


def test_an_empty_batch_draws_nothing(path, ask):
    draw, log_prob_of = ask(0)
    ids, log_prob, *_ = draw(40, [0, 0])
    assert ids.shape == log_prob.shape == (0, 40)
    assert log_prob_of(np.zeros((0, 5), np.int32)).shape == (0, 5)
    assert ask(2)[1](np.zeros((2, 0), np.int32)).shape == (2, 0)


@pytest.mark.long
def test_works_inside_xla(ask):
    draw, log_prob_of = ask(5)
    ids, log_prob, *_ = tf.function(lambda: draw(40, [1, 2]), jit_compile=True)()
    wanted = np.where(ids < 0, 0, log_prob_of(np.maximum(ids, 0)))
    np.testing.assert_allclose(log_prob, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index", [BLOCKS, CELLS], ids=["block", "midx"])
def test_no_gradient_flows(path, index):
    query, mass = (tf.Variable(part[:3]) for part in QUERIES[:2])
    with tf.GradientTape() as tape:
        draw, log_prob_of = (block if index is BLOCKS else midx)(query + 0, mass + 0, None)
        ids, log_prob, *_ = draw(4, [0, 0])
        total = tf.reduce_sum(log_prob)
        total += tf.reduce_sum(log_prob_of(ids)) if index is BLOCKS else 0.0
    assert tape.gradient(total, [query, mass, BLOCKS.rows]) == [None] * 3
