import gzip
import json

import numpy as np
import pytest
import scipy.sparse
from refusal_checks import refused

from tfxc.data import (
    classification_dataset,
    read_extreme_classification,
    read_filter_labels,
    read_sparse_matrix,
    read_texts,
)

FEATURES = [[0.5, 0, 1], [0, 0, 0], [0, 2, 0]]
LABELS = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]


def as_text(path, rows, first_id=0):
    lines = [" ".join(f"{i + first_id}:{value}" for i, value in enumerate(row) if value) for row in rows]
    text = "\n".join([f"{len(rows)} {len(rows[0])}", *lines]) + "\n"
    path = path.with_suffix(".txt.gz")
    path.write_bytes(gzip.compress(text.encode()))
    return path


def as_npz(path, rows):
    scipy.sparse.save_npz(path.with_suffix(".npz"), scipy.sparse.csc_matrix(np.array(rows, float)))
    return path.with_suffix(".npz")


def as_npz_of_one(path, rows):
    np.savez(path.with_suffix(".npz"), x=np.array(rows))
    return path.with_suffix(".npz")


def as_npy(path, rows):
    np.save(path.with_suffix(".npy"), np.array(rows, np.float16))
    return path.with_suffix(".npy")


@pytest.mark.parametrize("features", [as_text, as_npz, as_npz_of_one, as_npy])
@pytest.mark.parametrize("labels", [as_text, as_npz])
def test_two_files_hold_what_one_does(features, labels, written, tmp_path):
    one = written("3 3 4\n0,3 0:0.5 2:1\n1\n 1:2\n", "train.txt")
    pair = features(tmp_path / "trn_X_Xf", FEATURES), labels(tmp_path / "trn_X_Y", LABELS)
    for points in (read_extreme_classification(one), read_extreme_classification(pair[0], labels=pair[1])):
        assert points.features.toarray().tolist() == FEATURES and points.labels.dtype == bool
        assert points.labels.toarray().tolist() == LABELS
    lines = [{"uid": "x", "title": "Tea", "target_ind": np.flatnonzero(row).tolist()} for row in LABELS]
    path = written("".join(json.dumps(line) + "\n" for line in lines), "trn.json")
    assert read_sparse_matrix(path, num_columns=4).toarray().tolist() == LABELS


def test_what_hand_made_files_hold(written):
    text = "7 3 4\n0, 1, 2 0:1\n0,1, 0:1\n1 0: .50\n0.0,1.0 0:1\n2 , 1 1 : 2\n3\t1:1\n0:1 1:1\n"
    points = read_extreme_classification(written(text, "t.txt"))
    labels = [row.indices.tolist() for row in points.labels]
    assert labels == [[0, 1, 2], [0, 1], [1], [0, 1], [1, 2], [3], []]
    features = [[1, 0], [1, 0], [0.5, 0], [1, 0], [0, 2], [0, 1], [1, 1]]
    assert points.features.toarray()[:, :2].tolist() == features


def test_ids_from_one_are_told_and_read(written, tmp_path):
    path = written("2 3 4\n1,4 1:0.5 3:1\n2 2:2\n", "t.txt")
    message = "label 4 of 4: ids are 0 to 3\nId 0 .* seem to count from 1, pass first_id=1"
    refused(message, read_extreme_classification, path)
    points = read_extreme_classification(path, first_id=1)
    assert points.features.toarray().tolist() == [[0.5, 0, 1], [0, 2, 0]]
    assert [row.indices.tolist() for row in points.labels] == [[0, 3], [1]]
    pair = [as_text(tmp_path / name, rows, 1) for name, rows in (("x", FEATURES), ("y", LABELS))]
    points = read_extreme_classification(pair[0], labels=pair[1], first_id=1)
    assert points.label_counts().tolist() == [1, 1, 0, 1]
    with pytest.raises(ValueError, match="feature 0 of 3: ids are 1 to 3"):
        read_extreme_classification(written("1 3 4\n1 0:1\n", "t.txt"), first_id=1)


@pytest.mark.parametrize(
    ("text", "read", "message"),
    [
        ("3 3\n", read_extreme_classification, "Two numbers begin a file .* alone: .*labels="),
        ("3 3 4\n", read_sparse_matrix, "Three numbers begin a file of both"),
        ("1,2 0:1\n", read_extreme_classification, "is a point, as in svmlight's format: write that line"),
        ("2 1:1\n", read_extreme_classification, "is a point, as in svmlight"),
        ("0:1 2:1\n", read_sparse_matrix, "must be 'num_rows num_columns'.* is a point"),
        ("1 3\n1 0:1\n", read_sparse_matrix, "not 'id:value id:value"),
        ("1 3\n3:1\n", read_sparse_matrix, "id 3 of 3: ids are 0 to 2"),
        ("2 3\n1:1\n", read_sparse_matrix, "header says 2 points, but 1 lines"),
    ],
)
def test_the_layout_of_a_file_is_named(text, read, message, written):
    refused(message, read, written(text, "t.txt"))


def test_bad_lines_of_either_file_leave_the_point_out(written, tmp_path):
    x = written("4 3\n0:1\n0:x\n1:1\n2:1\n", "x.txt")
    y = written("4 2\n0:1\n0:1\n5:1\n1:1\n", "y.txt")
    with pytest.warns(UserWarning, match="1 bad of 5 lines"):
        points = read_extreme_classification(x, "skip", labels=y)
    assert points.features.indices.tolist() == [0, 2] and points.labels.indices.tolist() == [0, 1]
    with pytest.warns(UserWarning, match="line 3"):
        assert read_sparse_matrix(x, "skip").getnnz(1).tolist() == [1, 0, 1, 1]
    x = as_text(tmp_path / "x", FEATURES + FEATURES)
    with pytest.raises(ValueError, match="hold 6 points and 3: they belong to different sets"):
        read_extreme_classification(x, labels=as_npz(tmp_path / "y", LABELS))
    refused("features or labels alone: pass both files", read_extreme_classification, tmp_path / "y.npz")


def test_lines_that_are_not_utf8_keep_their_rows(written, tmp_path):
    read = {
        "x.txt": lambda path: read_sparse_matrix(path, "skip").getnnz(1).tolist(),
        "x.json": lambda path: read_sparse_matrix(path, "skip", num_columns=2).getnnz(1).tolist(),
        "t.txt": lambda path: [len(text) for text in read_texts(path, on_error="skip")],
    }
    lines = {"x.txt": b"4 2\n\xff\n0:1\n1:1\n\xff\n", "t.txt": b"\xff\na\nb\n\xff\n"}
    lines["x.json"] = b'\xff\n{"target_ind": [1]}\n\n{"target_ind": [0]}\n\xff\n'
    for name, text in lines.items():
        with pytest.warns(UserWarning, match="2 bad of [45] lines"):
            assert read[name](written(text, name)) == [0, 1, 1, 0]
    with pytest.warns(UserWarning, match="2 bad of 5 lines"):
        path = written(lines["x.txt"], "x.txt")
        points = read_extreme_classification(path, "skip", labels=as_npz(tmp_path / "y", np.eye(4)))
    assert points.features.indices.tolist() == [0, 1] and points.labels.indices.tolist() == [1, 2]


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("row", [7, -1])
def test_an_archive_with_ids_out_of_range(row, form, tmp_path):
    parts = {"data": [1.0], "indices": [row], "indptr": [0, 1], "shape": [1, 1], "format": form.encode()}
    np.savez(tmp_path / "x.npz", **parts)
    refused("must hold a matrix of numbers .*indices must be", read_sparse_matrix, tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_arrays_that_are_none(name, written, tmp_path):
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        refused("must hold a matrix of numbers", read_sparse_matrix, written(content, name))
    np.save(tmp_path / "y.npy", [1, 2])
    refused(r"it holds int64 of shape \(2,\)", read_sparse_matrix, tmp_path / "y.npy")


@pytest.mark.parametrize("first_id", [2, -1, "1", None])
def test_ids_count_from_zero_or_one(first_id, written):
    with pytest.raises(ValueError, match=r"first_id must be an integer in \[0, 1\]"):
        read_sparse_matrix(written("1 3\n1:1\n", "x.txt"), first_id=first_id)


def test_json_lines(written):
    path = written('{"title": "a", "target_ind": [0, 9]}\n{"title": 5}\n[]\nx\n', "t.json")
    refused("JSON is read by read_sparse_matrix.path, num_co", read_extreme_classification, path, labels=path)
    for bad in ("true", 10**400):
        with pytest.raises(ValueError, match="line 1: no JSON object with a list of ids"):
            read_sparse_matrix(written(f'{{"target_ind": [{bad}]}}\n', "b.json"), num_columns=3)
    refused("pass num_columns=", read_sparse_matrix, path)
    for num_columns in (3.0, -3):
        refused("num_columns must be an integer of at", read_sparse_matrix, path, num_columns=num_columns)
    with pytest.raises(ValueError, match="(?s)4 bad of 4.*line 1: id 9 of 3.*line 2: no JSON .* 'target"):
        read_sparse_matrix(path, num_columns=3)
    refused("(?s)3 bad of 4 .*line 2: no JSON object with a text under 'title'", read_texts, path)


def test_texts_keep_their_lines(written):
    path = written("caf\xe9\n\n tea \n".encode("latin-1"), "Y.txt")
    assert read_texts(path, encoding="latin-1") == ["caf\xe9", "", "tea"]
    refused("line 1: not UTF-8", read_texts, path)
    path = written(gzip.compress(b'{"title": "Tea", "content": "hot"}\n'), "lbl.json.gz")
    assert read_texts(path) == ["Tea"] and read_texts(path, "content") == ["hot"]


def test_pairs_that_count_in_no_metric(written, tmp_path):
    pairs = read_filter_labels(written("0 3\n2\t1.0\n\n", "f.txt"))
    assert pairs.tolist() == [[0, 3], [2, 1]] and pairs.dtype == np.int64
    assert read_filter_labels(written("", "f.txt")).shape == (0, 2)
    with pytest.raises(ValueError, match="(?s)3 bad of 3 .*line 1: not 'point label', two ids from 0: '0 1"):
        read_filter_labels(written("0 1 2\n-1 0\n0 99999999999\n", "f.txt"))
    x, y = (as_npz(tmp_path / name, rows) for name, rows in (("x", FEATURES), ("y", LABELS)))
    points = read_extreme_classification(x, labels=y)
    (inputs, labels), *_ = classification_dataset(points, 3, seed=None, filter_labels=pairs)
    assert inputs["exclude"].numpy().tolist() == [[3], [-1], [1]]
    assert labels.numpy().tolist() == [[0], [1], [-1]] and points.labels.nnz == 3
    triples, other = [[0, 1, 2]] * 2, [[0, 4]]
    refused("filter_labels .* belong to another set", classification_dataset, points, 3, filter_labels=other)
    refused(r"are of shape \(2, 3\)", classification_dataset, points, 3, filter_labels=triples)
