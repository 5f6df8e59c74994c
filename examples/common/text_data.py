"""The texts of products: titles with their labels, the labels' names, and batches of ids of word pieces."""

from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
from scipy import sparse

import tfxc
from common.classification_data import FILTERS, LABEL_NAMES, LABELS, find

TEXTS = {part: [f"{part}_X.txt", f"{part}.json"] for part in ("trn", "tst")}
_BLOCK = 1 << 12
ALONE = {"trn": "train.txt", "tst": "test.txt"}


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts [N] and their labels, a CSR matrix [N, L]; pairs that count in no metric, or None."""

    texts: tfxc.data.Names
    labels: sparse.csr_matrix
    filter_labels: np.ndarray | None = None

    def __len__(self):
        return len(self.texts)

    def with_names(self, names):
        """These and the labels' names, each a text with its label."""
        labels = sparse.vstack([self.labels, sparse.eye(len(names), format="csr")], format="csr")
        return replace(self, texts=tfxc.data.Names([*self.texts, *names]), labels=labels)

    def dataset(self, to_ids, batch_size, seed=None):
        """Batches ``({"token_ids", "example_ids"}, labels)``; ``to_ids`` sees each text once."""
        blocks = [
            to_ids(tf.constant(list(self.texts[start : start + _BLOCK])))
            for start in range(0, len(self), _BLOCK)
        ]
        ids = tf.concat([tf.RaggedTensor.from_tensor(block, padding=0) for block in blocks], 0)
        labels, excluded = self.labels.astype(np.float32), None
        if self.filter_labels is not None:
            points, filtered = self.filter_labels.T
            excluded = sparse.csr_matrix((np.ones(len(points), bool), (points, filtered)), labels.shape)
            labels = labels - labels.multiply(excluded)
            labels.eliminate_zeros()
            excluded = _rows(excluded)
        labels = _rows(labels)

        def batch(rows):
            inputs = {"token_ids": tf.gather(ids, rows).to_tensor(0), "example_ids": rows}
            inputs |= {} if excluded is None else {"exclude": tf.gather(excluded, rows).to_tensor(-1)}
            return inputs, tf.gather(labels, rows).to_tensor(-1)

        return tfxc.data.row_batches(len(self), batch_size, batch, seed)


def load_texts(folder):
    """Training and test ``Texts``, and the labels' names, of a folder of LF-AmazonTitles.

    Texts lie in trn.json and tst.json (``title``) or trn_X.txt and tst_X.txt. Labels lie in trn_X_Y.txt and
    tst_X_Y.txt, in train.txt and test.txt, or in the JSON files (``target_ind``); their names in lbl.json,
    Y.txt or label_names.txt. Each may be plain, .xz or .gz.
    """
    names_file = find(folder, *LABEL_NAMES)
    files = {part: find(folder, *names) for part, names in TEXTS.items()}
    if None in (names_file, *files.values()):
        raise SystemExit(
            f"{folder} must hold texts, trn.json and tst.json or trn_X.txt and tst_X.txt, and the labels' "
            "names, lbl.json, Y.txt or label_names.txt (also .gz or .xz)."
        )
    names, filters = tfxc.data.read_texts(names_file), find(folder, *FILTERS)
    parts = [
        Texts(tfxc.data.read_texts(file), _labels(folder, part, file, len(names)))
        for part, file in files.items()
    ]
    for file, part in zip(files.values(), parts, strict=True):
        if part.labels.shape != (len(part), len(names)):
            raise SystemExit(
                f"{file} has {len(part)} texts, and {names_file} {len(names)} names, but the labels are of "
                f"shape {part.labels.shape}: the files belong to different sets."
            )
    train, test = parts
    return train, replace(test, filter_labels=filters and tfxc.data.read_filter_labels(filters)), names


def _labels(folder, part, file, num_labels):
    apart, alone = find(folder, *LABELS[part]), find(folder, ALONE[part])
    if apart is not None:
        return tfxc.data.read_sparse_matrix(apart)
    if alone is not None:
        return tfxc.data.read_extreme_classification(alone).labels
    return tfxc.data.read_sparse_matrix(file, field="target_ind", num_columns=num_labels)


def _rows(matrix):
    return tf.RaggedTensor.from_row_splits(
        tf.constant(matrix.indices, tf.int32), tf.constant(matrix.indptr, tf.int64), validate=False
    )
