import gc
import threading

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from tensorflow.python.framework import ops

import tfxc
from tfxc._keras import keras
from tfxc.ops.custom_gradient import custom_gradient, kept_by_graph


def made():
    gc.collect()
    return {name for name in ops.gradient_registry.list() if name.startswith("CustomGradient-")}


@custom_gradient
def doubled(x):
    return tf.identity(x), lambda upstream: 2 * upstream


def recomputed(x):
    with kept_by_graph():
        return tf.recompute_grad(tf.square)(x)


@pytest.mark.parametrize(("function", "gradient"), [(doubled, 2.0), (recomputed, 6.0)])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(function, gradient, compiled):
    x, call = tf.Variable(3.0), tf.function(function) if compiled else function
    with tf.GradientTape() as tape:
        y = call(x)
    assert float(tape.gradient(y, x)) == gradient


@pytest.mark.parametrize("function", [doubled, recomputed])
def test_a_graph_differentiates_inside_and_outside(function):
    x = tf.Variable(3.0)

    @tf.function
    def inside():
        with tf.GradientTape() as tape:
            y = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, function(y)), (0, x.read_value()))[1]
        return tape.gradient(y, x)

    expected = 4.0 if function is doubled else 4 * 3.0**3
    assert float(inside()) == expected
    with tf.GradientTape() as tape:
        y = tf.function(lambda: function(function(x)))()
    assert float(tape.gradient(y, x)) == expected


@pytest.mark.parametrize("function", [doubled, recomputed])
def test_nothing_stays_of_a_graph_that_is_gone(function):
    before = made()
    call = tf.function(function)
    call(tf.constant(3.0))
    assert made() > before
    del call
    assert made() == before


def looped(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, tf.nn.silu(y)), (0, x))[1]


def branched(x):
    return tf.cond(x > 0, lambda: tf.nn.silu(x), lambda: x)


def chosen(x):
    return tf.switch_case(tf.cast(x, tf.int32), [lambda: x, lambda: tf.nn.silu(x)])


def called(x):
    return tf.function(tf.recompute_grad(looped))(x)


def gradient_at_one(function):
    return float(gradient_of(function, tf.constant(1.0)))


def gradient_of(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


@pytest.mark.parametrize("function", [looped, branched, chosen, called])
def test_nothing_stays_of_loops_branches_and_functions(function):
    expected, before = gradient_at_one(function), made()

    @tf.function
    def step(x):
        with kept_by_graph():
            return gradient_of(function, x)

    assert float(step(tf.constant(1.0))) == pytest.approx(expected)
    assert made() > before
    del step
    assert made() == before


def test_a_function_keeps_its_gradient_when_what_traced_it_is_gone():
    inner = tf.function(tf.nn.silu)

    @tf.function
    def outer(x):
        with kept_by_graph():
            return inner(x)

    outer(tf.constant(1.0))
    before = made()
    del outer
    assert made() == before
    assert gradient_at_one(inner) == gradient_at_one(tf.nn.silu)


def test_what_another_thread_traces_meanwhile_keeps_its_gradient():
    opened, other_done = threading.Event(), threading.Event()

    @tf.function
    def step(x):
        with kept_by_graph():
            opened.set()
            other_done.wait()
            return x + 1

    thread = threading.Thread(target=step, args=[tf.constant(1.0)])
    thread.start()
    opened.wait()
    other = tf.function(tf.nn.silu)
    other(tf.constant(1.0))
    other_done.set()
    thread.join()
    del step, thread
    gc.collect()
    assert gradient_at_one(other) == gradient_at_one(tf.nn.silu)


class Own(tfxc.layers.Head):
    def build(self, shape):
        self.query_dim = self.effective_dim = shape[-1]
        self.table = self.add_weight(shape=(self.num_classes, shape[-1]), name="table")
        self.built = True

    def effective_query(self, query):
        return tf.cast(query, tf.float32)

    def class_vectors_of(self, class_ids):
        return tf.gather(self.table, class_ids)


def silu_encoder():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation=tf.nn.silu)])


@pytest.mark.parametrize(
    ("make_head", "num_negatives"),
    long_after(
        1,
        (lambda: tfxc.layers.DenseHead(50), None),
        (lambda: tfxc.layers.DenseHead(50, table_dtype="bfloat16"), 5),
        (lambda: tfxc.layers.UniformSparseHead(50, fan_in=2), None),
        (lambda: Own(50), None),
        (lambda: tfxc.layers.EncodedHead(silu_encoder(), np.ones([50, 4], np.float32)), 5),
    ),
    ids=["dense", "bfloat16", "sparse", "own", "encoded"],
)
def test_nothing_stays_of_a_model_that_was_trained_and_asked(make_head, num_negatives):
    x, y, before = np.ones([8, 4], np.float32), np.arange(8), made()
    encoder, head = silu_encoder(), make_head()
    sampler = None if num_negatives is None else tfxc.samplers.Uniform(num_negatives, shared=True)
    model = tfxc.ExtremeClassifier(encoder, head, sampler, k=3)
    optimizers = keras.optimizers.Adam(), (tfxc.optimizers.LazyAdam(), head)
    model.compile(tfxc.optimizers.MultiOptimizer(*optimizers), loss=tfxc.losses.SoftmaxCrossentropy())
    model.fit(x, y, validation_data=(x, y), verbose=0)
    model.predict(x, verbose=0)
    model.rank(x, 3)
    assert made() > before
    del model, encoder, head, sampler, optimizers
    assert made() == before


def train_by_a_loop(make_optimizer):
    encoder, head = keras.layers.Dense(4), tfxc.layers.DenseHead(50)
    encoder.build((None, 4))
    head.build((None, 4))
    optimizer, loss = make_optimizer(head), tfxc.losses.SoftmaxCrossentropy()
    variables = [*encoder.trainable_variables, *head.trainable_variables]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            total = tf.reduce_mean(tfxc.head_loss(head, loss, encoder(x), y))
        optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))

    step(tf.ones([8, 4]), tf.range(8)[:, tf.newaxis])
    return made()


@pytest.mark.long
@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda head: tfxc.optimizers.LazyAdam(),
        lambda head: tfxc.optimizers.MultiOptimizer(
            keras.optimizers.Adam(), (tfxc.optimizers.LazySGD(), head)
        ),
    ],
    ids=["lazy", "multi"],
)
def test_nothing_stays_of_a_loop_of_ones_own(make_optimizer):
    before = made()
    assert train_by_a_loop(make_optimizer) > before
    assert made() == before
