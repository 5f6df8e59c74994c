import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

from tfxc._keras import IS_KERAS_3
from tfxc.optimizers import LazyAdam, LazySGD, RowwiseAdagrad

OPTIMIZERS = [LazyAdam, LazySGD, RowwiseAdagrad]
NUM_CALLS = 3
keras_3 = pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras accumulates no gradients")


def weights(dtype="float32"):
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(size=shape), dtype=dtype) for shape in [(9, 4), (9,), (3, 2)]]


def batches(num_batches):
    """Gradients of a table, a bias of its rows and a dense weight; the last rows are never touched."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(num_batches):
        ids = tf.constant(rng.integers(0, 7, 3))
        values = [tf.constant(rng.normal(size=shape), tf.float32) for shape in [(3, 4), (3,), (3, 2)]]
        made.append([tf.IndexedSlices(values[0], ids), tf.IndexedSlices(values[1], ids), values[2]])
    return made


def joined(group):
    """The gradients of the mean loss over several batches."""

    def mean(*parts):
        if not isinstance(parts[0], tf.IndexedSlices):
            return tf.add_n(parts) / len(parts)
        values = tf.concat([part.values for part in parts], 0) / len(parts)
        return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], 0))

    return [mean(*parts) for parts in zip(*group, strict=True)]


def trained(optimizer, steps, wrap=tf.function, dtype="float32"):
    """The weights after each call."""
    variables, found = weights(dtype), []
    optimizer.exclude_from_weight_decay(variables[1:2])
    optimizer.build(variables)

    @wrap
    def step(ids, rows, biases, dense):
        gradients = [tf.IndexedSlices(rows, ids), tf.IndexedSlices(biases, ids), dense]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for table, bias, dense in steps:
        step(table.indices, table.values, bias.values, dense)
        found.append([tf.cast(variable, tf.float32).numpy() for variable in variables])
    return found


@keras_3
@pytest.mark.traced
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("optimizer_class", "options", "wrap"),
    long_after(
        4,
        (LazyAdam, {"weight_decay": 0.5, "clipnorm": 0.3}, tf.function),
        (LazySGD, {"global_clipnorm": 0.3}, lambda step: step),
        (RowwiseAdagrad, {"weight_decay": 0.5}, tf.function),
        (LazyAdam, {"clipvalue": 0.1}, tf.function(jit_compile=True)),
        *((kind, {}, wrap) for kind in OPTIMIZERS for wrap in (tf.function, tf.function(jit_compile=True))),
    ),
)
def test_a_group_of_calls_is_one_step_on_all_of_their_batches(optimizer_class, options, wrap):
    steps = batches(2 * NUM_CALLS + 1)
    groups = [steps[:NUM_CALLS], steps[NUM_CALLS : 2 * NUM_CALLS]]
    expected = trained(optimizer_class(0.1, **options), map(joined, groups), wrap)
    optimizer = optimizer_class(0.1, gradient_accumulation_steps=NUM_CALLS, **options)
    found = trained(optimizer, steps, wrap)
    start = [variable.numpy() for variable in weights()]
    for call, group in enumerate(found, 1):
        for ours, theirs in zip(group, [start, *expected][call // NUM_CALLS], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
    for untouched, before in zip(found[-1][:2], start, strict=False):
        np.testing.assert_array_equal(untouched[7:], before[7:])
