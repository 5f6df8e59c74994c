import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

from tfxc._keras import IS_KERAS_3, keras
from tfxc.optimizers import LazyAdam, LazySGD, RowwiseAdagrad

OPTIMIZERS = [LazyAdam, LazySGD, RowwiseAdagrad]
NUM_CALLS = 4
compiled, eager, xla = tf.function, lambda step: step, tf.function(jit_compile=True)
keras_3 = pytest.mark.skipif(not IS_KERAS_3, reason="optimizers of tf-keras accumulate no gradients")


def gradients_of(row_ids, rng):
    """Gradients of a table, a bias of its rows and a dense weight, whose sums of a few are exact."""
    shapes = [(len(row_ids), 4), (len(row_ids),), (3, 2)]
    rows, biases, dense = (tf.constant(rng.integers(-8, 8, shape) / 8, tf.float32) for shape in shapes)
    return [
        tf.IndexedSlices(rows, tf.constant(row_ids), tf.constant([9, 4])),
        tf.IndexedSlices(biases, tf.constant(row_ids), tf.constant([9])),
        dense,
    ]


def joined(group):
    """The gradients of the mean loss over the batches of a group."""

    def mean(*parts):
        if not isinstance(parts[0], tf.IndexedSlices):
            return tf.add_n(parts) / len(parts)
        values = tf.concat([part.values for part in parts], 0) / len(parts)
        row_ids = tf.concat([part.indices for part in parts], 0)
        return tf.IndexedSlices(values, row_ids, parts[0].dense_shape)

    return [mean(*parts) for parts in zip(*group, strict=True)]


def trained(optimizer, batches, wrap, dtype="float32"):
    """The weights before and after each call."""
    rng = np.random.default_rng(0)
    variables = [tf.Variable(rng.normal(size=shape), dtype=dtype) for shape in [(9, 4), (9,), (3, 2)]]
    values = lambda: [tf.cast(variable, tf.float32).numpy() for variable in variables]  # noqa: E731
    optimizer.build(variables)
    step = wrap(lambda batch: optimizer.apply_gradients(zip(batch, variables, strict=True)))
    return [values(), *((step(batch), values())[1] for batch in batches)]


@keras_3
@pytest.mark.traced
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("optimizer_class", "options", "dtype", "wrap"),
    long_after(
        3,
        (LazyAdam, {"clipnorm": 0.3, "weight_decay": 0.5}, "float32", compiled),
        (LazySGD, {}, "bfloat16", compiled),
        (RowwiseAdagrad, {"weight_decay": 0.5}, "float32", eager),
        (LazyAdam, {"clipvalue": 0.1}, "float32", xla),
        (LazySGD, {}, "float32", xla),
        (LazySGD, {"global_clipnorm": 0.3}, "float64", compiled),
        *((kind, {"weight_decay": 0.5}, "bfloat16", compiled) for kind in OPTIMIZERS),
    ),
)
def test_a_group_of_calls_is_one_step_on_all_of_their_batches(optimizer_class, options, dtype, wrap):
    rng = np.random.default_rng(1)
    batches = [gradients_of(rng.integers(0, 7, 3), rng) for _ in range(2 * NUM_CALLS + 1)]
    whole = [joined(batches[:NUM_CALLS]), joined(batches[NUM_CALLS : 2 * NUM_CALLS])]
    start, *expected = trained(optimizer_class(0.1, **options), whole, wrap, dtype)
    accumulating = optimizer_class(0.1, gradient_accumulation_steps=NUM_CALLS, **options)
    for call, found in enumerate(trained(accumulating, batches, wrap, dtype)):
        for ours, theirs in zip(found, [start, *expected][call // NUM_CALLS], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found[:2], start, strict=False):
        np.testing.assert_array_equal(ours[7:], theirs[7:])
    assert int(accumulating.iterations) == 2


@keras_3
def test_it_counts_and_averages_as_keras_does():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    rng, options = np.random.default_rng(1), {"gradient_accumulation_steps": NUM_CALLS, "clipvalue": 0.1}
    batches = [gradients_of(rng.permutation(9), rng) for _ in range(2 * NUM_CALLS + 1)]
    dense = [[tf.convert_to_tensor(gradient) for gradient in batch] for batch in batches]
    batches[1::2] = dense[1::2]  # of a weight, some gradients may be sparse and others dense
    for ours, theirs in zip(
        trained(LazySGD(schedule, **options), batches, eager),
        trained(keras.optimizers.SGD(schedule, **options), dense, eager),
        strict=True,
    ):
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-6)


@pytest.mark.both_keras
def test_where_it_does_not_work_it_is_refused():
    if not IS_KERAS_3:
        with pytest.raises(ValueError, match="needs Keras 3, .* unset TF_USE_LEGACY_KERAS"):
            LazyAdam(gradient_accumulation_steps=2)
        return
    for wrong in (0, 1, 2.5, True, "4"):
        with pytest.raises(ValueError, match=f"must be None, or .*at least 2, but got {wrong!r}"):
            LazyAdam(gradient_accumulation_steps=wrong)
    options = LazyAdam(gradient_accumulation_steps=2).get_config()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), pytest.raises(ValueError, match="one device, not on 2 replicas"):
        LazyAdam.from_config(options)
