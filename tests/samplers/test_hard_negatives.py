import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, features, make_model
from long_cases import long_after
from sampler_checks import built, log_expected_count, p_value, sample

from tfxc._keras.weights import tf_variable
from tfxc.losses import BinaryCrossentropy, SoftmaxCrossentropy, SquaredHinge
from tfxc.mining.hard_negative_table import HardNegativeTable
from tfxc.samplers import HardNegatives, Mixture, Step, Uniform

RETRIEVED = [[7, 3, 9, 1], [4, 2, -1, -1], [-1, -1, -1, -1]]


def with_table(sampler, folder, rows=RETRIEVED):
    if not sampler.built:
        sampler.build((NUM_CLASSES, DIM))
    rows = np.array(rows, np.int32)
    sampler.table = HardNegativeTable(folder, rows.shape, DIM, NUM_CLASSES)
    sampler.table.write([rows], epoch=0)
    sampler.table.swap(0)
    return sampler


def drawn(sampler, labels, example_ids):
    labels = tf.constant(labels, tf.int32)
    ids, counted = sample(sampler, tf.zeros([len(labels), DIM]), labels, tf.constant(example_ids))
    return ids.numpy(), np.exp(counted.numpy())


def counts_of_all(sampler, labels, example_ids):
    every = tf.tile(tf.range(NUM_CLASSES)[tf.newaxis], [len(labels), 1])
    step = tf.zeros([len(labels), DIM]), tf.constant(labels, tf.int32), every, tf.constant(example_ids)
    return np.exp(log_expected_count(sampler, *step))


def test_hard_ones_first_without_the_positives(tmp_path):
    sampler = with_table(HardNegatives(2, 3, num_retrieved=4, seed=1), tmp_path)
    ids, counts = drawn(sampler, [[20, -1], [3, 7], [4, 0], [0, 1]], [0, 0, 1, 2])
    assert ids.shape == counts.shape == (4, 5)
    assert ids[0, :2].tolist() == [7, 3] and ids[1, :2].tolist() == [9, 1] and ids[2, 0] == 2
    num_classes = NUM_CLASSES
    want = [
        [1, 1] + 3 * [3 / (num_classes - 2)],
        [1, 1] + 3 * [3 / (num_classes - 4)],  # the two positives rank among the hard
        [1] + 4 * [4 / (num_classes - 2)],
        5 * [5 / num_classes],
    ]
    np.testing.assert_allclose(counts, want, rtol=1e-6)


def test_labels_that_were_passed_over_are_told(tmp_path):
    labels, ids = tf.constant([[20, -1], [3, 7], [1, 4]]), tf.constant([0, 0, 1])
    step = Step(tf.zeros([3, DIM]), labels, ids)
    parts = [with_table(HardNegatives(2, 3, num_retrieved=4, seed=1), tmp_path / name) for name in "ab"]
    slots = np.array([[0, 0], [1, 1], [0, 1]])
    assert (parts[0].sample(step).label_slots == slots).numpy().all()
    mixture = built(Mixture([*parts, Uniform(2)]), NUM_CLASSES, DIM)
    assert (mixture.sample(step).label_slots == 2 * slots).numpy().all()


def test_uniform_draws_come_from_outside(tmp_path):
    sampler = with_table(HardNegatives(2, 3, num_retrieved=4, seed=1), tmp_path)
    labels = np.repeat([[3, 7]], 20_000, axis=0)
    ids, _ = drawn(sampler, labels, np.zeros(20_000, int))
    probs = np.ones(NUM_CLASSES)
    probs[[7, 3, 9, 1]] = 0
    uniform = ids[:, 2:].ravel()
    assert not np.isin(uniform, [7, 3, 9, 1]).any() and p_value(uniform, probs) > 1e-3


def test_expected_counts_of_any_class(tmp_path):
    sampler = with_table(HardNegatives(2, 3, num_retrieved=4, seed=1), tmp_path)
    counts = counts_of_all(sampler, [[20, -1], [7, -1]], [0, 0])
    np.testing.assert_allclose(counts[0, [7, 3]], 1)
    np.testing.assert_allclose(counts[1, [7, 3, 9]], 1)  # without its label 7, the example's row has 7, 3
    np.testing.assert_allclose(counts.sum(1), [2 + 3, 3 + 3], rtol=1e-6)
    shared = log_expected_count(sampler, tf.zeros([2, DIM]), [[20], [7]], [9, 0], tf.constant([0, 0]))
    np.testing.assert_allclose(np.exp(shared), counts[:, [9, 0]], rtol=1e-6)


def test_room_for_the_positives_by_default():
    sampler = HardNegatives(2, 3)
    assert sampler.num_retrieved == 34
    sampler.build((NUM_CLASSES, DIM))
    assert sampler.num_retrieved == NUM_CLASSES < 34
    more = HardNegatives.from_config(sampler.get_config())  # as change_classes makes it
    more.build((2 * NUM_CLASSES, DIM))
    assert more.num_retrieved == 34


def test_before_the_first_table_all_are_uniform():
    for sampler in (HardNegatives(2, 3, seed=1), HardNegatives(5, 0, seed=1)):
        ids, counts = drawn(built(sampler, NUM_CLASSES, DIM), np.zeros([4000, 1], int), np.arange(4000))
        assert p_value(ids.ravel(), np.ones(NUM_CLASSES)) > 1e-3
        np.testing.assert_allclose(counts, 5 / NUM_CLASSES, rtol=1e-6)


def test_hard_ones_alone(tmp_path):
    sampler = with_table(HardNegatives(2, 0, num_retrieved=4, seed=1), tmp_path)
    ids, counts = drawn(sampler, [[7], [4], [0]], [0, 1, 2])
    assert ids[:2].tolist() == [[3, 9], [2, -1]] and (ids[2] >= 0).all()
    np.testing.assert_allclose(counts[:2], 1)  # that of the empty slot too, which must not weigh infinitely
    assert counts_of_all(sampler, [[0]], [0]).sum() == 2


@pytest.mark.parametrize(
    "loss", [BinaryCrossentropy(), SquaredHinge(), SoftmaxCrossentropy()], ids=lambda loss: loss.name
)
def test_fewer_hard_ones_than_slots(loss, tmp_path):
    model = make_model(HardNegatives(2, 0, num_retrieved=4, seed=1), loss, run_eagerly=True)
    with_table(model.sampler, tmp_path)
    inputs = {"features": tf.ones([1, DIM]), "example_ids": tf.constant([1])}
    with tf.GradientTape() as tape:
        value = model.compute_loss(x=inputs, y=tf.constant([[4]]))
    gradients = tape.gradient(value, model.trainable_variables)
    assert np.isfinite(value) and all(np.isfinite(tf.convert_to_tensor(g)).all() for g in gradients)


def test_the_share_of_hard_ones(tmp_path):
    sampler = with_table(HardNegatives(4, 2, num_retrieved=4, seed=1), tmp_path)
    for fraction, want in [(0.0, []), (0.5, [7, 3]), (1.0, [7, 3, 9, 1])]:
        sampler.set_hard_fraction(fraction)
        ids, counts = drawn(sampler, [[20]], [0])
        assert ids[0, : len(want)].tolist() == want and ids.shape == (1, 6)
        np.testing.assert_allclose(counts[0, : len(want)], 1)
        share = (6 - len(want)) / (NUM_CLASSES - len(want))
        np.testing.assert_allclose(counts[0, len(want) :], share, rtol=1e-6)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], but got 1.5"):
        sampler.set_hard_fraction(1.5)


def statistics(model, x, label_row, copies, example_id):
    features = tf.repeat(tf.constant(x), copies, axis=0)
    labels = tf.repeat(tf.constant([label_row]), copies, axis=0)
    with tf.GradientTape() as tape:
        tape.watch(features)
        inputs = {"features": features, "example_ids": tf.fill([copies], example_id)}
        losses = model.compute_loss(x=inputs, y=labels)
    gradients = tape.gradient(losses, features)
    values = np.concatenate([losses[:, np.newaxis], gradients], axis=1).astype(np.float64)
    return values.mean(0), values.std(0) / np.sqrt(copies)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HardNegatives(2, 6, num_retrieved=4, seed=1),
        lambda: Mixture([HardNegatives(2, 0, num_retrieved=4, seed=1), Uniform(6, seed=2)]),
    ],
    ids=["both", "mixture"],
)
@pytest.mark.parametrize("labels", long_after(1, [7, 9, 11], [20, -1, -1], [-1, -1, -1]))
def test_the_loss_and_its_gradient_are_unbiased(make, labels, tmp_path):
    sampler = make()
    model = make_model(sampler, BinaryCrossentropy(reduction="none"))
    tf_variable(model.head.table).assign(features(NUM_CLASSES, seed=3))
    with_table(getattr(sampler, "samplers", [sampler])[0], tmp_path)
    full = make_model(None, BinaryCrossentropy(reduction="none"), model.head, model.encoder)
    for example_id in range(3):
        x = features(1, seed=example_id)
        mean, error = statistics(model, x, labels, 10_000, example_id)
        want, _ = statistics(full, x, labels, 1, example_id)
        np.testing.assert_array_less(np.abs(mean - want), 3 * error + 1e-5)
        assert error[0] < 0.02 * want[0]


def test_softmax_with_hard_ones_alone_still_trains_labels_outside_the_table(tmp_path):
    model = make_model(HardNegatives(2, 0, num_retrieved=4, seed=1), SoftmaxCrossentropy(), run_eagerly=True)
    with_table(model.sampler, tmp_path)
    inputs = {"features": tf.constant(features(1)), "example_ids": tf.constant([0])}
    assert float(model.compute_loss(x=inputs, y=tf.constant([[20]]))) > 0.1


def test_few_classes_all_of_them_hard(tmp_path):
    sampler = built(HardNegatives(2, 2, num_retrieved=9, seed=1), 3, DIM)
    assert sampler.num_retrieved == 3
    ids, _ = drawn(with_table(sampler, tmp_path, [[2, 0, 1]]), [[2], [-1]], [0, 0])
    assert ids.tolist() == [[0, 1, -1, -1], [2, 0, 1, 1]]


def test_same_seed_same_draws(tmp_path):
    steps = []
    for _ in range(2):
        sampler = with_table(HardNegatives(2, 30, num_retrieved=4, seed=5), tmp_path)
        steps.append([drawn(sampler, [[0]], [0])[0] for _ in range(2)])
    np.testing.assert_array_equal(*steps)
    assert (steps[0][0] != steps[0][1]).any()


def test_what_an_index_found_nearly_is_ranked_by_score(tmp_path):
    sampler = with_table(HardNegatives(2, 0, num_retrieved=4, seed=1), tmp_path)
    scores = tf.random.shuffle(tf.range(float(NUM_CLASSES)), seed=1)
    step = Step(tf.zeros([2, DIM]), tf.constant([[3], [0]]), tf.constant([0, 1]))
    step = step._replace(score=lambda ids: tf.gather(scores, tf.maximum(ids, 0)))
    hard = sampler.sample(step).ids.numpy()
    assert hard.tolist() == [[7, 9], [4, 2]]
    hard = sampler.sample(step._replace(approximate=True)).ids.numpy()
    best = sorted([7, 9, 1], key=lambda class_id: -scores[class_id])
    assert hard[0].tolist() == best[:2] and hard[1].tolist() == sorted([4, 2], key=lambda own: -scores[own])


def test_queries_are_handed_in_once_a_step(tmp_path):
    sampler = with_table(HardNegatives(2, 2, num_retrieved=4, seed=1), tmp_path)
    sampler.table.start_collecting(epoch=3)
    query = tf.constant(features(2))
    sample(sampler, query, tf.zeros([2, 1], tf.int32), tf.constant([2, 0]))
    log_expected_count(
        sampler, query + 1, tf.zeros([2, 1], tf.int32), tf.constant([[0], [0]]), tf.constant([1, 1])
    )
    values, seen, _, epoch = sampler.table.finish_collecting()
    assert seen.tolist() == [True, False, True] and epoch == 3
    np.testing.assert_array_equal(values[[2, 0]], query)


@pytest.mark.filterwarnings("ignore:HardNegatives has no table")
def test_bad_arguments(tmp_path):
    for arguments, message in [
        ({"num_hard": 0}, "num_hard must be an integer of at least 1, but got 0"),
        ({"num_uniform": -1}, "num_uniform must be an integer of at least 0, but got -1"),
        ({"num_retrieved": 3}, "num_retrieved must be an integer of at least 4, but got 3"),
        ({"shared": True}, "HardNegatives takes no shared="),
    ]:
        with pytest.raises(ValueError, match=message):
            HardNegatives(**{"num_hard": 4, "num_uniform": 1, **arguments})
    with pytest.raises(ValueError, match="must be less than the 4 classes"):
        HardNegatives(4, 5).build((4, DIM))
    model = make_model(HardNegatives(2, 2))
    with pytest.raises(ValueError, match="no example ids"):
        model.fit(features(4), np.arange(4), verbose=0)
    sampler = with_table(HardNegatives(2, 2, num_retrieved=4, seed=1), tmp_path)
    for bad in (3, -1):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=f"Example id {bad} is outsid"):
            drawn(sampler, [[0]], [bad])
