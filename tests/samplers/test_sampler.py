import functools

import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import clustered, head_of, labels_for, log_expected_count, queries, sample

from tfxc._keras.weights import tf_variable
from tfxc.samplers import (
    DNS,
    LSH,
    MIDX,
    RFF,
    InBatch,
    LogUniform,
    Mixture,
    Question,
    Sampler,
    SearchedHardNegatives,
    Softmax,
    Sphere,
    Step,
    Uniform,
    Unigram,
)
from tfxc.samplers.sampler import knows_counts

LABELS = tf.constant([[3, -1], [5, 1], [-1, -1]])


class Recorder(Sampler):
    def build_index(self):
        self.asked = []

    def prepare(self, step):
        self.asked.append(step)
        return step.query

    def draw(self, given, seed):
        ids = tf.repeat(tf.range(self.num_negatives)[tf.newaxis], tf.shape(given)[0], axis=0)
        return ids, self.log_expected_count(given, ids)

    def log_expected_count(self, given, ids):
        # By way of the queries, so that a gradient could flow.
        return tf.math.log(tf.cast(ids, tf.float32) + 1) + 0 * tf.reduce_sum(given, 1, keepdims=True)


class Nameless(Sampler):
    def draw(self, given, seed):
        ids = tf.zeros([tf.shape(given)[0], self.num_negatives], tf.int32)
        return ids, tf.zeros(tf.shape(ids))


def built(sampler, shape=(8, 4)):
    sampler.build(shape)
    return sampler


def test_one_question_answers_draw_and_labels():
    sampler, query = built(Recorder(3)), tf.constant(queries(3, 4))
    draw = sampler.sample(Step(query, LABELS))
    assert len(sampler.asked) == 1
    np.testing.assert_array_equal(draw.ids, [[0, 1, 2]] * 3)
    np.testing.assert_allclose(np.exp(draw.log_expected_count), [[1, 2, 3]] * 3, rtol=1e-6)
    known, of_labels = LABELS.numpy() >= 0, draw.label_log_expected_count
    np.testing.assert_allclose(np.exp(of_labels)[known], LABELS.numpy()[known] + 1, rtol=1e-6)
    assert np.isfinite(of_labels).all()  # padding too, which would else make NaN of gradients


def test_shared_draws_are_those_of_one_query_their_mean_with_all_labels_in_its_row():
    sampler, query = built(Recorder(3, shared=True)), queries(3, 4)
    draw = sampler.sample(Step(tf.constant(query), LABELS))
    (asked,) = sampler.asked
    np.testing.assert_allclose(asked.query, query.mean(0, keepdims=True), rtol=1e-5)
    assert asked.labels.numpy().tolist() == [[3, -1, 5, 1, -1, -1]]
    assert draw.ids.numpy().tolist() == [0, 1, 2] and draw.log_expected_count.shape == (3,)
    assert draw.label_log_expected_count.shape == (3, 2)
    np.testing.assert_allclose(np.exp(draw.label_log_expected_count)[1], [6, 2], rtol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_a_question_is_answered_in_the_shape_of_its_ids(shared):
    sampler = built(Recorder(3, shared=shared))
    question = Question(sampler, Step(tf.zeros([2, 4]), LABELS[:2]))
    assert question.log_expected_count(tf.constant([[4, 1, -1], [0, 0, 7]])).shape == (2, 3)
    for_all = question.log_expected_count(tf.constant([6, -1]))
    assert for_all.shape == ((2,) if shared else (2, 2))
    np.testing.assert_allclose(np.exp(for_all).ravel()[0], 7, rtol=1e-6)
    assert len(sampler.asked) == 1


def test_a_step_is_observed_once_as_it_is_seen():
    class Observer(Recorder):
        def observe(self, step):
            self.asked.append(step)

    for shared in (False, True):
        sampler, query = built(Observer(3, shared=shared)), tf.constant(queries(3, 4))
        sampler.sample(Step(query, LABELS))
        prepared, observed = sampler.asked
        for one, other in zip(prepared, observed, strict=True):
            np.testing.assert_array_equal(one, other)
        sampler.ask(Step(query, LABELS)).draw()
        assert len(sampler.asked) == 3  # prepared again, not observed


def test_a_draw_may_give_what_counts_are_computed_from_then_on():
    class Doubling(Recorder):
        def draw(self, given, seed):
            return *super().draw(given, seed), 2 * given

        def log_expected_count(self, given, ids):
            return tf.zeros(tf.shape(ids)) + tf.reduce_sum(given, 1, keepdims=True)

    question = built(Doubling(3)).ask(Step(tf.ones([2, 4]), LABELS[:2]))
    assert question.draw()[1].numpy().tolist() == [[4.0] * 3] * 2
    assert question.log_expected_count(LABELS[:2]).numpy().tolist() == [[8.0] * 2] * 2


@pytest.mark.parametrize("make", [Recorder, Softmax, lambda size: MIDX(size, num_codewords=2), Uniform, LSH])
def test_no_gradient_flows(make):
    sampler, query = built(make(3)), tf.constant(queries(3, 4))
    with tf.GradientTape() as tape:
        tape.watch(query)
        draw = sampler.sample(Step(query, LABELS))
        total = tf.reduce_sum(draw.log_expected_count) + tf.reduce_sum(draw.label_log_expected_count)
        total += tf.reduce_sum(sampler.ask(Step(query, LABELS)).log_expected_count(LABELS))
    assert tape.gradient(total, query) is None


def test_what_a_subclass_leaves_out_is_named():
    with pytest.raises(NotImplementedError, match=r"Sampler does not define draw\(given, seed\)"):
        built(Sampler(2)).sample(Step(tf.zeros([1, 4]), LABELS[:1]))
    nameless = built(Nameless(2))
    assert not knows_counts(nameless) and knows_counts(built(Recorder(2)))
    with pytest.raises(ValueError, match="Nameless does not know how often a class is expected"):
        nameless.ask(Step(tf.zeros([1, 4]), LABELS[:1])).log_expected_count(LABELS[:1])
    with pytest.raises(ValueError, match="cannot be mixed, nor measured"):
        nameless.log_prob(tf.zeros([1, 4]), LABELS[:1])


def test_log_prob_is_the_count_of_one_draw():
    sampler = built(Uniform(5))
    found = sampler.log_prob(tf.zeros([2, 4]), tf.constant([1, 7]))
    np.testing.assert_allclose(found, np.log([[1 / 8] * 2] * 2), rtol=1e-6)
    for outside in (8, -2, 2**32):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"outside \[0, 8\) .* is {outside} at"):
            sampler.log_prob(tf.zeros([2, 4]), [[outside]] * 2)


@pytest.mark.parametrize("kind", [Uniform, Unigram, Softmax, InBatch, MIDX])
def test_only_the_first_argument_has_a_place(kind):
    with pytest.raises(TypeError):
        kind(4, 5)


@pytest.mark.parametrize("seed", [1.7, 2**63, "4"])
def test_a_seed_that_is_no_integer_of_64_bits_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be an integer in"):
        Uniform(3, seed=seed)
    built(Uniform(3, seed=2**63 - 1)).sample(Step(tf.zeros([1, 4]), LABELS[:1]))


@pytest.mark.parametrize(
    "sampler", [Uniform(3), InBatch(), DNS(2, num_candidates=4), Mixture([Uniform(2), MIDX(3)])]
)
def test_to_ask_before_it_is_built_is_refused(sampler):
    step = Step(tf.zeros([3, 4]), LABELS, score=lambda ids: tf.zeros(tf.shape(ids)))
    for ask in (sampler.sample, sampler.ask):
        message = rf"{type(sampler).__name__} is not built yet.*build\(\(num_classes"
        with pytest.raises(ValueError, match=message):
            ask(step)


@pytest.mark.parametrize(
    "sampler",
    [MIDX(3, num_codewords=2), LSH(3), Sphere(3), RFF(3), Softmax(3), SearchedHardNegatives(2, 2)],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize("shape", [(20, 5), (20, 3), (19, 4), (21, 4)])
def test_a_head_of_other_classes_or_another_width_is_refused(sampler, shape):
    sampler = built(type(sampler).from_config(sampler.get_config()), (20, 4))
    message = rf"20 classes with vectors of width 4, but the head has {shape[0]} of width {shape[1]}"
    with pytest.raises(ValueError, match=message):
        sampler.refresh(head_of(clustered(*shape)))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("wrong", ["ids alone", "long ids", "ids of rank 3", "draw", "log_expected_count"])
def test_answers_of_other_shapes_or_types_are_refused(wrong, shared):
    class Own(Uniform):
        def draw(self, given, seed):
            ids = super().draw(given, seed)[0]
            counts = tf.zeros(ids.shape)
            answers = {"ids alone": ids, "draw": (ids, counts[:, :1])}
            answers["long ids"] = tf.cast(ids, tf.int64), counts
            answers["ids of rank 3"] = ids[..., tf.newaxis], counts[..., tf.newaxis]
            return answers.get(wrong, (ids, counts))

        def log_expected_count(self, given, ids):
            log_expected_count = super().log_expected_count(given, ids)
            return log_expected_count[:, :1] if wrong == "log_expected_count" else log_expected_count

    sampler = built(Own(5, shared=shared, seed=1), (10, 4))
    method = "log_expected_count" if wrong == "log_expected_count" else "draw"
    with pytest.raises(ValueError, match=rf"Own\.{method} must (return|give) .*(log expected|tf.int32)"):
        sampler.sample(Step(queries(3, 4), LABELS))


@pytest.mark.parametrize("shared", [False, True])
def test_counts_of_another_type_are_float32(shared):
    class Own(Uniform):
        def log_expected_count(self, given, ids):
            return tf.cast(super().log_expected_count(given, ids), tf.float64)

    draws = [
        built(kind(5, shared=shared, seed=1), (10, 4)).sample(Step(queries(3, 4), LABELS))
        for kind in (Own, Uniform)
    ]
    for one, other in zip(draws[0][:3], draws[1][:3], strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


# By name: a sampler of so many draws over at most 300 classes.
EVERY = {
    "Uniform": Uniform,
    "LogUniform": LogUniform,
    "Unigram": functools.partial(Unigram, counts=np.arange(1.0, 301)),
    "LSH": LSH,
    "LSH, dwta": functools.partial(LSH, family="dwta"),
    "LSH, label": functools.partial(LSH, query="label"),
    "MIDX": functools.partial(MIDX, num_codewords=4),
    "Softmax": Softmax,
    "Sphere": Sphere,
    "RFF": RFF,
}


def of(*names):
    return pytest.mark.parametrize("make", [pytest.param(EVERY[name], id=name) for name in names])


def mixture(num_negatives, seed):
    return Mixture([Softmax(3, seed=seed), InBatch(num_negatives - 3, seed=seed)])


@pytest.mark.parametrize(
    "make", [*EVERY.values(), InBatch, functools.partial(DNS, num_candidates=9), mixture]
)
def test_reproducible(make):
    query, labels = queries(40, 6), tf.range(40)[:, tf.newaxis]

    def draws(seed):
        sampler = built(make(5, seed=seed), (300, 6))
        score = lambda ids: tf.cast(ids, tf.float32)  # noqa: E731
        return [sample(sampler, query, labels, score=score)[0] for _ in range(3)]

    first, again, other = draws(1), draws(1), draws(2)
    np.testing.assert_array_equal(first, again)
    assert (first[0] != first[1]).numpy().any() and (first[1] != first[2]).numpy().any()
    assert (first[0] != other[0]).numpy().any()


@of(*EVERY)
def test_a_draw_counts_and_a_question_does_not(make):
    sampler, query = built(make(5), (300, 6)), queries(40, 6)
    sample(sampler, query, labels_for(query))
    log_expected_count(sampler, query, labels_for(query), labels_for(query))
    assert int(tf_variable(sampler.counter)) == 1


@of("Uniform", "LSH", "LSH, label", "MIDX", "Softmax", "Sphere", "RFF")
@pytest.mark.parametrize("shared", [False, True])
def test_without_queries(make, shared):
    if shared and make is EVERY["LSH, label"]:
        pytest.skip("is refused")
    sampler, labels = built(make(3, shared=shared), (20, 4)), tf.zeros([0, 1], tf.int32)
    sampler.refresh(head_of(clustered(20, 4)))
    ids, counted = sample(sampler, tf.zeros([0, 4]), labels)
    assert ids.shape == counted.shape == ((3,) if shared else (0, 3))
    assert log_expected_count(sampler, tf.zeros([0, 4]), labels, labels).shape == (0, 1)


@of("LSH", "MIDX", "Sphere", "RFF")
def test_class_vectors_that_are_not_finite_are_an_error(make):
    vectors = clustered(20, 4)
    vectors[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"class 3.*not finite"):
        built(make(3), (20, 4)).refresh(head_of(vectors))


@of("LSH", "MIDX", "Softmax", "Sphere", "RFF")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_queries_that_are_not_finite_name_the_query(make, bad):
    sampler, query = built(make(3), (20, 4)), queries(5, 4)
    sampler.refresh(head_of(clustered(20, 4)))
    query[3, 1] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"finite(.|\n)*3"):
        sample(sampler, query, labels_for(query))


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.usefixtures("path")
@of("LSH", "MIDX", "Sphere", "RFF")
def test_refresh_takes_effect_in_a_traced_function(make):
    sampler, vectors = built(make(200, seed=5), (60, 6)), clustered(60, 6)
    query = tf.constant(np.repeat(vectors[:1], 50, axis=0))
    draw = tf.function(lambda: sample(sampler, query, labels_for(query))[0])
    before = np.bincount(draw().numpy().ravel(), minlength=60)
    sampler.refresh(head_of(vectors))
    after = np.bincount(draw().numpy().ravel(), minlength=60)
    assert before.max() < 300 < after.max()
