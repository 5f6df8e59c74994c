import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras.weights import tf_variable
from tfxc.optimizers import RowwiseAdagrad


def reference(table, accumulator, gradients):
    for gradient in gradients:
        accumulator = accumulator + np.mean(gradient.reshape(len(gradient), -1) ** 2, axis=1)
        root = np.sqrt(accumulator).reshape(-1, *[1] * (gradient.ndim - 1))
        table = table - 0.1 * gradient / (root + 1e-8)
    return table


@pytest.mark.parametrize("shape", [(1,), (4,), (4, 1), (4, 3), (2, 3, 5)])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_equals_float64(shape, kind):
    rng = np.random.default_rng(0)
    table = tf.Variable(tf.ones(shape))
    optimizer = RowwiseAdagrad(0.1, initial_accumulator_value=0.5)
    gradients = rng.normal(size=(5, *shape))
    for gradient in gradients:
        values = tf.constant(gradient, tf.float32)
        if kind == "sparse":
            twice = tf.range(shape[0]), tf.range(shape[0])
            values = tf.IndexedSlices(tf.concat([values, values], 0) / 2, tf.concat(twice, 0))
        optimizer.apply_gradients([(values, table)])
    expected = reference(np.ones(shape), np.full(shape[0], 0.5), gradients)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)


def test_the_slot_is_one_number_a_row():
    table = tf.Variable(tf.zeros([5, 3]))
    optimizer = RowwiseAdagrad(0.1, initial_accumulator_value=0.25)
    optimizer.apply_gradients([(tf.IndexedSlices(tf.constant([[1.0, 2, 3]]), tf.constant([2])), table)])
    accumulator = tf_variable(optimizer.variables[-1]).numpy()
    np.testing.assert_allclose(accumulator, [0.25, 0.25, 0.25 + 14 / 3, 0.25, 0.25], rtol=1e-6)


def test_from_zero_the_first_step_has_the_size_of_the_learning_rate_or_there_is_none():
    for scale in (0.0, 1e-4, 1e4):
        table = tf.Variable(tf.zeros([2, 4]))
        gradient = tf.IndexedSlices(tf.fill([1, 4], scale), tf.constant([1]))
        RowwiseAdagrad(0.5).apply_gradients([(gradient, table)])
        np.testing.assert_allclose(table.numpy(), [[0] * 4, [-0.5 * bool(scale)] * 4], rtol=1e-3)
    variable = tf.Variable(1.0)  # takes a dense gradient
    RowwiseAdagrad(0.1).apply_gradients([(tf.constant(-3.0), variable)])
    assert float(variable) == pytest.approx(1.1)


@pytest.mark.parametrize("wrong", [{"initial_accumulator_value": -1.0}, {"epsilon": 0.0}])
def test_scalars_outside_their_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be in"):
        RowwiseAdagrad(0.1, **wrong)
