"""Row updates by the gradient of scores: the bits of updates by rows, which are not made."""

import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE
from row_update_checks import RULES

from tfxc.ops import library
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp
from tfxc.ops.candidate_scores import candidate_scores
from tfxc.ops.row_updates import score_gradient_behind, shrink_rows

pytestmark = pytest.mark.kernels


def log_sum(table, query, ids, **options):
    return candidate_log_sum_exp(table, query, ids[:, :1], ids[:, 1:], tf.zeros_like(ids[:, 1:]), **options)


SOURCES = {"scores": candidate_scores, "log-sum-exp": log_sum}
EVERY_SOURCE = pytest.mark.parametrize("source", SOURCES)


def random_variables(rule, shape, dtype=tf.float32):
    random = np.random.default_rng(0)
    table = tf.Variable(tf.cast(random.normal(size=shape), dtype))
    slots = [random.uniform(0.1, 1, own).astype(np.float32) for own in RULES[rule][2](shape)]
    return [table, *map(tf.Variable, slots)]


def step(source, rule, variables, ids, changed=lambda gradient: gradient, **options):
    query = np.random.default_rng(1).normal(size=(len(ids), variables[0].shape[1])).astype(np.float32)
    with tf.GradientTape() as tape:
        made = tf.nest.flatten(SOURCES[source](variables[0], query, tf.constant(ids), **options))
        random = np.random.default_rng(2)
        upstream = [tf.constant(random.normal(size=one.shape), tf.float32) for one in made]
    gradient = changed(tape.gradient(made, variables[0], upstream))
    shrink_rows(variables[0], gradient, 0.5)
    RULES[rule][0](*variables, gradient)
    return score_gradient_behind(gradient) is not None


# Empty slots, a class again in one query and in several, and one that few touch.
IDS = np.int32([[3, -1, 3, 0], [-1, -1, -1, -1], [9, 3, 0, 9], [5, 4, 9, 3]])


def check(source, rule, ids, size, dtype="float32"):
    results = []
    for wrap, direct in (lambda step: step, False), (tf.function, True):
        own = random_variables(rule, (12, size), dtype)
        taken = wrap(lambda own=own: step(source, rule, own, np.int32(ids), row_offset=2))()
        assert taken == direct
        results.append([tf.cast(variable, tf.float32).numpy() for variable in own])
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


@EVERY_SOURCE
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("ids", "dtype"),
    [(IDS, "float32"), (IDS, "bfloat16"), ([[-1]], "float32"), (np.zeros([0, 3]), "float32")],
)
def test_the_same_bits_as_by_rows(source, rule, ids, dtype):
    check(source, rule, ids, 17, dtype)


@EVERY_SIZE
def test_rows_of_every_size(size):
    check("scores", "adam", IDS, size)


@EVERY_SOURCE
def test_skewed_classes_at_full_size_over_several_threads(source):
    ids = np.minimum(np.random.default_rng(1).zipf(1.2, size=(512, 101)) - 1, 399_999).astype(np.int32)
    tables = [tf.Variable(tf.zeros([400_000, 8])) for _ in range(2)]
    step(source, "sgd", tables[:1], ids)
    tf.function(lambda: step(source, "sgd", tables[1:], ids))()
    np.testing.assert_array_equal(*tables)


@EVERY_SOURCE
@pytest.mark.parametrize(
    "options",
    [
        {"normalize": True},
        {"changed": lambda gradient: tf.IndexedSlices(2 * gradient.values, gradient.indices)},
        {"changed": lambda gradient: tf.IndexedSlices(gradient.values, 1 * gradient.indices)},
    ],
    ids=["normalised", "other values", "other rows"],
)
def test_a_gradient_that_is_more_than_scores_comes_as_rows(source, options):
    tables = [tf.Variable(tf.random.stateless_normal([12, 4], [0, 1])) for _ in range(2)]
    step(source, "sgd", tables[:1], IDS, **options)
    assert not tf.function(lambda: step(source, "sgd", tables[1:], IDS, **options))()
    np.testing.assert_array_equal(*tables)


def slot_of(row, slot):
    return row << 32 | slot


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([slot_of(5, 0)], r"slots\[0\] is slot 0 of row 5; expected slots below 6 and rows below 5"),
        ([slot_of(0, 1), slot_of(4, 6)], r"slots\[1\] is slot 6 of row 4"),
        ([slot_of(2, 0), slot_of(1, 1)], r"slots\[1\] is slot 1 of row 1.*in ascending order"),
        ([slot_of(1, 1), slot_of(1, 1)], "in ascending order"),
        ([[slot_of(0, 0)]], "do not fit a table of shape"),
        ([2**64 - 1], r"slots\[0\] is slot 4294967295 of row 4294967295"),
    ],
)
def test_slots_that_cannot_be_are_refused(slots, message):
    table = tf.Variable(tf.ones([5, 4]))
    update = library.load().tfxc_row_sgd_update_from_scores
    given = {
        "query": tf.ones([2, 4]),
        "score_gradients": tf.ones([2, 3]),
        "learning_rate": 0.1,
        "seed": [0, 0],
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update(table.handle, slots=tf.constant(slots, tf.uint64), **given)
    for name, shape in ("query", [3, 4]), ("query", [2, 5]), ("score_gradients", [6]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit a table of shape"):
            update(table.handle, slots=tf.zeros([0], tf.uint64), **{**given, name: tf.ones(shape)})
    np.testing.assert_array_equal(table, np.ones([5, 4]))
