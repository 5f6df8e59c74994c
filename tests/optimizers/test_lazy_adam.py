import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras import keras
from tfxc.optimizers import LazyAdam


def sparse(values, ids):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids))


@pytest.mark.both_keras
@pytest.mark.parametrize("shape", [(), (2, 3, 5), (1 << 16, 2)])
def test_dense_gradients_give_the_numbers_of_keras_adam(shape):
    rng = np.random.default_rng(0)
    ours, theirs = (tf.Variable(tf.ones(shape)) for _ in range(2))
    settings = {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5}
    lazy, adam = LazyAdam(**settings), keras.optimizers.Adam(**settings)
    for _ in range(10):
        gradient = tf.constant(rng.normal(size=shape), tf.float32)
        lazy.apply_gradients([(gradient, ours)])
        adam.apply_gradients([(gradient, theirs)])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-6)


@pytest.mark.traced
@pytest.mark.kernels
def test_a_dense_step_of_a_table_is_made_where_it_lies():
    table, small = tf.Variable(tf.zeros([1 << 16, 2])), tf.Variable(tf.zeros([8, 2]))
    optimizer = LazyAdam(0.01)
    optimizer.build([table, small])

    def updates(variable):
        def step():
            optimizer.apply_gradients([(tf.ones(variable.shape), variable)])

        return {op.type for op in tf.function(step).get_concrete_function().graph.get_operations()}

    assert "Tfxc>LazyAdamUpdate" in updates(table) and "ResourceApplyAdam" not in updates(table)
    assert "ResourceApplyAdam" in updates(small)


def test_a_skipped_row_keeps_its_moments_and_is_corrected_by_the_global_step():
    table = tf.Variable(tf.zeros([3, 1]))
    optimizer = LazyAdam(0.1, beta_1=0.9, beta_2=0.99)
    for ids in ([0], [1], [0]):
        optimizer.apply_gradients([(sparse([[2.0]], ids), table)])

    def moved(m, v, step):
        return 0.1 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step) * m / (np.sqrt(v) + 1e-7)

    first, second = (0.2, 0.04), (0.9 * 0.2 + 0.2, 0.99 * 0.04 + 0.04)  # (m, v) after one and two touches
    expected = [[-moved(*first, 1) - moved(*second, 3)], [-moved(*first, 2)], [0.0]]
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)


def test_other_dtypes_take_dense_and_sparse_gradients():
    table = tf.Variable(tf.zeros([3, 2], tf.float64))
    optimizer = LazyAdam(0.1)
    optimizer.apply_gradients([(sparse([[1, -1]], [1]), table)])
    optimizer.apply_gradients([(tf.zeros([3, 2], tf.float64), table)])
    assert table.dtype == tf.float64
    assert (table.numpy()[[0, 2]] == 0).all()
    assert (np.sign(table.numpy()[1]) == [-1, 1]).all()


@pytest.mark.parametrize("wrong", [{"beta_1": 1.0}, {"beta_2": -0.1}, {"epsilon": 0.0}, {"beta_1": np.nan}])
def test_scalars_outside_their_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be in"):
        LazyAdam(**wrong)


def test_sparse_steps_that_touch_every_row_equal_dense_steps():
    rng = np.random.default_rng(0)
    tables = [tf.Variable(tf.ones([4, 3])) for _ in range(2)]
    optimizers = [LazyAdam(0.01) for _ in range(2)]
    for _ in range(10):
        values = rng.normal(size=(4, 3))
        optimizers[0].apply_gradients([(tf.constant(values, tf.float32), tables[0])])
        order = rng.permutation(4)
        halves = np.concatenate([values[order], values[order]]) / 2
        optimizers[1].apply_gradients([(sparse(halves, np.concatenate([order, order])), tables[1])])
    np.testing.assert_allclose(tables[0].numpy(), tables[1].numpy(), atol=1e-6)
