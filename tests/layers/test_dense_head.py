"""The dense head: all logits, chosen ones, and what samplers and indices see of it."""

import numpy as np
import pytest
import tensorflow as tf
from head_checks import (
    EVERY_CONFIGURATION,
    gradient_error,
    make_head,
    numpy_logits,
    queries,
    variables_of,
)

from tfxc._keras import IS_KERAS_3, keras, tf_variable
from tfxc.layers import DenseHead


@EVERY_CONFIGURATION
@pytest.mark.parametrize(("num_queries", "num_classes", "dim"), [(1, 1, 1), (4, 7, 3)])
def test_every_way_to_a_logit_agrees(name, num_queries, num_classes, dim):
    layer, query = make_head(name, num_classes, dim), queries(num_queries, dim)
    want = numpy_logits(layer, query)
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(layer(query), want, **close)
    effective = layer.effective_query(query)
    assert effective.shape == (num_queries, layer.effective_dim)
    np.testing.assert_allclose(effective @ tf.transpose(layer.class_vectors(0, num_classes)), want, **close)
    last = layer.class_vectors(num_classes - 1, num_classes)
    assert last.shape == (1, layer.effective_dim)
    np.testing.assert_allclose(effective @ tf.transpose(last), want[:, -1:], **close)
    some = layer.class_vectors_of(tf.constant([num_classes - 1, 0]))
    np.testing.assert_allclose(effective @ tf.transpose(some), want[:, [-1, 0]], **close)
    ids = np.random.default_rng(0).integers(-1, num_classes, size=(num_queries, 5)).astype(np.int32)
    scored = np.where(ids >= 0, np.take_along_axis(want, np.maximum(ids, 0), 1), 0)
    np.testing.assert_allclose(layer.score(query, tf.constant(ids)), scored, **close)
    shared = np.where(ids[:1] >= 0, want[:, np.maximum(ids[0], 0)], 0)
    np.testing.assert_allclose(layer.score(query, tf.constant(ids[0])), shared, **close)


@EVERY_CONFIGURATION
@pytest.mark.parametrize("shared", [False, True])
def test_gradient_of_chosen_scores(name, shared):
    """Equal to the gradient through all logits, and sparse in the rows of the table."""
    layer, query = make_head(name, 9, 4), tf.constant(queries(3, 4))
    ids = tf.constant([2, 8, 2, 0] if shared else [[2, 8, 2], [0, -1, 5], [7, 7, 7]])
    upstream = tf.constant(queries(3, ids.shape[-1]))
    sources = [query, *variables_of(layer)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(query)
        chosen = tf.reduce_sum(upstream * layer.score(query, ids))
        every = ids if not shared else tf.tile(ids[tf.newaxis], [3, 1])
        picked = tf.gather(layer(query), tf.maximum(every, 0), batch_dims=1) * tf.cast(every >= 0, tf.float32)
        total = tf.reduce_sum(upstream * picked)
    gradients, error = tape.gradient(chosen, sources), gradient_error(name)
    assert isinstance(gradients[1], tf.IndexedSlices)
    for got, want in zip(gradients, tape.gradient(total, sources), strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(got), tf.convert_to_tensor(want), rtol=error, atol=error
        )


@pytest.mark.parametrize("name", ["all", "tied"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bad", [-2, 9])
def test_ids_outside_the_range(name, shared, bad):
    """A tied table has rows on either side of the classes': they must not be read."""
    ids = tf.constant([1, bad])
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
        make_head(name, 9, 4).score(queries(1, 4), ids if shared else ids[tf.newaxis])


def test_sequences_of_queries():
    layer, query = make_head("all", 7, 4), queries(6, 4).reshape(2, 3, 4)
    np.testing.assert_allclose(
        layer(query), numpy_logits(layer, query.reshape(6, 4)).reshape(2, 3, 7), rtol=1e-4, atol=1e-5
    )


def test_as_a_plain_layer():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), DenseHead(5, use_bias=True)])
    assert model.output_shape == (None, 5)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [weight.copy() for weight in model.get_weights()]
    model.fit(queries(8, 4), np.arange(8) % 5, verbose=0)
    assert all((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


def test_a_zero_vector_stays_zero_when_normalized():
    layer = make_head("normalized", 3, 2)
    layer.table_variable.assign([[0.0, 0], [3, 4], [1, 0]])
    np.testing.assert_allclose(layer(tf.constant([[0.0, 2.0], [0, 0]])), [[0, 8, 0], [0, 0, 0]], rtol=1e-6)


def test_mixed_precision_keeps_table_and_logits_in_float32():
    policy = "mixed_bfloat16" if IS_KERAS_3 else keras.mixed_precision.Policy("mixed_bfloat16")
    layer, exact = DenseHead(5, dtype=policy), DenseHead(5)
    query = tf.cast(queries(2, 4), tf.bfloat16)
    logits = layer(query)
    exact.build((None, 4))
    tf_variable(exact.table).assign(tf_variable(layer.table))
    assert tf_variable(layer.table).dtype == logits.dtype == tf.float32
    np.testing.assert_allclose(logits, exact(tf.cast(query, tf.float32)), rtol=1e-5)
    np.testing.assert_allclose(layer.score(query, tf.constant([0, 3])), logits.numpy()[:, [0, 3]], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"temperature": float("nan")}, "temperature must be positive"),
        ({"row_offset": 1}, "row_offset must be 0 for a table of its own"),
        ({"row_offset": -1, "tied_to": "items"}, "row_offset"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        DenseHead(5, **options)


def test_a_tied_table_must_fit():
    embedding = keras.layers.Embedding(6, 4, name="items")
    for num_classes, row_offset, dim in ((7, 0, 4), (6, 1, 4), (5, 0, 3)):
        layer = DenseHead(num_classes, tied_to=embedding, row_offset=row_offset)
        with pytest.raises(ValueError, match=r"The table of 'items' is \[6, 4\].*needs"):
            layer.build((None, dim))
    with pytest.raises(ValueError, match="stands alone"):
        DenseHead(5, tied_to="items").build((None, 4))


def test_a_tied_head_owns_no_table():
    layer = make_head("tied all", 5, 4)
    assert [tuple(weight.shape) for weight in layer.weights] == [(5,)]
    assert layer.get_config()["tied_to"] == "items"
