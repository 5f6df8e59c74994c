"""Points of the Extreme Classification Repository: reads and writes them, and makes batches of them.

scikit-learn's reader of the related svmlight format refuses what real files hold (repeated or unordered ids,
points without a label).
"""

import bz2
import gzip
import lzma
import os
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfxc.arguments import integers, positive_int, refuse_masked, require_kind
from tfxc.atomic_write import atomic_write
from tfxc.data.batching import row_batches
from tfxc.data.files import one_file
from tfxc.data.line_reader import LineReader
from tfxc.data.sparse_matrices import read_matrix, read_rows


@dataclass(frozen=True, eq=False)
class LabeledPoints:
    """Sparse feature vectors with several labels each.

    Args:
        features: matrix [N, F], kept as CSR float32.
        labels: matrix [N, L], kept as CSR bool.

    Raises:
        ValueError: for what are no matrices of numbers, or have ids outside their shape; if they differ in N,
            a label is negative, or a feature is infinite or NaN.

    Example:
        >>> points = LabeledPoints([[0, 2], [1, 0]], labels=[[1, 1, 0], [0, 0, 0]])
        >>> len(points), points.num_features, points.num_labels, points.label_counts().tolist()
        (2, 2, 3, [1, 1, 0])
    """

    features: scipy.sparse.csr_matrix
    labels: scipy.sparse.csr_matrix

    def __post_init__(self):
        features = _canonical(self.features, np.float32, "features")
        labels = _canonical(self.labels, bool, "labels")
        if features.shape[0] != labels.shape[0]:
            shapes = f"{features.shape} and {labels.shape}"
            raise ValueError(f"features and labels must have a row for each point, not shapes {shapes}.")
        bad = np.flatnonzero(~np.isfinite(features.data))
        if len(bad):
            point = np.searchsorted(features.indptr, bad[0], side="right") - 1
            own = f"feature {features.indices[bad[0]]} of point {point} is {features.data[bad[0]]}"
            raise ValueError(f"Features must be finite float32 numbers, but {own}.")
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self):
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        return self.features.shape[1]

    @property
    def num_labels(self) -> int:
        return self.labels.shape[1]

    def label_counts(self) -> np.ndarray:
        """Returns int64 [L], the number of points that have each label."""
        return np.bincount(self.labels.indices, minlength=self.num_labels)


def require_points(points):
    """Raises ValueError for anything but ``LabeledPoints``."""
    require_kind(points, LabeledPoints, "points", "LabeledPoints(features, labels)")


def _canonical(matrix, dtype, name):
    """Returns a CSR matrix without duplicates, and without False. The caller's matrix does not change."""
    kind, is_dense = None if dtype is bool else dtype, not scipy.sparse.issparse(matrix)
    refuse_masked(matrix, name)
    try:
        with np.errstate(over="ignore"):
            # SciPy takes None, in a matrix of objects, for a zero.
            own = scipy.sparse.csr_matrix(np.asarray(matrix, kind) if is_dense else matrix, dtype=kind)
            if dtype is bool and own.dtype.kind == "f" and np.isnan(own.data).any():
                raise ValueError("NaN is neither True nor False")
            if dtype is bool and (own.data != 1 if is_dense else own.data < 0).any():  # such as rows of ids
                found = "neither 0 nor 1" if is_dense else "negative"
                raise ValueError(f"some are {found}: write 1 for yes and 0 for no, as by matrix > 0")
            own = own.astype(dtype, copy=False)
        own.check_format()  # SciPy makes matrices of ids that count from 1, in which the last has no column
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a matrix [N, ...] of numbers, ids from 0, but: {error}.") from error
    if own.has_canonical_format and (dtype is not bool or own.data.all()):
        return own
    own = own.copy()
    own.sum_duplicates()
    if dtype is bool:
        own.eliminate_zeros()
    return own


def read_extreme_classification(
    path: str | os.PathLike[str],
    on_error: str = "raise",
    labels: str | os.PathLike[str] | None = None,
    first_id: int = 0,
) -> LabeledPoints:
    """Reads points of the Extreme Classification Repository, from one file or from two.

    One file has a header ``num_points num_features num_labels`` and a line ``label,... id:value ...`` for
    each point. Two files hold the features and the labels, each as `read_sparse_matrix` reads it. Values of a
    repeated feature are added. Repeated labels count once.

    Args:
        path: the file of both, or of the features; ``.txt``, plain or packed. One of features may
            be ``.npz`` or ``.npy``.
        on_error: ``"raise"``, or ``"skip"`` to leave points with bad lines out with one warning a file.
        labels: the file of the labels, if there are two; ``.txt`` or ``.npz``.
        first_id: the least id in text, 0 or 1.

    Raises:
        ValueError: for bad lines (not ``label,... id:value ...``, NaN, a value beyond float32, an id outside
            the header's range), with the first ten; if the number of points is not that of the header, or
            differs between the files.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
        >>> _ = path.write_text("2 3 4\\n0,3 1:0.5 2:1\\n 0:2\\n")
        >>> points = read_extreme_classification(path)
        >>> points.features.toarray().tolist(), points.labels.toarray().astype(int).tolist()
        ([[0.0, 0.5, 1.0], [2.0, 0.0, 0.0]], [[1, 0, 0, 1], [0, 0, 0, 0]])

    Reference:
        Bhatia et al., "The Extreme Classification Repository: Multi-label Datasets and Code", 2016.
    """
    if labels is None:
        if one_file(path).suffix in (".npz", ".npy"):
            raise ValueError(f"{path} holds features or labels alone: pass both files, one as labels=.")
        matrices, is_good = read_rows(LineReader(path, on_error), 2, first_id)
    else:
        (one, is_one), (other, is_other) = (read_matrix(own, on_error, first_id) for own in (path, labels))
        if one.shape[0] != other.shape[0]:
            sizes = f"{one.shape[0]} points and {other.shape[0]}"
            raise ValueError(f"{path} and {labels} hold {sizes}: they belong to different sets.")
        matrices, is_good = [one, other], is_one & is_other
    return LabeledPoints(*(matrix if is_good.all() else matrix[is_good] for matrix in matrices))


def write_extreme_classification(path: str | os.PathLike[str], points: LabeledPoints) -> None:
    """Writes points in the repository's format. An interrupted write leaves an older file as it was.

    Args:
        path: the file; ``.gz``, ``.xz`` and ``.bz2`` compress it, and other packings are a ValueError.
        points: N points.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
        >>> write_extreme_classification(path, LabeledPoints([[0, 0.5]], [[1, 1]]))
        >>> path.read_text()
        '1 2 2\\n0,1 1:0.5\\n'
    """
    require_points(points)
    openers: dict = {"": open, ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    packing = one_file(path).packing
    if packing not in openers:
        raise ValueError(f"{path} would not be packed as its suffix says: take {[*openers][1:]}, or none.")
    opened = openers[packing]
    with atomic_write(path) as aside, opened(aside, "wt", encoding="utf-8") as file:
        file.write(f"{len(points)} {points.num_features} {points.num_labels}\n")
        for labels, features in zip(_split(points.labels), _split(points.features), strict=True):
            pairs = "".join(f" {i}:{value:.9g}" for i, value in zip(*features, strict=True))
            file.write(",".join(map(str, labels[0])) + (pairs or " ") + "\n")


def _split(matrix):
    for start, stop in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        yield matrix.indices[start:stop].tolist(), matrix.data[start:stop].tolist()


def tfidf(train: LabeledPoints, *others: LabeledPoints) -> list[LabeledPoints]:
    """Weights features as ``value · (log((1 + N) / (1 + n_f)) + 1)`` and scales each point to length 1.

    ``n_f`` is the number of training points that have feature f. The other sets get the same weights.

    Raises:
        ValueError: if a set has another number of features than the training points.

    Example:
        >>> points = LabeledPoints([[1, 1], [0, 3]], labels=[[1], [1]])
        >>> print(tfidf(points)[0].features.toarray().round(2))
        [[0.81 0.58]
         [0.   1.  ]]

    Reference: Salton, Buckley, "Term-weighting approaches in automatic text retrieval", 1988.
    """
    for points in (train, *others):
        require_points(points)
    widths = [points.num_features for points in (train, *others)]
    if len(set(widths)) > 1:
        raise ValueError(f"All sets must have the same number of features, but have {widths}.")
    counts = np.bincount(train.features.indices[train.features.data != 0], minlength=train.num_features)
    weight = np.log((1 + len(train)) / (1 + counts)) + 1
    weighted = []
    for points in (train, *others):
        features = points.features @ scipy.sparse.diags(weight)
        length = np.sqrt(np.asarray(features.multiply(features).sum(1)).ravel())
        features = scipy.sparse.diags(1 / np.where(length > 0, length, 1)) @ features
        weighted.append(replace(points, features=scipy.sparse.csr_matrix(features, dtype=np.float32)))
    return weighted


def classification_dataset(
    points: LabeledPoints,
    batch_size: int,
    seed: int | None = 0,
    example_ids: bool = False,
    filter_labels: np.ndarray | None = None,
) -> tf.data.Dataset:
    """Returns batches ``({"ids", "values"}, labels)`` for ``tfxc.layers.EmbeddingBag`` and the losses.

    ``ids`` int32 and ``values`` float32 [B, F'], and ``labels`` int32 [B, P], are padded with -1 (values with
    0) to the longest row of the batch. The last batch may be smaller.

    Args:
        points: N points.
        batch_size: B, at least 1.
        seed: decides the order of the points, which changes with each epoch; None keeps their order.
        example_ids: whether the inputs include "example_ids", the numbers of the points int64 [B].
        filter_labels: pairs of a point and a label [P, 2] that count in no metric, see `read_filter_labels`.
            They are no labels, and the inputs include "exclude", int32 [B, X] padded with -1, which the model
            does not rank.

    Raises:
        ValueError: if there is no point, for a batch_size below 1, or a pair outside the points and labels.

    Example:
        >>> points = LabeledPoints([[0, 2], [1, 3]], labels=[[1, 0], [0, 0]])
        >>> inputs, labels = next(iter(classification_dataset(points, 2, seed=None)))
        >>> inputs["ids"].numpy().tolist(), inputs["values"].numpy().tolist(), labels.numpy().tolist()
        ([[1, -1], [0, 1]], [[2.0, 0.0], [1.0, 3.0]], [[0], [-1]])
    """
    require_points(points)
    batch_size = positive_int(batch_size, "batch_size")
    if not len(points):
        raise ValueError("There are no points to make batches of: pass at least one.")
    features, labels = points.features, points.labels
    ids, values = _ragged(features, features.indices, tf.int32), _ragged(features, features.data, tf.float32)
    excluded = None
    if filter_labels is not None:
        filtered = _pairs(filter_labels, labels.shape)
        labels = scipy.sparse.csr_matrix(labels > filtered)
        excluded = _ragged(filtered, filtered.indices, tf.int32)
    label_ids = _ragged(labels, labels.indices, tf.int32)

    def batch(rows):
        inputs = {"ids": _padded(ids, rows, -1), "values": _padded(values, rows, 0)}
        inputs |= {"example_ids": rows} if example_ids else {}
        inputs |= {} if excluded is None else {"exclude": _padded(excluded, rows, -1)}
        return inputs, _padded(label_ids, rows, -1)

    return row_batches(len(points), batch_size, batch, seed)


def _pairs(pairs, shape) -> scipy.sparse.csr_matrix:
    """Returns pairs [P, 2] as a bool matrix."""
    pairs = integers(pairs, "filter_labels")
    pairs = pairs if pairs.size else pairs.reshape(0, 2)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"filter_labels must be pairs [P, 2], but are of shape {pairs.shape}.")
    if len(pairs) and ((pairs < 0) | (pairs >= shape)).any():
        raise ValueError(
            f"filter_labels must be pairs of a point and a label below {shape}, but reach {pairs.max(0)}: "
            "they belong to another set."
        )
    return _canonical(scipy.sparse.coo_matrix((np.ones(len(pairs), bool), pairs.T), shape), bool, "pairs")


def _ragged(matrix, values, dtype) -> tf.RaggedTensor:
    """Returns values of the entries of a CSR matrix, row by row."""
    splits = tf.constant(matrix.indptr, tf.int64)
    return tf.RaggedTensor.from_row_splits(tf.constant(values, dtype), splits, validate=False)


def _padded(ragged, rows, padding) -> tf.Tensor:
    """Returns chosen rows [B, longest row, at least 1]."""
    chosen = tf.gather(ragged, rows).to_tensor(padding)
    missing = tf.maximum(1 - tf.shape(chosen)[1], 0)
    return tf.pad(chosen, [[0, 0], [0, missing]], constant_values=padding)
