import itertools

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import (
    all_probs,
    built,
    check_distribution,
    clustered,
    head_of,
    log_expected_count,
    p_value,
    queries,
    refreshed,
    sample,
)

import tfxc
from tfxc import class_vectors
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.samplers import LSH, Mixture, Uniform

FAMILIES = {
    "simhash": {},
    "narrow buckets": {"num_tables": 5, "num_bits": 9},
    "dwta": {"family": "dwta"},
    "dwta of 6 bits": {"family": "dwta", "num_bits": 6, "num_tables": 3},
}


def made(num_negatives, vectors, is_refreshed=True, **options):
    sampler = LSH(num_negatives, seed=5, **options)
    return refreshed(sampler, vectors) if is_refreshed else built(sampler, *vectors.shape)


def counts_of(sampler, query, labels):
    """Expected counts [N, L] of all classes."""
    ids = tf.tile(tf.range(sampler.num_classes)[tf.newaxis], [len(query), 1])
    return np.exp(log_expected_count(sampler, tf.constant(query), tf.constant(labels), ids))


def label_probs(sampler, labels):
    """Q [L] by hand, of one query with these labels."""
    codes = tf_variable(sampler.codes).numpy()
    probs = np.zeros(len(codes))
    for label in labels:
        for table in range(sampler.num_tables):
            inside = codes[:, table] == codes[label, table]
            probs += inside / inside.sum() / sampler.num_tables / len(labels)
    return sampler.uniform_fraction / len(codes) + (1 - sampler.uniform_fraction) * probs


@pytest.mark.parametrize(
    ("num_classes", "family"), long_after(5, *itertools.product((50, 1, 1000), FAMILIES))
)
def test_distribution_before_and_after_refresh(family, num_classes):
    vectors = clustered(num_classes, 7)
    sampler = made(10, vectors, is_refreshed=False, **FAMILIES[family])
    np.testing.assert_allclose(all_probs(sampler, queries(1, 7)), 1 / num_classes, rtol=1e-5)
    check_distribution(sampler, 7)
    sampler.refresh(head_of(vectors))
    check_distribution(sampler, 7)


@pytest.mark.long
def test_distribution_over_many_classes():
    sampler = made(50, clustered(20_000, 16, num_clusters=40))
    check_distribution(sampler, 16, num_draws=1_000_000)


@pytest.mark.parametrize("is_refreshed", [False, True])
def test_shared_draws_come_from_the_mean_query(is_refreshed):
    vectors = clustered(60, 6)
    sampler = made(50_000, vectors, is_refreshed, shared=True)
    check_distribution(sampler, 6, num_draws=400_000)
    query, alone = queries(4, 6), made(5, vectors, is_refreshed)
    want = all_probs(alone, query.mean(0, keepdims=True))
    np.testing.assert_allclose(all_probs(sampler, query), want, rtol=1e-5)
    labels = tf.constant([[4, 1], [2, -1]])
    count = log_expected_count(sampler, tf.constant(query), labels, labels)
    np.testing.assert_allclose(np.exp(count), 50_000 * want[0][[[4, 1], [2, 0]]], rtol=1e-4)


def test_queries_find_their_cluster():
    centres = np.eye(6, dtype=np.float32).repeat(100, axis=0) + 0.05 * queries(600, 6)
    probs = all_probs(made(5, centres, num_tables=30), np.eye(6))
    inside = probs.reshape(6, 6, 100).sum(2)
    assert inside.argmax(1).tolist() == list(range(6)) and inside.diagonal().min() > 0.4


@pytest.mark.parametrize("labels", [[7], [7, 30], [-1, 7, -1, 30]])
def test_label_queries_look_into_the_buckets_of_the_labels(labels):
    sampler = made(40, clustered(200, 6), query="label")
    query, rows = queries(1, 6), np.int32([labels])
    want = label_probs(sampler, [label for label in labels if label >= 0])
    counts = counts_of(sampler, query, rows)
    np.testing.assert_allclose(counts, 40 * want[np.newaxis], rtol=1e-5)
    assert want[7] > 3 / 200
    many = tf.repeat(tf.constant(rows), 2000, axis=0)
    ids, counted = sample(sampler, tf.zeros([2000, 6]), many)
    np.testing.assert_allclose(np.exp(counted), 40 * want[ids.numpy()], rtol=1e-5)
    assert p_value(ids.numpy().ravel(), want) > 1e-3


def test_without_labels_label_queries_are_uniform():
    sampler = made(3, clustered(20, 6), query="label")
    np.testing.assert_allclose(counts_of(sampler, queries(1, 6), [[-1, -1]]), 3 / 20, rtol=1e-5)


@pytest.mark.parametrize("query", ["embedding", "label"])
@pytest.mark.parametrize("is_refreshed", [False, True])
def test_a_union_takes_six_classes_of_each_table_and_four_of_all(query, is_refreshed):
    options = {"num_tables": 6, "query": query, "candidates": "union"}  # (40 − 4 uniform) // 6 tables
    sampler = made(40, clustered(80, 6), is_refreshed, **options)
    base, labels = queries(1, 6), np.int32([[3, 11]])
    ids, counted = sample(sampler, tf.repeat(base, 100, axis=0), tf.repeat(labels, 100, axis=0))
    ids, expected = ids.numpy(), counts_of(sampler, base, labels)[0]
    np.testing.assert_allclose(np.exp(counted)[ids >= 0], expected[ids[ids >= 0]], rtol=1e-5)
    assert (ids[:, 36:] >= 0).all()
    assert all(len({*row[row >= 0]}) == sum(row >= 0) for row in ids[:, :36])


CHANGES = {  # of class vectors, and the number of these that must be hashed
    "rows": (lambda vectors: vectors[5:18:12, :6].fill(0.3), 2),
    "a last bit": (lambda vectors: np.nextafter(vectors[8, 2:3], 9, out=vectors[8, 2:3]), 1),
    "biases": (lambda vectors: vectors[100:103, 6].fill(1), 3),
    "places": (lambda vectors: vectors.put(range(14), vectors[[1, 0]]), 2),
    "all": (lambda vectors: np.negative(vectors, out=vectors), 300),
    "nothing": (lambda vectors: None, 0),
}


@pytest.mark.parametrize(
    ("family", "change"), long_after(len(CHANGES) + 1, *itertools.product(("simhash", "dwta"), CHANGES))
)
def test_a_refresh_hashes_what_changed_and_gives_the_tables_of_a_whole_one(monkeypatch, family, change):
    """Each vector lies on the border of a bit of SimHash, so how a product is rounded decides on that bit."""
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 70)
    options = {"num_tables": 60, "num_bits": 5, "family": family, "seed": 5}
    sampler, whole, resumed = (built(LSH(5, **options), 300, 7) for _ in range(3))
    vectors = queries(300, 7)
    if family == "simhash":
        normals = tf_variable(sampler.projections).numpy().T
        vectors -= normals * ((vectors * normals).sum(1) / np.square(normals).sum(1))[:, np.newaxis]
    head = head_of(vectors[:, :6], use_bias=True)
    tf_variable(head.bias).assign(vectors[:, 6])
    sampler.refresh(head)
    resumed.set_weights(sampler.get_weights())
    alter, num_changed = CHANGES[change]
    alter(vectors)
    tf_variable(head.table).assign(vectors[:, :6])
    tf_variable(head.bias).assign(vectors[:, 6])
    hashed, codes_of = [], sampler._codes_of
    sampler._codes_of = lambda rows: (hashed.extend(rows[rows.any(1)]), codes_of(rows))[1]
    for each in sampler, whole, resumed:
        each.refresh(head)
    assert len(hashed) == num_changed
    for of_each in zip(*(each.get_weights() for each in (sampler, whole, resumed)), strict=True):
        np.testing.assert_array_equal(of_each[0], of_each[1])
        np.testing.assert_array_equal(of_each[2], of_each[1])


def test_a_vector_that_a_refresh_refused_is_refused_again():
    vectors = clustered(20, 3)
    sampler = made(4, vectors)
    vectors[7] = np.nan
    for _ in range(2):
        with pytest.raises(ValueError, match="class 7 is not finite"):
            sampler.refresh(head_of(vectors))


@pytest.mark.long
@pytest.mark.parametrize("names", ["abcdefgh", "hgfijklmnopqrstuv"])
def test_other_classes_get_the_tables_that_a_new_sampler_makes(names):
    for seed in range(4):  # of some, most classes stay in the first of the two buckets
        encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        parts = tfxc.layers.DenseHead(12), LSH(4, num_tables=1, num_bits=1, seed=seed)
        model = tfxc.ExtremeClassifier(encoder, *parts, class_names=[*"abcdefghijkl"])
        model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy())
        model.fit(queries(12, 3), np.arange(12), verbose=0)
        changed = tfxc.change_classes(model, [*names])
        new = refreshed(LSH(4, num_tables=1, num_bits=1, seed=seed), changed.head)
        for weight, same in zip(changed.sampler.weights[1:], new.weights[1:], strict=True):
            np.testing.assert_array_equal(weight, same, weight.name)


@pytest.mark.long
def test_class_vectors_are_hashed_block_by_block():
    vectors = clustered(1000, 6)
    sampler = made(5, vectors, num_tables=400, num_bits=16)  # 655 classes a block
    np.testing.assert_array_equal(tf_variable(sampler.codes), sampler._codes_of(tf.constant(vectors)).numpy())


def test_part_of_a_mixture():
    parts = [LSH(20, candidates="union", num_tables=4, seed=1), Uniform(5, seed=2)]
    mixture = refreshed(Mixture(parts), clustered(50, 6))
    query, labels = queries(3, 6), np.zeros((3, 1), np.int32)
    ids, counted = sample(mixture, tf.constant(query), tf.constant(labels))
    want = counts_of(mixture.samplers[0], query, labels) + 5 / 50
    filled = ids.numpy() >= 0
    want = np.take_along_axis(want, np.maximum(ids, 0), axis=1)
    np.testing.assert_allclose(np.exp(counted)[filled], want[filled], rtol=1e-5)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    "options", long_after(1, {"query": "label", "candidates": "union", "num_tables": 3}, {"shared": True})
)
def test_trains_and_refreshes_on_a_growing_schedule(options):
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    centres = random.normal(size=(20, 8)).astype(np.float32)
    y = random.integers(20, size=400)
    x = centres[y] + 0.1 * random.normal(size=(400, 8)).astype(np.float32)
    encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(20), LSH(8, seed=1, **options), k=1)
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=tfxc.losses.SoftmaxCrossentropy())
    before = model.evaluate(x, y, verbose=0)
    refresh = tfxc.callbacks.SamplerRefresh(every=10, growth=1.5)
    model.fit(x, y, batch_size=20, epochs=3, callbacks=[refresh], verbose=0)
    assert tf_variable(model.sampler.codes).numpy().any()
    assert model.evaluate(x, y, verbose=0) < 0.3 * before


@pytest.mark.parametrize("bad", [-2, 20, 22])
def test_ids_out_of_range_are_an_error(bad):
    sampler, query = made(3, clustered(20, 4), query="label"), tf.constant(queries(1, 4))
    if bad > 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{bad}"):
            sample(sampler, query, tf.constant([[bad]]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="class_ids"):
            log_expected_count(sampler, query, tf.constant([[0]]), tf.constant([[bad]]))
    else:  # padding, whatever the negative number
        assert sample(sampler, query, tf.constant([[bad]]))[0].shape == (1, 3)


@pytest.mark.parametrize("options", [{"query": "label"}, {"candidates": "union", "num_tables": 2}])
def test_where_the_query_alone_says_nothing_log_prob_is_refused(options):
    with pytest.raises(ValueError, match="LSH has no log_prob.*Ask for expected counts"):
        made(5, clustered(20, 4), **options).log_prob(tf.constant(queries(1, 4)), tf.constant([[1]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tables": 0}, "num_tables must be an integer of at least 1, but got 0"),
        ({"num_tables": 2.0}, "num_tables must be an integer of at least 1, but got 2.0"),
        ({"num_bits": 0}, r"num_bits must be an integer in \[1, 16\], but got 0"),
        ({"num_bits": 17}, r"in \[1, 16\]"),
        ({"family": "minhash"}, "family must be one of.*simhash.*minhash"),
        ({"query": "class"}, "query must be one of"),
        ({"candidates": "all"}, "candidates must be one of"),
        ({"uniform_fraction": 0}, r"uniform_fraction must be in \(0, 1\], but got 0"),
        ({"uniform_fraction": 1.5}, r"in \(0, 1\]"),
        ({"uniform_fraction": float("nan")}, r"in \(0, 1\]"),
        ({"query": "label", "shared": True}, 'use query="embedding" with shared'),
        ({"candidates": "union"}, "16 tables and 1 uniform draws.*num_negatives=10"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        LSH(10, **options)
