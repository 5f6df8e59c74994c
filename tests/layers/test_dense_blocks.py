import numpy as np
import pytest
import tensorflow as tf
from head_checks import CONFIGURATIONS, gradient_error, make_head, queries, variables_of
from long_cases import long_after
from memory_checks import all_shapes, with_peak

from tfxc import ExtremeClassifier
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.losses import BinaryCrossentropy, SoftmaxCrossentropy, SquaredHinge
from tfxc.optimizers import LazyAdam

pytestmark = pytest.mark.usefixtures("path")  # by the op, and by blocks
SMOOTHED = [loss(label_smoothing=0.2, name="smoothed") for loss in (SoftmaxCrossentropy, BinaryCrossentropy)]
LOSSES = pytest.mark.parametrize(
    "loss",
    [SoftmaxCrossentropy(), BinaryCrossentropy(), SquaredHinge(), *SMOOTHED],
    ids=lambda loss: loss.name,
)
# Reading classes and reducing logits meet in a block of logits alone: each of both, no pairs.
LOSS_OR_CONFIGURATION = pytest.mark.parametrize(
    ("loss", "name"),
    [
        pytest.param(loss, name, marks=[pytest.mark.traced] * (name == "plain"), id=f"{loss.name}-{name}")
        for loss, names in (
            (SoftmaxCrossentropy(), CONFIGURATIONS),
            (BinaryCrossentropy(), ("plain", "tied all")),
            (SquaredHinge(), ("plain", "tied all")),
        )
        for name in names
    ],
)
LABELS = {
    "one": [[3], [0], [12], [3]],
    "padded": [[0, 5, -1], [-1, -1, -1], [12, 11, 4], [-1, 7, -1]],
    "none": [[], [], [], []],
}
WEIGHTS = tf.constant([1.0, 0.5, 0.0, 3.0])


def streamed(layer, loss, query, labels):
    return loss.reduce(loss.combine(*layer.reduce(query, labels, loss), labels >= 0), WEIGHTS)


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
        is_rounded = one.dtype == tf.bfloat16  # and joined with those of lookups, not added
        assert isinstance(one, tf.IndexedSlices) == is_rounded
        one, other = (tf.cast(tf.convert_to_tensor(part), tf.float32).numpy() for part in (one, other))
        # Where two numbers of float32 round to neighbours in bfloat16, that is a unit in the last place.
        rtol = 2.0**-7 if is_rounded else 1e-4
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-5)
        assert np.isclose(one, other, rtol=1e-4, atol=1e-5).mean() > 0.95


@LOSS_OR_CONFIGURATION
def test_equals_the_plain_loss(tiny_blocks, loss, name):
    run = tf.function(gradients) if name == "plain" else gradients
    assert_equal_to_the_plain_loss(loss, name, LABELS["padded"], run)


@LOSSES
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_equals_the_plain_loss_for_any_labels(tiny_blocks, loss, labels):
    assert_equal_to_the_plain_loss(loss, "bias", labels, gradients)


@LOSSES
def test_one_class_one_example_one_block(loss):
    layer, query, labels = make_head("bias", 1, 1), tf.constant([[0.7]]), tf.constant([[0]])
    with tf.GradientTape() as tape:
        value = loss.combine(*layer.reduce(query, labels, loss), labels >= 0)[0]
    np.testing.assert_allclose(value, loss([[0]], layer(query)), atol=1e-6)
    assert [tuple(grad.shape) for grad in tape.gradient(value, variables_of(layer))] == [(1, 1), (1,)]


@pytest.mark.parametrize(
    "loss",
    [SoftmaxCrossentropy(decoupled=True), SoftmaxCrossentropy(), BinaryCrossentropy(), SquaredHinge()],
    ids=["decoupled", "softmax", "bce", "hinge"],
)
@pytest.mark.parametrize("function", [streamed, plain])
def test_a_class_that_is_switched_off_is_not_what_padding_reads(loss, function):
    layer, query = make_head("bias", 13, 5), tf.constant(queries(4, 5))
    tf_variable(layer.bias).assign([-np.inf] + 12 * [0.0])
    labels = tf.constant([[5, -1], [-1, -1], [12, 11], [-1, 7]])
    value, got = gradients(function, layer, loss, query, labels)
    assert np.isfinite(value)
    for gradient in got:
        assert np.isfinite(tf.convert_to_tensor(gradient)).all()


def test_no_examples():
    layer = make_head("bias", 9, 3)
    with tf.GradientTape() as tape:
        reduced, _ = layer.reduce(tf.zeros([0, 3]), tf.zeros([0, 1], tf.int32), SoftmaxCrossentropy())
        total = tf.reduce_sum(reduced)
    for gradient in tape.gradient(total, variables_of(layer)):
        np.testing.assert_array_equal(gradient, tf.zeros_like(gradient))


def test_huge_logits(tiny_blocks):
    layer, query = make_head("plain", 13, 5), 1e4 * tf.constant(queries(4, 5))
    given = layer, SoftmaxCrossentropy(), query, tf.constant(LABELS["one"])
    (value, got), (want_value, want) = (gradients(function, *given) for function in (streamed, plain))
    np.testing.assert_allclose(value, want_value, rtol=1e-5)
    np.testing.assert_allclose(got[1], tf.convert_to_tensor(want[1]), rtol=1e-3, atol=1e-2)


FILTERED_LABELS = [[3, 300, -1], [-1, -1, -1], [199, 0, 97], [-1, 250, -1]]


def filtered_reference(layer, query, labels, threshold):
    """The gradients of ``streamed`` in float64, the logits' masked by tiles; and what classes have one."""
    raw = [tf.cast(variable, tf.float64) for variable in (*variables_of(layer), query)]
    with tf.GradientTape() as tape:
        tape.watch(raw)
        table, *bias, wide = raw
        rows = table[layer.row_offset :][: layer.num_classes]
        if layer.normalize:
            rows, wide = tf.math.l2_normalize(rows, 1), tf.math.l2_normalize(wide, 1)
        logits = tf.matmul(wide, rows, transpose_b=True) / layer.temperature
        logits = logits + bias[0] if bias else logits
        tape.watch(logits)
        positives = tf.gather(logits, tf.maximum(labels, 0), batch_dims=1)
        losses = SoftmaxCrossentropy().combine(tf.zeros([4], tf.float64), positives, labels >= 0)
        of_labels = tf.reduce_sum(losses * tf.cast(WEIGHTS, tf.float64)) / 4
        probs = tf.nn.softmax(logits)
        padded = tf.pad(probs, [[0, 0], [0, -layer.num_classes % 96]])
        left = tf.reduce_max(tf.reshape(padded, [4, -1, 96]), 2) >= threshold
        left = tf.repeat(left, 96, axis=1)[:, : layer.num_classes]
        has_label = tf.cast(tf.reduce_any(labels >= 0, 1), tf.float64) * tf.cast(WEIGHTS, tf.float64) / 4
        slopes = tf.where(left, probs, 0.0) * has_label[:, tf.newaxis]
        total = of_labels + tf.reduce_sum(tf.stop_gradient(slopes) * logits)
    touched = {*np.flatnonzero(tf.reduce_any(left, 0)), *labels.numpy()[labels >= 0]}
    *grads, d_query = tape.gradient(total, raw)
    return [d_query, *grads], touched


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("name", "threshold"),
    long_after(2, ("bfloat16", 0.2), ("all", 1e-30), ("tied all", 0.2), ("plain", 1e-30))
    + long_after(0, *((name, 0.2) for name in CONFIGURATIONS if name not in ("tied all", "bfloat16"))),
)
def test_filtered_gradients(tiny_blocks, name, threshold):
    layer, query = make_head(name, 301, 5), tf.constant(2 * queries(4, 5))
    labels, loss = tf.constant(FILTERED_LABELS), SoftmaxCrossentropy(filter_below=threshold)
    value, (d_query, *got) = gradients(streamed, layer, loss, query, labels)
    want_value, exact = gradients(streamed, layer, SoftmaxCrossentropy(), query, labels)
    np.testing.assert_allclose(value, want_value, rtol=1e-6)
    error = gradient_error(name)
    (want_query, *want), touched = filtered_reference(layer, query, labels, threshold)
    np.testing.assert_allclose(d_query, want_query, rtol=1e-4, atol=1e-5)
    for one, other, shift in zip(got, want, (layer.row_offset, 0), strict=False):
        assert isinstance(one, tf.IndexedSlices)
        assert {*(one.indices.numpy() - shift)} == touched
        np.testing.assert_allclose(tf.convert_to_tensor(one), other, rtol=error, atol=error / 10)
    if threshold < 1e-20:
        for one, other in zip((d_query, *got), exact, strict=True):
            one, other = map(tf.convert_to_tensor, (one, other))
            np.testing.assert_allclose(one, other, rtol=error, atol=error / 100)


def test_padding_touches_no_class():
    layer, labels = make_head("bias", 301, 5), tf.fill([4, 2], -1)
    loss = SoftmaxCrossentropy(filter_below=0.9999)
    _, (_, *got) = gradients(streamed, layer, loss, tf.constant(queries(4, 5)), labels)
    assert [one.indices.shape[0] for one in got] == [0, 0]


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("loss", "name"),
    long_after(
        3,
        *((SoftmaxCrossentropy(), name) for name in ("plain", "tied bfloat16")),
        (SquaredHinge(), "plain"),
        *((SoftmaxCrossentropy(), name) for name in ("tied all", "bfloat16")),
        (BinaryCrossentropy(), "plain"),
    ),
    ids=lambda part: getattr(part, "name", part),
)
def test_no_tensor_of_all_logits_in_either_direction(path, loss, name):
    num_queries, num_classes, dim = 512, 40_000, 2
    layer = make_head(name, num_classes, dim)
    query = tf.constant(queries(num_queries, dim))
    labels = tf.zeros([num_queries, 1], tf.int32)

    @tf.function
    def step(query):
        with tf.GradientTape() as tape:
            tape.watch(query)
            value = loss.reduce(loss.combine(*layer.reduce(query, labels, loss), labels >= 0))
        return tape.gradient(value, [query, *variables_of(layer)])

    concrete = step.get_concrete_function(query)
    shapes = all_shapes(concrete)
    if path == "stock":  # loop bodies too
        assert len(shapes) > sum(len(op.outputs) for op in concrete.graph.get_operations())
    check_sizes(shapes, layer, num_queries)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("with_losses", "name"),
    long_after(1, (True, "bfloat16"), (False, "tied all"), (False, "plain"), (True, "plain")),
)
def test_no_tensor_of_all_logits_where_the_best_are_found(with_losses, name):
    num_queries, num_classes, dim = 512, 40_000, 2
    layer = make_head(name, num_classes, dim)

    def found(query):
        exclude, labels = tf.zeros([len(query), 3], tf.int32), tf.zeros([len(query), 1], tf.int32)
        if not with_losses:
            return layer.top_k(query, 5, exclude)
        return layer.losses_and_best(query, labels, SoftmaxCrossentropy(), 5, exclude)

    query = tf.constant(queries(num_queries, dim))
    check_sizes(all_shapes(tf.function(found).get_concrete_function(query)), layer, num_queries)
    # No graph knows how many classes are in a block. 4096 rows of all logits would be 655 MB.
    query = tf.constant(queries(4096, dim))
    assert with_peak(lambda: found(query))[1] < 300e6


def check_sizes(shapes, layer, num_queries):
    assert any(num_queries in shape.as_list() for shape in shapes if shape.rank)
    table = layer.table_variable.shape.num_elements()
    for shape in shapes:
        if shape.is_fully_defined():
            assert shape.num_elements() <= max(table, num_queries * 8192), shape
        elif shape.rank:
            assert layer.num_classes not in shape.as_list(), shape


@pytest.mark.parametrize(("name", "rtol"), [("bfloat16", 1e-5), ("tied bfloat16", 2e-2)])
@pytest.mark.parametrize("wrap", [lambda f: f, pytest.param(tf.function, marks=pytest.mark.traced)])
def test_all_logits_are_those_of_the_whole_at_once(tiny_blocks, name, rtol, wrap):
    layer, query = make_head(name, 29, 4), tf.constant(queries(3, 4))
    variables, upstream = variables_of(layer), tf.constant(queries(3, 29, seed=2))

    def at_once(query):
        return tf.matmul(layer.effective_query(query), layer.class_vectors(0, 29), transpose_b=True)

    @wrap
    def results(function):
        with tf.GradientTape() as tape:
            tape.watch(query)
            logits = function(query)
        return [logits, *tape.gradient(logits, [query, *variables], output_gradients=upstream)]

    found = results(layer)
    kind, dtype = (tf.Tensor, tf.float32) if name == "bfloat16" else (tf.IndexedSlices, tf.bfloat16)
    assert isinstance(found[2], kind) and found[2].dtype == dtype
    for both in zip(found, results(at_once), strict=True):
        one, other = (tf.cast(tf.convert_to_tensor(own), tf.float32) for own in both)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol / 10)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("path", ["compiled"], indirect=True)  # by blocks the gradients are the same
def test_filtered_training_goes_where_exact_training_goes():
    random = np.random.default_rng(0)
    centres = random.normal(size=(400, 16))
    y = random.integers(0, 400, 2000)
    x = (centres[y] + 0.3 * random.normal(size=(2000, 16))).astype(np.float32)
    encoder = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
    model = ExtremeClassifier(encoder, DenseHead(400))

    def train(epochs, threshold=None):
        keras.utils.set_random_seed(0)
        model.compile(LazyAdam(0.02), loss=SoftmaxCrossentropy(filter_below=threshold))
        model.fit(x[:1500], y[:1500], batch_size=50, epochs=epochs, verbose=0)

    train(3)
    start, losses = model.get_weights(), {}
    for threshold in (None, 2**-8):
        model.set_weights(start)
        train(5, threshold)
        losses[threshold] = model.evaluate(x[1500:], y[1500:], verbose=0, return_dict=True)["loss"]
    exact, filtered = losses.values()
    assert abs(filtered - exact) < 0.1 * exact + 0.02, losses
