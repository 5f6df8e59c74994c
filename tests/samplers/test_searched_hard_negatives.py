import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, all_logits, features, learnable, make_model
from sampler_checks import clustered, head_of, p_value, queries, sample

from tfxc.callbacks import SamplerRefresh
from tfxc.losses import BinaryCrossentropy
from tfxc.samplers import SearchedHardNegatives, Step, hard_negatives

LABELS = tf.constant([[0], [5], [9]])


def step_of(query):
    return Step(tf.constant(query), tf.fill([len(query), 1], -1))


def built(num_classes=300, dim=5, **options):
    sampler = SearchedHardNegatives(3, 4, seed=1, **options)
    sampler.build((num_classes, dim))
    return sampler


def test_all_are_uniform_before_the_first_refresh():
    sampler = built(50)
    query = np.repeat(queries(3, 5), 2000, axis=0)
    ids, counted = sample(sampler, tf.constant(query), tf.repeat(LABELS, 2000, axis=0))
    assert p_value(ids.numpy().ravel(), np.ones(50)) > 1e-3
    np.testing.assert_allclose(np.exp(counted), 7 / 50, rtol=1e-6)


def test_with_all_cells_the_search_is_exact():
    vectors, query = clustered(300, 5), queries(3, 5)
    sampler = built(num_cells=8, num_probes=8, num_retrieved=20)
    sampler.refresh(head_of(vectors))
    scores = query @ vectors.T
    wanted = np.argsort(-scores, axis=1)
    # Cells of more than four times the mean size would be cut off.
    assert np.diff(sampler.cell_offsets.numpy()).max() <= 4 * 38
    np.testing.assert_array_equal(sampler.retrieve(step_of(query)), wanted[:, :20])
    scores[np.arange(3), LABELS[:, 0]] = -np.inf
    ids, _ = sample(sampler, tf.constant(query), LABELS)
    np.testing.assert_array_equal(ids[:, :3], np.argsort(-scores, axis=1)[:, :3])


@pytest.mark.parametrize("num_probes", [1, 4])
def test_a_few_cells_hold_most_of_the_best(num_probes):
    vectors = clustered(2000, 6, num_clusters=40)
    query = vectors[::40] + 0.1 * queries(50, 6)
    sampler = built(2000, 6, num_cells=40, num_probes=num_probes)
    sampler.refresh(head_of(vectors))
    found = sampler.retrieve(step_of(query)).numpy()
    best = np.argsort(-(query @ vectors.T), axis=1)[:, : found.shape[1]]
    recall = np.mean([np.isin(own, row).mean() for own, row in zip(best, found, strict=True)])
    assert recall > (0.5 if num_probes == 1 else 0.9)
    for row in found:
        assert len(set(row[row >= 0])) == (row >= 0).sum()


def test_cells_of_one_class_leave_empty_slots():
    vectors = np.eye(6, 5, dtype=np.float32) + np.arange(6)[:, np.newaxis]
    sampler = built(6, num_cells=6, num_probes=1)
    sampler.refresh(head_of(vectors))
    found = sampler.retrieve(step_of(queries(3, 5))).numpy()
    assert (found >= 0).any(1).all() and (found == -1).any()
    ids, counted = sample(sampler, tf.constant(queries(3, 5)), tf.constant([[-1]] * 3))
    assert (ids.numpy() >= 0).all() and np.isfinite(counted).all()


@pytest.mark.long
@pytest.mark.traced
def test_training():
    x, y = learnable(200)
    model = make_model(SearchedHardNegatives(3, 6, num_cells=5, num_probes=2, seed=1), BinaryCrossentropy())
    model.fit(x, y, batch_size=20, epochs=10, callbacks=[SamplerRefresh()], verbose=0)
    assert np.mean(all_logits(model, x).argmax(1) == y) > 0.6


def test_refresh_with_the_same_seed_is_the_same():
    head, cells = head_of(clustered(300, 5)), []
    for _ in range(2):
        sampler = built(num_cells=8)
        sampler.refresh(head)
        cells.append(sampler.cell_classes.numpy())
    np.testing.assert_array_equal(*cells)
    assert sorted(cells[0]) == list(range(300))


@pytest.mark.long
def test_no_class_of_a_giant_cell_is_shut_out():
    vectors = np.ones((300, 5), np.float32)
    vectors[:19] = -10 * np.abs(queries(19, 5))
    sampler, query, seen = built(num_cells=20, num_probes=20, num_retrieved=100), tf.ones([3, 5]), []
    for _ in range(40):
        sampler.refresh(head_of(vectors))
        found = sampler.retrieve(step_of(query)).numpy()[0]
        seen.append(set(found[found >= 19]))
        sample(sampler, query, LABELS)
    assert {len(ids) for ids in seen} == {60} and set().union(*seen) == set(range(19, 300))


def test_sizes_by_default_and_bad_arguments():
    sampler = built(400)
    assert sampler.centres.shape == (80, 5) and built(4, dim=2).centres.shape == (4, 2)
    for options, message in [
        ({"num_cells": 0}, r"num_cells must be an integer in \[1, 16384\], but got 0"),
        ({"num_cells": 1 << 20}, r"num_cells must be an integer in \[1, 16384\], but got 1048576"),
        ({"num_cells": 4, "num_probes": 5}, r"num_probes must be in \[1, num_cells=4\], but got 5"),
        ({"num_probes": 1.5}, "num_probes must be an integer of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            SearchedHardNegatives(2, 2, **options)
    vectors = features(NUM_CLASSES)
    vectors[3] = np.nan
    with pytest.raises(ValueError, match="vector of class 3 is not finite"):
        built(NUM_CLASSES, 6).refresh(head_of(vectors))


def test_the_number_of_hard_classes_is_read_as_a_tensor(monkeypatch):
    class OnlyRead:  # NumPy's behaviour of tensors, once it is on, compares no variable
        def read_value(self):
            return tf.constant(2)

    sampler = SearchedHardNegatives(2, 3, num_cells=4, seed=1)
    sampler.build((20, 4))
    monkeypatch.setattr(hard_negatives, "tf_variable", lambda weight: OnlyRead())
    assert sampler.sample(Step(tf.zeros([2, 4]), tf.zeros([2, 1], tf.int32))).ids.shape == (2, 5)
