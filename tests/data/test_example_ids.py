import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from tfxc.data import LabeledPoints, classification_dataset, row_batches, with_example_ids


def test_arrays():
    assert with_example_ids(np.zeros([3, 2]))["inputs"].shape == (3, 2)
    numbered = with_example_ids({"a": np.zeros([4, 2]), "b": np.ones(4)})
    assert set(numbered) == {"a", "b", "example_ids"} and numbered["example_ids"].tolist() == [0, 1, 2, 3]
    assert with_example_ids([[1.0, 2.0], [3.0, 4.0]])["example_ids"].tolist() == [0, 1]  # lists, too


def test_arrays_that_have_no_len():
    ragged, matrix = tf.ragged.constant([[1], [], [2, 3]]), scipy.sparse.csr_matrix(np.eye(3))
    assert with_example_ids({"words": ragged, "tags": matrix})["example_ids"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("weights", [(), (np.arange(20.0),)])
def test_a_dataset_keeps_ids_through_shuffles(weights):
    values = np.arange(20) * 10
    examples = tf.data.Dataset.from_tensor_slices(({"x": values}, values, *weights))
    dataset = with_example_ids(examples).shuffle(20, seed=1).batch(6)
    for _ in range(2):
        batches = list(dataset)
        ids = np.concatenate([batch[0]["example_ids"] for batch in batches])
        assert sorted(ids) == list(range(20)) and list(ids) != list(range(20))
        np.testing.assert_array_equal(np.concatenate([batch[0]["x"] for batch in batches]), ids * 10)
        np.testing.assert_array_equal(np.concatenate([batch[1] for batch in batches]), ids * 10)
    assert len(batches[0]) == 2 + len(weights)


def test_classification_points_are_numbered_by_row():
    points = LabeledPoints(scipy.sparse.diags(np.arange(1.0, 8.0)), scipy.sparse.eye(7))
    inputs, labels = next(iter(classification_dataset(points, 7, seed=3, example_ids=True)))
    ids = inputs["example_ids"].numpy()
    assert sorted(ids) == list(range(7)) and ids.tolist() != list(range(7))
    np.testing.assert_array_equal(labels[:, 0], ids)
    np.testing.assert_array_equal(inputs["values"][:, 0], ids + 1.0)
    assert "example_ids" not in next(iter(classification_dataset(points, 7)))[0]


def test_what_cannot_be_numbered_is_refused():
    examples = tf.data.Dataset.from_tensor_slices((np.zeros([4, 2]), np.zeros(4)))
    for later in (examples.shuffle(4).batch(2), examples.repeat()):
        with pytest.raises(ValueError, match="call with_example_ids first"):
            with_example_ids(later)
    pipeline = row_batches(4, 2, lambda rows: (rows, rows), seed=0)
    with pytest.raises(ValueError, match="make it with seed=None"):
        with_example_ids(pipeline.unbatch())
    options = tf.data.Options()
    options.deterministic = False
    mapped = examples.map(lambda *example: example, num_parallel_calls=2, deterministic=False)
    for earlier in (mapped, examples.with_options(options)):
        with pytest.raises(ValueError, match="With deterministic=False, examples come in another order"):
            with_example_ids(earlier)
    for wrong, shapes in (({"a": np.zeros(3), "b": np.zeros(4)}, r"\(3,\), \(4,\)"), (None, r"\(\)")):
        with pytest.raises(ValueError, match=rf"arrays of one length N, but have the shapes \[{shapes}\]"):
            with_example_ids(wrong)
    with pytest.raises(ValueError, match="already have 'example_ids'"):
        with_example_ids(with_example_ids(np.zeros(3)))
    with pytest.raises(ValueError, match=r"must be \(x, y\) or .*, not TensorSpec"):
        with_example_ids(tf.data.Dataset.range(3))
