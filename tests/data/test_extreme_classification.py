import numpy as np
import pytest
import scipy.sparse
from refusal_checks import refused

from tfxc import data


def random_points(num_points=30, num_features=12, num_labels=7, seed=0):
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_points, num_features))
    features *= random.random((num_points, num_features)) < 0.3
    return data.LabeledPoints(features.astype(np.float32), random.random((num_points, num_labels)) < 0.2)


def test_what_real_files_hold(written):
    text = "6 4 5\r\n3,0 1:0.5 0:2\r\n 2:1e-3\r\n4 \r\n\r\n1,1,1 3:1 3:2 \r\n0\t1:-.5\r\n"
    points = data.read_extreme_classification(written(text))
    np.testing.assert_allclose(
        points.features.toarray(),
        [[2, 0.5, 0, 0], [0, 0, 1e-3, 0], [0] * 4, [0] * 4, [0, 0, 0, 3], [0, -0.5, 0, 0]],
    )
    rows = [row.indices.tolist() for row in points.labels]
    assert rows == [[0, 3], [], [4], [], [1], [0]] and points.labels.dtype == bool
    assert points.label_counts().tolist() == [2, 1, 0, 1, 1] and points.features.dtype == np.float32


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 2", "not 'label"),
        ("1 a:2", "not 'label"),
        ("1 2:nan", "not 'label"),
        ("0 " + " ".join(f"{feature}:10" for feature in range(40)) + " 41:", "not 'label"),
        (f"0{' ' * 100_000}x", "not 'label"),  # told at once
        ("1 ,, 2:1", "not 'label"),
        ("1 2:1:1", "not 'label"),
        ("-1 2:1", "not 'label"),
        ("1 2:\u0661", "not 'label"),
        ("1 2:1e39", "value 1e\\+39 is beyond float32"),
        ("1 2:-1e999", "value -inf is beyond float32"),
        (f"{10**30} 2:1", f"label {10**6}.* of 5"),
        (f"1 {10**30}:1", f"feature {10**6}.* of 4"),
        (f"{'1' * 310} 2:1", "label inf of 5"),
        (f"1 {'1' * 310}:1", "feature inf of 4"),
        ("1 4:1", "feature 4 of 4"),
        ("5 1:1", "label 5 of 5"),
    ],
)
def test_bad_lines_are_named(written, line, reason):
    path = written(f"3 4 5\n0 1:1\n{line}\n0 1:1\n")
    refused(rf"(?s)1 bad of 4 lines.*line 3: {reason}", data.read_extreme_classification, path)
    with pytest.warns(UserWarning, match="line 3"):
        assert len(data.read_extreme_classification(path, on_error="skip")) == 2


@pytest.mark.parametrize("text", ["", "3 4", "a b c", "1 2 3 4", f"1 {2**31} 5"])
def test_a_bad_header(written, text):
    with pytest.raises(ValueError, match="line 1 (must be 'num_points num_features num_labels'|.* 32 bits)"):
        data.read_extreme_classification(written(text))


@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 3, 4), (1, 1, 1)])
def test_tiny_files(written, shape):
    num_points, num_features, num_labels = shape
    text = f"{num_points} {num_features} {num_labels}\n" + "0 0:1\n" * num_points
    points = data.read_extreme_classification(written(text))
    assert (len(points), points.num_features, points.num_labels) == shape
    assert points.label_counts().tolist() == ([1] if num_points else [0] * num_labels)


@pytest.mark.parametrize(("num", "blank"), [(1, 1), (2, 3), (3, 0)])
def test_blank_lines_behind_the_last_point_are_none(written, num, blank):
    text = f"{num} 4 5\n" + "0 1:1\n" * (num - 1) + "\n" * (blank + 1)  # the last point has nothing
    points = data.read_extreme_classification(written(text))
    assert len(points) == num and points.labels.nnz == num - 1
    with pytest.raises(ValueError, match=f"says {num} points, but {num + 1} lines .* header does not count"):
        data.read_extreme_classification(written(text + "0 1:1\n"))
    with pytest.raises(ValueError, match=f"says {num + 1 + blank} points, but {num} lines .*is truncated"):
        data.read_extreme_classification(written(f"{num + 1 + blank} 4 5\n" + "0 1:1\n" * num))


@pytest.mark.parametrize("suffix", ["txt", "gz", "xz", "bz2", "GZ"])
def test_there_and_back(tmp_path, suffix):
    points, path = random_points(), tmp_path / f"points.{suffix}"
    data.write_extreme_classification(path, points)
    again = data.read_extreme_classification(path)
    assert (again.features != points.features).nnz == (again.labels != points.labels).nnz == 0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match=r"p.zst would not be packed .* take \['.gz', '.xz', '.bz2'\]"):
        data.write_extreme_classification(tmp_path / "p.zst", points)


def test_an_interrupted_write_leaves_the_old_file(written, tmp_path, monkeypatch):
    path = written("old")

    def fail(matrix):
        raise OSError("disk full")

    monkeypatch.setattr("tfxc.data.extreme_classification._split", fail)
    with pytest.raises(OSError, match="disk full"):
        data.write_extreme_classification(path, random_points())
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_points_from_other_matrices():
    repeated = scipy.sparse.csr_matrix(([1.0, 2.0, 5.0], [1, 1, 0], [0, 2, 3]), (2, 3))
    labels = scipy.sparse.csc_matrix(np.array([[0, 2, 0], [1, 0, 3]]))
    labels.data[0] = 0
    points = data.LabeledPoints(repeated, labels)
    assert points.features.toarray().tolist() == [[0, 3, 0], [5, 0, 0]] and repeated.nnz == 3
    assert points.features.dtype == np.float32 and points.labels.dtype == bool and labels.nnz == 3
    assert points.labels.indices.tolist() == [1, 2] and points.label_counts().tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((2, 3)), np.zeros((1, 3)), r"shapes \(2, 3\) and \(1, 3\)"),
        ([[1.0, 0.0], [2.0, float("nan")]], np.zeros((2, 3)), "feature 1 of point 1 is nan"),
        ([[1.0, None]], [[1]], "feature 1 of point 0 is nan"),  # as a data frame holds a missing value
        *(
            (np.zeros((2, 2)), wrong, "labels must be a matrix .* ids from 0, but: ")
            for wrong in (
                scipy.sparse.csr_matrix((np.ones(2), [1, 2], [0, 1, 2]), (2, 2)),  # ids from 1
                *([[1], [1, 2]], np.float64([[1, np.nan], [0, 1]]), [[1, -1], [-1, 1]], [[0, 3], [1, 2]]),
            )
        ),
    ],
)
def test_bad_points(features, labels, message):
    refused(message, data.LabeledPoints, features, labels)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_batches_hold_every_point(batch_size):
    points = random_points()
    ids, values, labels = [], [], []
    for inputs, own in data.classification_dataset(points, batch_size, seed=None):
        assert inputs["ids"].dtype == own.dtype == np.int32 and inputs["values"].dtype == np.float32
        ids += [row[row >= 0].tolist() for row in inputs["ids"].numpy()]
        values += [row[row != 0].tolist() for row in inputs["values"].numpy()]
        labels += [row[row >= 0].tolist() for row in own.numpy()]
    assert ids == [row.indices.tolist() for row in points.features]
    assert values == [row.data.tolist() for row in points.features]
    assert labels == [row.indices.tolist() for row in points.labels]


def test_shuffled_batches_keep_points_together():
    points = random_points()
    seen = set()
    for inputs, own in data.classification_dataset(points, 7, seed=1):
        for row_ids, row in zip(inputs["ids"].numpy(), own.numpy(), strict=True):
            seen.add((tuple(row_ids[row_ids >= 0]), tuple(row[row >= 0])))
    pairs = zip(points.features, points.labels, strict=True)
    assert seen == {(tuple(one.indices), tuple(other.indices)) for one, other in pairs}


def test_nothing_to_batch():
    for points, batch_size, message in (
        (random_points(0), 4, "There are no points"),
        (random_points(), 2.5, "batch_size must be an integer"),
    ):
        refused(message, data.classification_dataset, points, batch_size)


@pytest.mark.parametrize("of_points", [data.tfidf, lambda own: data.classification_dataset(own, 2)])
def test_what_are_no_points_is_refused(of_points):
    message = "points must be tfxc.data.LabeledPoints, but got csr_matrix: pass"
    refused(message, of_points, scipy.sparse.csr_matrix((2, 3)))


def test_tfidf_by_hand():
    features = np.float32([[1, 2, 0], [0, 3, 0], [0, 0, 0]])
    train, test = data.tfidf(
        data.LabeledPoints(features, np.zeros((3, 2))), data.LabeledPoints(features[:1], np.zeros((1, 2)))
    )
    rare, common = np.log(4 / 2) + 1, np.log(4 / 3) + 1
    first = np.array([rare, 2 * common, 0])
    np.testing.assert_allclose(train.features.toarray()[0], first / np.linalg.norm(first), rtol=1e-6)
    np.testing.assert_allclose(train.features.toarray()[1:], [[0, 1, 0], [0, 0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(test.features.toarray(), train.features.toarray()[:1])
    assert train.features.dtype == np.float32
    refused(r"but have \[12, 5\]", data.tfidf, random_points(), random_points(num_features=5))


def test_a_stored_zero_is_no_occurrence():
    features = scipy.sparse.csr_matrix(np.float32([[1, 2], [3, 4]]))
    features[1, 0] = 0  # stays stored
    assert features.nnz == 4
    points = (data.LabeledPoints(own, np.zeros((2, 1))) for own in (features, features.toarray()))
    np.testing.assert_array_equal(*(data.tfidf(own)[0].features.toarray() for own in points))
