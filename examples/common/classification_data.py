"""The points of the extreme classification examples: reads, weighs and hashes them."""

import gzip
import lzma
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import sparse

import tfxc
from common.arguments import existing, whole
from common.label_texts import label_points

BUNDLED = Path(__file__).resolve().parents[1] / "data" / "tate"


@dataclass(frozen=True, eq=False)
class TrainingPoints(tfxc.data.LabeledPoints):
    """Training points: those of the file, then optional points made from the labels' names."""

    num_given: int  # the number of points in the file

    def propensities(self):
        """The propensities of the labels, from the points of the file alone."""
        given = replace(self, features=self.features[: self.num_given], labels=self.labels[: self.num_given])
        return tfxc.metrics.propensities(given.label_counts(), self.num_given)


def add_arguments(add):
    """The options of the data."""
    folder = "folder with train.txt and test.txt, plain, .gz or .xz"
    add("--data", type=existing, default=BUNDLED, help=folder)
    add("--hash-features", type=whole, default=0, help="features to hash them into; 0: as they are")
    add("--skip-bad-lines", action="store_true", help="leave out lines that cannot be read")


def find(folder, name):
    """The file of that name, plain or compressed; None if there is none."""
    paths = [folder / (name + suffix) for suffix in ("", ".xz", ".gz")]
    return next((path for path in paths if path.exists()), None)


def lines_of(path):
    """The stripped lines of a text file, plain, .gz or .xz."""
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8-sig") as file:
        return [line.strip() for line in file]


def load(folder, label_texts=False, hash_features=0, skip_bad_lines=False):
    """TF-IDF weighted training and test points, and the labels' names or None.

    Args:
        folder: the folder of train.txt and test.txt, and optionally label_names.txt and vocabulary.txt.
        label_texts: whether the labels' names are training points, too.
        hash_features: number of features to hash them into, or 0.
        skip_bad_lines: whether to leave out lines that cannot be read.
    """
    paths = {name: find(folder, f"{name}.txt") for name in ("train", "test", "label_names", "vocabulary")}
    if None in (paths["train"], paths["test"]):
        raise SystemExit(f"{folder} must hold train.txt and test.txt (also .xz or .gz).")
    on_error = "skip" if skip_bad_lines else "raise"
    points = [tfxc.data.read_extreme_classification(paths[name], on_error) for name in ("train", "test")]
    names = paths["label_names"] and lines_of(paths["label_names"])
    if names is not None and len(names) != points[0].num_labels:
        raise SystemExit(
            f"{paths['label_names']} must have a line for each of {points[0].num_labels} labels, but has "
            f"{len(names)}."
        )
    if not label_texts:
        train, test = _hashed(tfxc.data.tfidf(*points), hash_features)
        return TrainingPoints(train.features, train.labels, len(train)), test, names
    if None in (names, paths["vocabulary"]):
        raise SystemExit(f"--label-texts needs label_names.txt and vocabulary.txt in {folder}.")
    words = lines_of(paths["vocabulary"])
    if len(words) != points[0].num_features:
        raise SystemExit(
            f"{paths['vocabulary']} must have a line for each of {points[0].num_features} features, but has "
            f"{len(words)}."
        )
    points = tfxc.data.tfidf(*points, label_points(names, words))
    train, test, texts = _hashed(points, hash_features)
    return _with_texts(train, texts), test, names


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
