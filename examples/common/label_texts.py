"""The names of labels as training points: a name says when its label applies."""

import re

import numpy as np
import scipy.sparse

import tfxc


def label_points(names, words):
    """A point for every label whose name has known words: these words, with the label."""
    numbers = {word: number for number, word in enumerate(words)}
    known = [
        [numbers[word] for word in re.findall(r"\w+", name.lower()) if word in numbers] for name in names
    ]
    labels = [label for label, ids in enumerate(known) if ids]
    if not labels:
        raise SystemExit("No label's name has a word of the vocabulary: leave out --label-texts.")
    offsets = np.cumsum([0, *(len(known[label]) for label in labels)])
    ids = np.concatenate([known[label] for label in labels])
    features = scipy.sparse.csr_matrix((np.ones(len(ids)), ids, offsets), (len(labels), len(words)))
    return tfxc.data.LabeledPoints(features, scipy.sparse.eye(len(names), format="csr")[labels])
