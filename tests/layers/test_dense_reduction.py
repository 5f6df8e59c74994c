"""A loss over all classes in blocks: equal to autodiff over all logits, and never holding them."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from head_checks import EVERY_CONFIGURATION, make_head, queries, tiny_blocks, variables_of  # noqa: F401

from tfxc.losses import BinaryCrossentropy, SoftmaxCrossentropy, SquaredHinge
from tfxc.ops import library

LOSSES = pytest.mark.parametrize(
    "loss", [SoftmaxCrossentropy(), BinaryCrossentropy(), SquaredHinge()], ids=lambda loss: loss.name
)
LABELS = {
    "one": [[3], [0], [12], [3]],
    "padded": [[0, 5, -1], [-1, -1, -1], [12, 11, 4], [-1, 7, -1]],
    "none": [[], [], [], []],
}
WEIGHTS = tf.constant([1.0, 0.5, 0.0, 3.0])


@pytest.fixture(params=["as it runs", "blocks"], autouse=True)
def way(request):
    """By the compiled op, where there is one, and in blocks."""
    with library.stock_ops() if request.param == "blocks" else contextlib.nullcontext():
        yield request.param


def streamed(layer, loss, query, labels):
    reduced, positives = layer.reduce_classes(query, labels, loss)
    return loss.reduce(loss.combine(reduced, positives, labels >= 0), WEIGHTS)


def plain(layer, loss, query, labels):
    return loss(labels, layer(query), WEIGHTS)


def gradients(function, layer, loss, query, labels):
    sources = [query, *variables_of(layer)]
    with tf.GradientTape() as tape:
        tape.watch(query)
        value = function(layer, loss, query, labels)
    return value, tape.gradient(value, sources)


def assert_equal_to_the_plain_loss(loss, name, labels, run):
    layer, query = make_head(name, 13, 5), tf.constant(queries(4, 5))
    labels = tf.constant(labels, tf.int32, shape=(4, len(labels[0])))
    value, got = run(streamed, layer, loss, query, labels)
    want_value, want = gradients(plain, layer, loss, query, labels)
    np.testing.assert_allclose(value, want_value, rtol=1e-5)
    for one, other in zip(got, want, strict=True):
        assert not isinstance(one, tf.IndexedSlices)
        np.testing.assert_allclose(one, tf.convert_to_tensor(other), rtol=1e-4, atol=1e-5)


@LOSSES
@EVERY_CONFIGURATION
def test_equals_the_plain_loss(tiny_blocks, loss, name):  # noqa: F811
    assert_equal_to_the_plain_loss(loss, name, LABELS["padded"], tf.function(gradients))


@LOSSES
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_equals_the_plain_loss_for_any_labels(tiny_blocks, loss, labels):  # noqa: F811
    assert_equal_to_the_plain_loss(loss, "bias", labels, gradients)


@LOSSES
def test_one_class_one_example_one_block(loss):
    layer, query, labels = make_head("bias", 1, 1), tf.constant([[0.7]]), tf.constant([[0]])
    with tf.GradientTape() as tape:
        reduced, positives = layer.reduce_classes(query, labels, loss)
        value = loss.combine(reduced, positives, labels >= 0)[0]
    want = loss([[0]], layer(query))
    np.testing.assert_allclose(value, want, atol=1e-6)
    assert [tuple(grad.shape) for grad in tape.gradient(value, variables_of(layer))] == [(1, 1), (1,)]


def test_no_examples():
    layer = make_head("bias", 9, 3)
    with tf.GradientTape() as tape:
        reduced, _ = layer.reduce_classes(tf.zeros([0, 3]), tf.zeros([0, 1], tf.int32), SoftmaxCrossentropy())
        total = tf.reduce_sum(reduced)
    for gradient in tape.gradient(total, variables_of(layer)):
        np.testing.assert_array_equal(gradient, tf.zeros_like(gradient))


def test_huge_logits(tiny_blocks):  # noqa: F811
    layer, query = make_head("plain", 13, 5), 1e4 * tf.constant(queries(4, 5))
    labels = tf.constant(LABELS["one"])
    value, got = gradients(streamed, layer, SoftmaxCrossentropy(), query, labels)
    want_value, want = gradients(plain, layer, SoftmaxCrossentropy(), query, labels)
    np.testing.assert_allclose(value, want_value, rtol=1e-5)
    np.testing.assert_allclose(got[1], tf.convert_to_tensor(want[1]), rtol=1e-3, atol=1e-2)


def all_shapes(concrete):
    """The static shape of every tensor of a function and of all functions it calls."""
    graphs = [concrete.graph, *(function.graph for function in concrete.graph._functions.values())]
    graphs = [graph for graph in graphs if graph is not None]
    return [tensor.shape for graph in graphs for op in graph.get_operations() for tensor in op.outputs]


@LOSSES
@EVERY_CONFIGURATION
def test_no_tensor_of_all_logits_in_either_direction(way, loss, name):
    """Beside table and gradient, no tensor is larger than one block of logits."""
    num_queries, num_classes, dim = 512, 40_000, 2
    layer = make_head(name, num_classes, dim)
    query = tf.constant(queries(num_queries, dim))
    labels = tf.zeros([num_queries, 1], tf.int32)

    @tf.function
    def step(query):
        with tf.GradientTape() as tape:
            tape.watch(query)
            reduced, positives = layer.reduce_classes(query, labels, loss)
            value = loss.reduce(loss.combine(reduced, positives, labels >= 0))
        return tape.gradient(value, [query, *variables_of(layer)])

    concrete = step.get_concrete_function(query)
    shapes = all_shapes(concrete)
    if way == "blocks":  # loop bodies too
        assert len(shapes) > sum(len(op.outputs) for op in concrete.graph.get_operations())
    assert any(num_queries in shape.as_list() for shape in shapes if shape.rank)
    table = layer.table_variable.shape.num_elements()
    for shape in shapes:
        if shape.is_fully_defined():
            assert shape.num_elements() <= max(table, num_queries * 8192), shape
        elif shape.rank:
            assert num_classes not in shape.as_list(), shape
