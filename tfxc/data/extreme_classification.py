"""Reads and writes the text format of the Extreme Classification Repository, and makes batches of its points.

The first line is ``num_points num_features num_labels``. Each point is a line ``l1,l2,... f:v f:v ...``,
whose labels or features may be missing. scikit-learn's reader of the related svmlight format refuses what
real files hold (repeated or unordered ids, points without a label), so this module parses the lines itself.
"""

import gzip
import lzma
import os
import re
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.atomic_write import atomic_write
from tfxc.data.batching import row_batches
from tfxc.data.line_reader import LineReader

# Digits match in one way only. Otherwise a bad line of many numbers would take exponential time.
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_POINT = re.compile(rf"((?:\d+(?:,\d+)*)?)((?:\s+\d+:{_NUMBER})*)\s*", re.ASCII)
_MAX_SIZE = np.iinfo(np.int32).max
_MAX_VALUE = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class LabeledPoints:
    """Sparse feature vectors with several labels each.

    Args:
        features: sparse matrix [N, F], kept as CSR float32.
        labels: sparse matrix [N, L], kept as CSR bool.

    Raises:
        ValueError: if they differ in N, or a feature is infinite or NaN.

    Example:
        >>> features = scipy.sparse.csr_matrix(np.float32([[0, 2], [1, 0]]))
        >>> points = LabeledPoints(features, scipy.sparse.csr_matrix([[True, True, False], [False] * 3]))
        >>> len(points), points.num_features, points.num_labels, points.label_counts().tolist()
        (2, 2, 3, [1, 1, 0])
    """

    features: scipy.sparse.csr_matrix
    labels: scipy.sparse.csr_matrix

    def __post_init__(self):
        features, labels = _canonical(self.features, np.float32), _canonical(self.labels, bool)
        if features.shape[0] != labels.shape[0]:
            raise ValueError(
                f"features [N, F] and labels [N, L] must have a row for each of the N points, but have "
                f"shapes {features.shape} and {labels.shape}."
            )
        bad = np.flatnonzero(~np.isfinite(features.data))
        if len(bad):
            point = np.searchsorted(features.indptr, bad[0], side="right") - 1
            raise ValueError(
                f"Features must be finite float32 numbers, but feature {features.indices[bad[0]]} of point "
                f"{point} is {features.data[bad[0]]}."
            )
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


def _canonical(matrix, dtype):
    """Returns a CSR matrix without duplicates, and without False. The caller's matrix does not change."""
    own = scipy.sparse.csr_matrix(matrix, dtype=dtype)
    if own.has_canonical_format and (dtype is not bool or own.data.all()):
        return own
    own = own.copy()
    own.sum_duplicates()
    if dtype is bool:
        own.eliminate_zeros()
    return own


def read_extreme_classification(path: str | os.PathLike[str], on_error: str = "raise") -> LabeledPoints:
    """Reads a file of the Extreme Classification Repository; plain, ``.gz`` or ``.xz``.

    Values of a feature that is repeated in a line are added. Repeated labels count once.

    Args:
        path: the file.
        on_error: ``"raise"``, or ``"skip"`` to leave bad lines out with one warning.

    Raises:
        ValueError: for bad lines (not ``label,... id:value ...``, NaN, a value beyond float32, an id outside
            the header's range), with the first ten; if the number of points is not that of the header.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
        >>> _ = path.write_text("2 3 4\\n0,3 1:0.5 2:1\\n 0:2\\n")
        >>> points = read_extreme_classification(path)
        >>> points.features.toarray().tolist()
        [[0.0, 0.5, 1.0], [2.0, 0.0, 0.0]]
        >>> points.labels.toarray().astype(int).tolist()
        [[1, 0, 0, 1], [0, 0, 0, 0]]

    Reference:
        Bhatia et al., "The Extreme Classification Repository: Multi-label Datasets and Code", 2016.
    """
    lines = LineReader(path, on_error)
    text = iter(lines)
    num_points, num_features, num_labels = _header(next(text, ""), lines.path)
    labels, features = _Rows(num_labels), _Rows(num_features)
    num_blank = 0
    for line in text:
        if lines.number > num_points + 1 and not line.strip():
            num_blank += 1  # after the last point
            continue
        match = _POINT.fullmatch(line)
        if match is None:
            lines.reject(f"not 'label,label,... id:value id:value ...': {line[:60]!r}")
            continue
        # Ids are parsed as floats: exact below 2^31, and larger ones become inf instead of overflowing.
        own_labels = np.array(match[1].split(",") if match[1] else [], np.float64)
        ids, values = np.array(match[2].replace(":", " ").split(), np.float64).reshape(-1, 2).T
        problem = labels.problem(own_labels, "label") or features.problem(ids, "feature")
        if not problem and len(values) and np.abs(values).max() > _MAX_VALUE:
            problem = f"value {values[np.abs(values).argmax()]} is beyond float32"
        if problem:
            lines.reject(problem)
            continue
        labels.add(own_labels, np.ones(len(own_labels)))
        features.add(ids, values)
    num_lines = lines.number - 1 - num_blank
    if num_lines != num_points:
        is_cut = num_lines < num_points
        raise ValueError(
            f"{lines.path}: the header says {num_points} points, but {num_lines} lines follow: the "
            f"{'file is truncated or damaged' if is_cut else 'header does not count them all'}. Fetch it "
            "again, or correct the header."
        )
    lines.report()
    return LabeledPoints(features.matrix(), labels.matrix())


def _header(line, path):
    sizes = line.split()
    if len(sizes) != 3 or not all(size.isdecimal() for size in sizes):
        raise ValueError(
            f"{path}: line 1 must be 'num_points num_features num_labels', but is {line[:60]!r}."
        )
    sizes = [int(size) for size in sizes]
    if max(sizes) > _MAX_SIZE:
        raise ValueError(f"{path}: line 1 is {line[:60]!r}, but ids have 32 bits: at most {_MAX_SIZE} each.")
    return sizes


class _Rows:
    """Collects the rows of a sparse matrix."""

    def __init__(self, width):
        self.width, self.ids, self.values = width, [], []

    def problem(self, ids, what):
        if len(ids) and ids.max() >= self.width:
            return f"{what} {ids.max():.0f} of {self.width}: ids are 0 to {self.width - 1}"
        return None

    def add(self, ids, values):
        self.ids.append(ids)
        self.values.append(values)

    def matrix(self):
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in self.ids])])
        empty = [np.empty(0)]
        ids, values = np.concatenate(self.ids or empty), np.concatenate(self.values or empty)
        return scipy.sparse.csr_matrix((values, ids.astype(np.int32), offsets), (len(self.ids), self.width))


def write_extreme_classification(path: str | os.PathLike[str], points: LabeledPoints) -> None:
    """Writes points in the repository's format. An interrupted write leaves an older file as it was.

    Args:
        path: the file; ``.gz`` and ``.xz`` compress it.
        points: N points of ``num_features`` features and ``num_labels`` labels.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
        >>> write_extreme_classification(path, LabeledPoints(
        ...     scipy.sparse.csr_matrix(np.float32([[0, 0.5]])), scipy.sparse.csr_matrix([[True, True]])))
        >>> path.read_text()
        '1 2 2\\n0,1 1:0.5\\n'
    """
    openers: dict = {".gz": gzip.open, ".xz": lzma.open}
    opened = openers.get(os.path.splitext(path)[1], open)
    with atomic_write(path) as aside, opened(aside, "wt", encoding="utf-8") as file:
        file.write(f"{len(points)} {points.num_features} {points.num_labels}\n")
        for labels, features in zip(_split(points.labels), _split(points.features), strict=True):
            pairs = "".join(f" {i}:{value:.9g}" for i, value in zip(*features, strict=True))
            file.write(",".join(map(str, labels[0])) + (pairs or " ") + "\n")


def _split(matrix):
    for start, stop in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        yield matrix.indices[start:stop].tolist(), matrix.data[start:stop].tolist()


def classification_dataset(
    points: LabeledPoints, batch_size: int, seed: int | None = 0, example_ids: bool = False
) -> tf.data.Dataset:
    """Returns batches ``({"ids", "values"}, labels)`` for ``tfxc.layers.EmbeddingBag`` and the losses.

    ``ids`` int32 and ``values`` float32 [B, F'], and ``labels`` int32 [B, P], are padded with -1 (values with
    0) to the longest row of the batch. An exported model accepts them as they are, whereas a sparse input
    would become a dense [B, F]. The last batch may be smaller.

    Args:
        points: N points.
        batch_size: B, at least 1.
        seed: decides the order of the points, which changes with each epoch; None keeps their order.
        example_ids: whether the inputs include "example_ids", the numbers of the points int64 [B].

    Raises:
        ValueError: if there is no point, or for a batch_size below 1.

    Example:
        >>> points = LabeledPoints(scipy.sparse.csr_matrix(np.float32([[0, 2], [1, 3]])),
        ...                        scipy.sparse.csr_matrix([[True, False], [False, False]]))
        >>> inputs, labels = next(iter(classification_dataset(points, 2, seed=None)))
        >>> inputs["ids"].numpy().tolist(), inputs["values"].numpy().tolist(), labels.numpy().tolist()
        ([[1, -1], [0, 1]], [[2.0, 0.0], [1.0, 3.0]], [[0], [-1]])
    """
    batch_size = positive_int(batch_size, "batch_size")
    if not len(points):
        raise ValueError("There are no points to make batches of: pass at least one.")
    features, labels = points.features, points.labels
    ids, values = _ragged(features, features.indices, tf.int32), _ragged(features, features.data, tf.float32)
    label_ids = _ragged(labels, labels.indices, tf.int32)

    def batch(rows):
        inputs = {"ids": _padded(ids, rows, -1), "values": _padded(values, rows, 0)}
        inputs |= {"example_ids": rows} if example_ids else {}
        return inputs, _padded(label_ids, rows, -1)

    return row_batches(len(points), batch_size, batch, seed)


def _ragged(matrix, values, dtype) -> tf.RaggedTensor:
    """Returns values of the entries of a CSR matrix, row by row."""
    splits = tf.constant(matrix.indptr, tf.int64)
    return tf.RaggedTensor.from_row_splits(tf.constant(values, dtype), splits, validate=False)


def _padded(ragged, rows, padding) -> tf.Tensor:
    """Returns chosen rows [B, longest row, at least 1]."""
    chosen = tf.gather(ragged, rows).to_tensor(padding)
    missing = tf.maximum(1 - tf.shape(chosen)[1], 0)
    return tf.pad(chosen, [[0, 0], [0, missing]], constant_values=padding)
