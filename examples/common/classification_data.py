"""The points of the extreme classification examples: reads, weighs and hashes them."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import sparse

import tfxc
from common.arguments import existing, whole
from common.label_texts import label_points

BUNDLED = Path(__file__).resolve().parents[1] / "data" / "tate"


# The files of a folder by what they hold: in the older layout of the repository, then in the newer ones.
ALONE = {"train": ["train.txt"], "test": ["test.txt"]}
FEATURES = {
    part: [f"{part}_X_Xf.txt", f"{part}_X_Xf.npz", f"X.{part}.npz", f"{part}_X_Xf.npy"]
    for part in ("trn", "tst")
}
LABELS = {part: [f"{part}_X_Y.txt", f"{part}_X_Y.npz", f"Y.{part}.npz"] for part in ("trn", "tst")}
LABEL_FEATURES = ["lbl_X_Xf.txt", "lbl_X_Xf.npz", "lbl_X_Xf.npy"]
LABEL_NAMES = ["label_names.txt", "Y.txt", "lbl.json"]
POINT_TEXTS = ["tst_X.txt", "tst.json"]
FILTERS = ["filter_labels_test.txt", "tst_filter_labels.txt"]


@dataclass(frozen=True, eq=False)
class TestPoints(tfxc.data.LabeledPoints):
    """Test points, pairs of a point and a label that count in no metric, and the points' texts or None."""

    filter_labels: np.ndarray | None = None
    texts: tfxc.data.Names | None = None

    def relabelled(self, order):
        """The points with the labels in another order."""
        pairs = self.filter_labels
        if pairs is not None:
            pairs = np.stack([pairs[:, 0], np.argsort(order)[pairs[:, 1]]], 1)
        return replace(self, labels=self.labels[:, order], filter_labels=pairs)

    def dataset(self, batch_size):
        """The batches of an evaluation."""
        return tfxc.data.classification_dataset(self, batch_size, seed=None, filter_labels=self.filter_labels)


@dataclass(frozen=True, eq=False)
class TrainingPoints(tfxc.data.LabeledPoints):
    """Training points: those of the file, then optional points made from the labels' names."""

    num_given: int  # the number of points in the file

    def propensities(self, a=0.55, b=1.5):
        """The propensities of the labels, from the points of the file alone."""
        given = replace(self, features=self.features[: self.num_given], labels=self.labels[: self.num_given])
        return tfxc.metrics.propensities(given.label_counts(), self.num_given, a, b)

    def of_labels(self):
        """Every label as a point: by its name where names are points, else by the sum of its own points."""
        labels = sparse.csr_matrix(self.labels.T, dtype=np.float32)
        named = labels[:, self.num_given :] @ self.features[self.num_given :]
        others = sparse.diags((np.diff(named.indptr) == 0).astype(np.float32))
        features = named + others @ (labels @ self.features)
        return tfxc.data.LabeledPoints(features, sparse.eye(self.num_labels, format="csr"))


def add_arguments(add):
    """The options of the data."""
    folder = "folder with train.txt and test.txt, or trn_X_Xf.txt, trn_X_Y.txt, tst_..., plain, .gz or .xz"
    add("--data", type=existing, default=BUNDLED, help=folder)
    add("--hash-features", type=whole, default=0, help="features to hash them into; 0: as they are")
    add("--skip-bad-lines", action="store_true", help="leave out lines that cannot be read")
    add("--max-points", type=whole, default=0, help="training and test points to take; 0: all")
    add("--first-id", type=int, choices=(0, 1), default=0, help="the least id of features and labels in text")
    add("--text-encoding", help="of names and texts; UTF-8 by default, older files are latin-1")


def find(folder, *names):
    """The first file of these names, plain or compressed; None if there is none."""
    paths = [folder / (name + suffix) for name in names for suffix in ("", ".xz", ".gz")]
    return next((path for path in paths if path.exists()), None)


def lines_of(path, encoding=None):
    """The stripped texts of a file, one a line or the titles of JSON objects; plain, .gz or .xz."""
    return list(tfxc.data.read_texts(path, encoding=encoding))


def load(
    folder,
    label_texts=False,
    hash_features=0,
    skip_bad_lines=False,
    first_id=0,
    text_encoding=None,
    max_points=0,
):
    """TF-IDF weighted training and test points, and the labels' names or None.

    Args:
        folder: train.txt and test.txt, and optionally label_names.txt and vocabulary.txt; or features and
            labels in two files each, and optionally label texts, label features and filters.
        label_texts: whether the labels' names, or their features, are training points, too.
        hash_features: number of features to hash them into, or 0.
        skip_bad_lines: whether to leave out lines that cannot be read.
        first_id: the least id in text, 0 or 1.
        text_encoding: of names and texts; None for UTF-8.
        max_points: number of training and of test points to take, or 0 for all.
    """
    on_error = "skip" if skip_bad_lines else "raise"
    points = [
        first(tfxc.data.read_extreme_classification(features, on_error, labels, first_id), max_points)
        for features, labels in _files_of_points(folder)
    ]
    names_file = find(folder, *LABEL_NAMES)
    names = names_file and _distinct(lines_of(names_file, text_encoding))
    if names is not None and len(names) != points[0].num_labels:
        raise SystemExit(
            f"{names_file} must have a line for each of {points[0].num_labels} labels, but has {len(names)}."
        )
    if label_texts:
        points.append(_label_points(folder, points[0], names, first_id))
    train, test, *texts = _hashed(tfxc.data.tfidf(*points), hash_features)
    filters, point_texts = find(folder, *FILTERS), find(folder, *POINT_TEXTS)
    pairs = filters and tfxc.data.read_filter_labels(filters)
    if filters and max_points:
        pairs = pairs[pairs[:, 0] < max_points]
    test = TestPoints(
        test.features,
        test.labels,
        pairs,
        point_texts and tfxc.data.read_texts(point_texts, encoding=text_encoding),
    )
    if texts:
        return _with_texts(train, *texts), test, names
    return TrainingPoints(train.features, train.labels, len(train)), test, names


def first(points, number):
    """The first points, or all with number 0."""
    number = number or len(points)
    return replace(points, features=points.features[:number], labels=points.labels[:number])


def _files_of_points(folder):
    """The files of features and labels, or of both and None, for training and test points."""
    alone = [find(folder, *names) for names in ALONE.values()]
    if None not in alone:
        return [(path, None) for path in alone]
    pairs = [(find(folder, *FEATURES[part]), find(folder, *LABELS[part])) for part in ("trn", "tst")]
    if any(None in pair for pair in pairs):
        raise SystemExit(
            f"{folder} must hold train.txt and test.txt, or trn_X_Xf.txt, trn_X_Y.txt, tst_X_Xf.txt and "
            "tst_X_Y.txt (also .xz, .gz or .npz)."
        )
    return pairs


def _distinct(names):
    """Names of which those that occur twice, or are empty, are told apart by their label."""
    counts = Counter(names)
    return [
        name if name and counts[name] == 1 else f"{name} [{label}]".strip()
        for label, name in enumerate(names)
    ]


def _label_points(folder, train, names, first_id):
    """Labels as points: by their features if the folder holds them, or by the words of their names."""
    features = find(folder, *LABEL_FEATURES)
    if features is not None:
        own = tfxc.data.read_sparse_matrix(features, first_id=first_id)
        wanted = (train.num_labels, train.num_features)
        if own.shape != wanted:
            raise SystemExit(
                f"{features} must be a matrix of labels and features {wanted}, but is {own.shape}."
            )
        return tfxc.data.LabeledPoints(own, sparse.eye(train.num_labels, format="csr"))
    vocabulary = find(folder, "vocabulary.txt")
    if None in (names, vocabulary):
        raise SystemExit(f"--label-texts needs lbl_X_Xf.txt, or names and vocabulary.txt, in {folder}.")
    words = lines_of(vocabulary)
    if len(words) != train.num_features:
        raise SystemExit(
            f"{vocabulary} must have a line for each of {train.num_features} features, but has {len(words)}."
        )
    return label_points(names, words)


def _with_texts(train, texts):
    features, labels = ([getattr(part, name) for part in (train, texts)] for name in ("features", "labels"))
    return TrainingPoints(sparse.vstack(features), sparse.vstack(labels), len(train))


def _hashed(parts, num_features):
    """Hashes features into fewer ones, as sums with random signs; 0 leaves the points as they are.

    Reference: Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", 2009.
    """
    if not num_features:
        return parts
    random, num_given = np.random.default_rng(0), parts[0].features.shape[1]
    signs = random.choice(np.array([-1, 1], np.float32), num_given)
    buckets = random.integers(num_features, size=num_given)
    hashed = sparse.csr_matrix((signs, buckets, np.arange(num_given + 1)), (num_given, num_features))
    return [replace(points, features=points.features @ hashed) for points in parts]
