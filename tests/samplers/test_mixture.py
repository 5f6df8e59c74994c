import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import (
    all_probs,
    clustered,
    labels_for,
    log_expected_count,
    p_value,
    queries,
    refreshed,
    sample,
)

from tfxc._keras.weights import tf_variable
from tfxc.samplers import (
    DNS,
    MIDX,
    HardNegatives,
    InBatch,
    LearnedMIDX,
    LogUniform,
    Mixture,
    SearchedHardNegatives,
    Step,
    Uniform,
    Unigram,
)
from tfxc.samplers.mixture import has_index
from tfxc.scored import Scored

NUM_CLASSES, DIM = 40, 5


def parts():
    return [MIDX(6, num_codewords=4, seed=1), LogUniform(3, seed=2), Uniform(2, shared=True, seed=3)]


def built(samplers):
    return refreshed(Mixture(samplers), clustered(NUM_CLASSES, DIM))


def test_the_expected_count_is_the_sum_of_the_parts():
    mixture, query = built(parts()), queries(2, DIM)
    ids = tf.tile(tf.range(NUM_CLASSES)[tf.newaxis], [2, 1])
    midx = all_probs(mixture.samplers[0], query)
    assert midx.max() > 3 / NUM_CLASSES  # refreshed with the mixture
    zipf, uniform = all_probs(mixture.samplers[1], query), 1 / NUM_CLASSES
    counts = np.exp(log_expected_count(mixture, query, labels_for(query), ids))
    np.testing.assert_allclose(counts, 6 * midx + 3 * zipf + 2 * uniform, rtol=1e-4)
    np.testing.assert_allclose(counts.sum(1), 11, rtol=1e-4)


def test_draws_follow_the_expected_counts():
    mixture = built([MIDX(6, num_codewords=4, seed=1), LogUniform(3, seed=2)])
    query = np.repeat(queries(1, DIM), 20_000, axis=0)
    ids, counted = sample(mixture, tf.constant(query), labels_for(query))
    assert ids.shape == counted.shape == (20_000, 9)
    every = tf.range(NUM_CLASSES)[tf.newaxis]
    counts = np.exp(log_expected_count(mixture, query[:1], labels_for(query[:1]), every))[0]
    np.testing.assert_allclose(counted, np.log(counts)[ids], atol=1e-4)
    assert p_value(ids.numpy().ravel(), counts) > 1e-3


def test_candidates_are_shared_if_those_of_all_parts_are():
    query, labels = queries(3, DIM), [[4], [2], [-1]]
    assert sample(built(parts()), query, labels)[0].shape == (3, 11)
    both = [Uniform(2, shared=True, seed=3), LogUniform(3, shared=True, seed=1)]
    ids, counted = sample(built(both), query, labels)
    assert ids.shape == counted.shape == (5,)


@pytest.mark.parametrize("shared", [False, True])
def test_a_rows_own_slots_stay_empty_beside_other_draws(shared):
    counts = np.arange(1.0, NUM_CLASSES + 1)
    mixture = built([Uniform(3, shared=shared, seed=3), InBatch(counts=counts, smoothing=0)])
    labels = np.array([[4, 7], [2, -1], [-1, -1], [4, -1]])
    draw = mixture.sample(Step(tf.constant(queries(4, DIM)), tf.constant(labels, tf.int32)))
    ids = np.broadcast_to(draw.ids, [4, 7])
    assert ids[:, 3:].tolist() == [[4, 7, 2, 4]] * 4 and draw.log_expected_count.shape == (4, 7)
    own = np.zeros((4, 7), bool)
    own[[0, 0, 1, 3], [3, 4, 5, 6]] = True
    np.testing.assert_array_equal(np.isposinf(draw.log_expected_count), own)
    num_draws = np.array([[2], [3], [4], [3]])  # of the batch's labels, those of other rows
    want = 3 / NUM_CLASSES + num_draws * counts[ids] / counts.sum()
    np.testing.assert_allclose(np.exp(draw.log_expected_count)[~own], want[~own], rtol=1e-5)
    want = 3 / NUM_CLASSES + num_draws * counts[labels] / counts.sum()
    of_labels = np.exp(draw.label_log_expected_count)
    np.testing.assert_allclose(of_labels[labels >= 0], want[labels >= 0], rtol=1e-5)


def test_the_number_of_draws_is_the_sum():
    assert Mixture(parts()).num_negatives == 11
    batch = [Uniform(2), InBatch(4, counts=np.ones(NUM_CLASSES))]
    assert Mixture(batch).num_negatives == 6
    batch[1] = InBatch(counts=np.ones(NUM_CLASSES))
    assert Mixture(batch).num_negatives is None


def test_a_mixture_of_mixtures_counts_once():
    inner = Mixture([Uniform(2, seed=1), Uniform(3, seed=2)])
    outer = built([inner, Uniform(5, seed=3)])
    query = queries(1, DIM)
    ids, counted = sample(outer, tf.constant(query), labels_for(query))
    assert ids.shape == (1, 10)
    np.testing.assert_allclose(np.exp(counted), 10 / NUM_CLASSES, rtol=1e-6)


@pytest.mark.long
def test_parts_of_a_kind_with_one_seed_draw_other_classes():
    query, labels = tf.constant(queries(30, DIM)), labels_for(queries(30, DIM))

    def drawn(samplers):
        copies = [type(part).from_config(part.get_config()) for part in samplers]
        return sample(built(copies), query, labels)[0].numpy()

    twins = [Uniform(3, seed=1), Uniform(3, seed=1), LogUniform(3, seed=1), Uniform(3, seed=2)]
    nested = [Mixture([Uniform(3, seed=1), Uniform(3, seed=1)]), Uniform(3, seed=1)]
    for samplers in (twins, nested):
        first, second, third = np.split(drawn(samplers)[:, :9], 3, axis=1)
        assert (first != second).mean() > 0.9 and (second != third).mean() > 0.9
        np.testing.assert_array_equal(drawn(samplers), drawn(samplers))
    # The first of them, and whoever has a seed of its own, draws as it would alone.
    for column, seed in ((0, 1), (9, 2)):
        alone = Uniform(3, seed=seed)
        alone.build((NUM_CLASSES, DIM))
        ids = sample(alone, query, labels)[0]
        np.testing.assert_array_equal(ids, drawn(twins)[:, column : column + 3])


def test_parts_of_other_kinds_with_one_seed_draw_other_classes():
    query, labels = tf.constant(queries(30, DIM)), labels_for(queries(30, DIM))
    parts = [SearchedHardNegatives(3, 20, seed=1), Uniform(23, seed=1)]
    mixture = Mixture(parts)
    mixture.build((NUM_CLASSES, DIM))
    ids = sample(mixture, query, labels)[0].numpy()  # before its first search all draws are uniform
    first, second = np.split(ids, 2, axis=1)
    assert (first != second).mean() > 0.9


A_LIST = r"Mixture takes a list of two or more samplers, \[a, b\], but got "


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([Uniform(2)], A_LIST),
        ([Uniform(2), Uniform(3)], A_LIST),
        ([iter([Uniform(2), Uniform(3)])], A_LIST),
        ([None], f"{A_LIST}None"),
        (["ab"], A_LIST),
        ([[Uniform(2), 3]], rf"{A_LIST}\[<Uniform .*, 3\]"),
        ([[Uniform(2)]], A_LIST),
        ([[Uniform(2), DNS(2, num_candidates=4)]], "DNS knows no expected counts"),
    ],
)
def test_what_cannot_be_mixed_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Mixture(*given)


def test_what_the_parts_have_for_themselves_is_refused():
    for option in "shared", "seed", "num_negatives":
        with pytest.raises(ValueError, match=f"Mixture takes no {option}=: each part has its own"):
            Mixture(parts(), **{option: 4})
    with pytest.raises(ValueError, match="Mixture has no log_prob.*Ask for expected counts"):
        built(parts()).log_prob(tf.zeros([1, DIM]), tf.constant([[1]]))


def test_each_part_that_learns_does_so_from_all_candidates():
    mixture = built([LearnedMIDX(6, num_codewords=4, seed=1), Uniform(2, seed=3)])
    query, vectors = queries(8, DIM), tf.constant(queries(NUM_CLASSES, DIM, seed=1))
    step = Step(tf.constant(query), labels_for(query), class_vectors=lambda ids: tf.gather(vectors, ids))
    draw = mixture.sample(step)
    before = [tf_variable(codebook).numpy() for codebook in mixture.samplers[0].codebooks]
    built([MIDX(6, num_codewords=4), Uniform(2)]).learn(step, draw, None)  # calls no function of scores
    positives = Scored(tf.zeros([8, 1]), draw.label_log_expected_count)
    negatives = Scored(tf.zeros([8, 8]), draw.log_expected_count)
    mixture.learn(step, draw, lambda: (positives, negatives))
    for codebook, old in zip(mixture.samplers[0].codebooks, before, strict=True):
        assert (tf_variable(codebook).numpy() != old).any()


@pytest.mark.long
@pytest.mark.traced
def test_a_part_of_a_size_that_a_graph_does_not_know():
    mixture = built([Uniform(3, seed=3), HardNegatives(2, 2, seed=1), InBatch()])

    @tf.function
    def draw(query, labels, example_ids):
        return mixture.sample(Step(query, labels, example_ids))[:3]

    ids, log_expected_count, _ = draw(
        tf.constant(queries(5, DIM)), tf.constant([[1], [2], [3], [4], [5]]), tf.range(5)
    )
    assert ids.shape == log_expected_count.shape == (5, 3 + 4 + 5)


def test_a_part_of_another_number_of_classes_is_refused():
    part = Uniform(3)
    part.build((NUM_CLASSES - 1, DIM))
    with pytest.raises(ValueError, match=f"Uniform in a Mixture is built for {NUM_CLASSES - 1} classes, but"):
        built([part, LogUniform(3)])


def test_each_part_observes_a_step_as_it_sees_it():
    mixture = built([MIDX(6, num_codewords=4, shared=True), MIDX(2, num_codewords=4), InBatch()])
    query = queries(8, DIM)
    mixture.sample(Step(tf.constant(query), labels_for(query, 3)))
    for part, seen in zip(mixture.samplers, (query, query, None), strict=True):
        if seen is not None:
            np.testing.assert_allclose(part.queries.mean, seen.mean(0), rtol=1e-5)
            np.testing.assert_allclose(part.queries.mean_square, np.square(seen).mean(0), rtol=1e-5)
    assert mixture.samplers[2].running_counts.numpy()[3] == 8


@pytest.mark.parametrize(
    ("sampler", "has"),
    [
        (MIDX(2), True),
        (Unigram(2), True),
        (Mixture([Uniform(2), Mixture([InBatch(), MIDX(2)])]), True),
        (Uniform(2), False),
        (Unigram(2, counts=np.ones(5)), False),
        (InBatch(), False),
        (DNS(2, num_candidates=4), False),
        (Mixture([Uniform(2), LogUniform(2)]), False),
    ],
)
def test_a_sampler_has_an_index_if_a_refresh_changes_a_part_of_it(sampler, has):
    assert has_index(sampler) == has
