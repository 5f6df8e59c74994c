from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, make_model
from head_checks import check_logits, queries
from sampler_checks import built

from tfxc import losses, samplers
from tfxc._keras.weights import tf_variable
from tfxc.hashing.universal import UniversalHash, universal_coefficients
from tfxc.layers import MACHHead
from tfxc.ops.library import stock_ops

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
EVERY_DECODER = pytest.mark.parametrize("decoder", ["mean", "min", "median", "geometric", "unbiased"])
EVERY_ACTIVATION = pytest.mark.parametrize("activation", ["softmax", "sigmoid"])


def make_head(num_classes=20, num_buckets=6, num_repetitions=3, decoder="mean", dim=5, **options):
    options = {"seed": 1, "kernel_initializer": "orthogonal", "bias_initializer": "normal", **options}
    return built(MACHHead(num_classes, num_buckets, num_repetitions, decoder, **options), None, dim)


def numpy_buckets(head):
    """Bucket [R, L] of every class, by integers of any size."""
    hashes, prime = tf_variable(head.hashes).numpy(), head.family.prime
    buckets = [[(int(a) * i + int(b)) % prime for i in range(head.num_classes)] for a, b, _ in hashes]
    return np.array(buckets) % head.num_buckets


def numpy_tables(head, query):
    """Probabilities [N, R, M] of the buckets in float64."""
    query, bias = np.asarray(query, np.float64), tf_variable(head.bias).numpy()
    parts = np.split(query, head.num_groups, axis=1)
    logits = [part @ tf_variable(kernel).numpy() for part, kernel in zip(parts, head.kernels, strict=True)]
    logits = (np.concatenate(logits, 1) + bias).reshape(len(query), head.num_repetitions, -1)
    if head.activation == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def numpy_scores(head, query):
    """Scores [N, L] in float64."""
    tables, buckets = numpy_tables(head, query), numpy_buckets(head)
    values = np.stack([tables[:, r, own] for r, own in enumerate(buckets)])
    if head.decoder == "unbiased":
        chance = head.family.collision_probability
        return (values.mean(0) - chance) / (1 - chance)
    if head.decoder == "geometric":
        return np.exp(np.log(values).mean(0))
    return {"mean": np.mean, "min": np.min, "median": np.median}[head.decoder](values, axis=0)


@EVERY_DECODER
@EVERY_ACTIVATION
@pytest.mark.parametrize("shape", [(1, 2, 1), (20, 6, 3)])
def test_every_way_to_a_score_agrees(shape, decoder, activation):
    if (decoder, activation) == ("unbiased", "sigmoid"):
        pytest.skip("refused")
    head, query = make_head(*shape, decoder, activation=activation), queries(4, 5)
    want = numpy_scores(head, query)
    check_logits(head, query, want, **CLOSE)


def test_groups_read_their_own_part_of_the_query():
    head, query = make_head(num_repetitions=4, dim=6, num_groups=2), queries(3, 6)
    np.testing.assert_allclose(head(query), numpy_scores(head, query), **CLOSE)
    before = head.bucket_logits(query).numpy()
    after = head.bucket_logits(query * np.float32([1, 1, 1, 0, 0, 0])).numpy()
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[:, 2:] != after[:, 2:]).all()


def test_groups_start_from_weights_of_their_own_or_those_of_a_function():
    head = built(MACHHead(20, 6, 2, num_groups=2), None, 4)
    assert (head.get_weights()[0] != head.get_weights()[1]).any()
    head = make_head(num_groups=3, dim=6, kernel_initializer=lambda shape, dtype=None: tf.fill(shape, 0.5))
    assert all((tf_variable(kernel).numpy() == 0.5).all() for kernel in head.kernels)


@EVERY_DECODER
@pytest.mark.parametrize("ops", ["compiled", "stock", "probed"])
def test_the_best_of_all(tiny_blocks, decoder, ops):
    head = make_head(50, 12, 3, decoder, num_probes=12 if ops == "probed" else None)
    query, exclude = queries(4, 5), np.int32([[1, 2], [-1, 7], [-1, -1], [49, 0]])
    scores = numpy_scores(head, query)
    for row, ids in enumerate(exclude):
        scores[row, ids[ids >= 0]] = -np.inf
    want = -np.sort(-scores, axis=1)[:, :6]
    with nullcontext() if ops == "compiled" else stock_ops():
        found, ids = head.top_k(query, 6, exclude)
    np.testing.assert_allclose(found, want, **CLOSE)
    np.testing.assert_allclose(np.take_along_axis(scores, ids.numpy(), 1), want, **CLOSE)
    assert all(len(set(row)) == 6 for row in ids.numpy())


def test_fewer_classes_are_left_than_asked_for():
    for decoder in ("mean", "geometric", "unbiased"):
        scores, ids = make_head(3, 4, 2, decoder).top_k(queries(1, 5), 3, [[0, 2]])
        assert ids.numpy().tolist() == [[1, -1, -1]] and np.isneginf(scores[0, 1:]).all()


@pytest.mark.parametrize("num_probes", [None, 4])
def test_probabilities_that_are_none_to_float32_and_those_that_are_nan(num_probes):
    head = make_head(9, 4, 2, "geometric", num_probes=num_probes)
    head.bias.assign(np.float32([0, -500, 0, -50, 0, 0, -500, -50]))
    query = queries(3, 5) * np.float32([[1], [np.nan], [1]])
    logs = np.log(np.maximum(numpy_tables(head, query[::2]), np.exp(-87.0)))
    want = np.exp(np.mean([logs[:, r, own] for r, own in enumerate(numpy_buckets(head))], axis=0))
    scores, ids = head.top_k(query, 9)
    np.testing.assert_allclose(scores[::2], -np.sort(-want, axis=1), rtol=1e-4, atol=1e-37)
    assert np.isneginf(scores[1]).all() and (ids[1].numpy() == -1).all()


def test_the_loss_is_the_mean_over_repetitions_of_that_over_buckets():
    head, query = make_head(20, 3, 4, activation="sigmoid"), queries(5, 5)
    several = [0, 1, 2, 3, 4], [5, -1, -1, -1, -1], [-1] * 5, [7, 8, -1, 9, -1], [19, 18, 17, 16, 15]
    labels = np.int32(several)
    buckets, applies = numpy_buckets(head), numpy_tables(head, query)
    head.activation = "softmax"
    share = np.log(numpy_tables(head, query))
    binary, softmax, decoupled = np.zeros((5, 4)), np.zeros((5, 4)), np.zeros((5, 4))
    for n, r in np.ndindex(5, 4):
        own = [buckets[r, label] for label in labels[n] if label >= 0]
        target = np.isin(np.arange(3), own)
        binary[n, r] = -np.log(np.where(target, applies[n, r], 1 - applies[n, r])).sum()
        softmax[n, r] = -np.mean(share[n, r, own]) if own else 0
        others = np.exp(share[n, r])[~target].sum()
        own = list(set(own))
        decoupled[n, r] = np.mean(np.log1p(others / np.exp(share[n, r, own]))) if own else 0
    for loss, want in (
        (losses.BinaryCrossentropy(), binary),
        (losses.SoftmaxCrossentropy(), softmax),
        (losses.SoftmaxCrossentropy(decoupled=True), decoupled),
    ):
        np.testing.assert_allclose(head.losses(query, tf.constant(labels), loss), want.mean(1), **CLOSE)
    found, best = head.losses_and_best(query, tf.constant(labels), losses.SoftmaxCrossentropy(), 4)
    np.testing.assert_allclose(found, softmax.mean(1), **CLOSE)
    np.testing.assert_array_equal(best, head.top_k(query, 4))


@pytest.mark.parametrize("num_queries", [0, 3])
def test_no_labels_at_all(num_queries):
    labels = tf.zeros([num_queries, 0], tf.int32)
    found = make_head().losses(queries(num_queries, 5), labels, losses.SoftmaxCrossentropy())
    assert found.numpy().tolist() == [0.0] * num_queries


@pytest.mark.parametrize(
    ("activation", "sampler", "loss", "message"),
    [
        ("softmax", samplers.Uniform(5), None, "3 x 6 buckets in every step.*Uniform.*sampler=None"),
        ("softmax", None, losses.BinaryCrossentropy(), "not suit Binary.*: give it activation='sigmoid'"),
        ("softmax", None, losses.SquaredHinge(), "not suit SquaredHinge: give it activation='sigmoid'"),
        ("sigmoid", None, losses.SoftmaxCrossentropy(), "not suit Soft.*: give it activation='softmax'"),
        ("softmax", None, losses.SoftmaxAtK(k=5), "needs a sampler, but MACHHead takes none: take Soft"),
    ],
)
def test_what_does_not_suit_the_head_is_refused(activation, sampler, loss, message):
    with pytest.raises(ValueError, match=message):
        make_model(sampler, loss, MACHHead(NUM_CLASSES, 6, 3, activation=activation))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"num_buckets": bad}, "num_buckets must be an integer of at least 1") for bad in (0, 2.0)),
        ({"num_buckets": 1, "decoder": "unbiased"}, "num_buckets must be an integer of at least 2"),
        ({"activation": "sigmoid", "decoder": "unbiased"}, 'needs activation="softmax".*decoder="mean"'),
        ({"num_repetitions": 0}, "num_repetitions"),
        ({"first_repetition": -1}, "first_repetition"),
        ({"seed": -1}, "seed"),
        ({"num_groups": 2}, "3 repetitions cannot be split into 2"),
        ({"num_probes": 7}, r"num_probes must be None or in \[1, 6\]"),
        *(({"num_probes": bad}, "num_probes must be an integer") for bad in (0, 1.5)),
        ({"decoder": "max"}, "decoder must be one of"),
        ({"activation": "relu"}, "activation must be one of"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        MACHHead(**{"num_classes": 20, "num_buckets": 6, "num_repetitions": 3, **options})


def test_a_query_that_cannot_be_split_a_bad_class_and_probes_that_are_no_count():
    with pytest.raises(ValueError, match="width 5 cannot be split into 3 equal groups"):
        make_head(num_groups=3)
    head = make_head(num_probes=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"class id is outside \[0, 20\)"):
        head.score(queries(1, 5), tf.constant([[20]]))
    for probes in (2.9, 0):
        with pytest.raises(ValueError, match="num_probes must be"):
            head.top_k(queries(1, 5), 2, num_probes=probes)


def test_the_summary_tells_the_memory(capsys):
    make_model(head=MACHHead(NUM_CLASSES, 6, 3, seed=0)).summary()
    printed = capsys.readouterr().out
    assert "Head: 25 classes in 0.0 MB of weights (a dense head: 0.0 MB)" in printed
    assert "share all 3 buckets is at most 1." in printed
    # Before it is built, it tells of its buckets alone.
    assert MACHHead(25, 6, 3).describe().startswith("Head: 25 classes in 0.0 MB of weights. The chance that")


def test_the_unbiased_decoder_is_right_on_average():
    """Theorem 1: over the draw of the hash functions, the mean error of every class is 0."""
    num_classes, num_buckets, num_repetitions = 40, 5, 4000
    random = np.random.default_rng(0)
    true = random.dirichlet(np.full(num_classes, 0.3))
    coefficients = universal_coefficients(num_classes, range(num_repetitions), seed=0)
    family = UniversalHash(tf.constant(coefficients), num_classes, num_buckets)
    buckets = family.buckets(tf.range(num_classes)).numpy()
    tables = np.stack([np.bincount(row, true, num_buckets) for row in buckets])
    head = make_head(num_classes, num_buckets, 1, "unbiased")
    decoded = head._finished(np.take_along_axis(tables, buckets, 1))
    error = decoded - true
    standard_error = error.std(0, ddof=1) / num_repetitions**0.5
    assert (np.abs(error.mean(0)) < 3.5 * standard_error).all()
    assert (np.abs(error.mean(0)) < 3 * standard_error).mean() >= 0.95
    # The plain mean is too high, by the chance of a collision with any other class.
    biased = np.take_along_axis(tables, buckets, 1).mean(0) - true
    np.testing.assert_allclose(biased, (1 - true) / num_buckets, rtol=0.2)
