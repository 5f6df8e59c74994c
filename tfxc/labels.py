"""Conversion of labels: every accepted form becomes one padded int32 tensor, which is checked once.

Heads, samplers and losses only see queries ``[N, D]`` and labels ``[N, P]``, padded with -1 and without
duplicates within a row.
"""

import numbers
import warnings

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfxc._keras.layers import mask_of
from tfxc.arguments import innermost, refuse_masked
from tfxc.ids import PADDING, check_ids, drop_duplicates, refuse_zeros_and_ones
from tfxc.require import require

# How users turn other forms into ids.
_IDS_OF_ROWS = (
    "for one-hot rows m tf.argmax(m, 1), for multi-hot rows "
    "tf.SparseTensor(s.indices, s.indices[:, 1], s.dense_shape), where s = tf.sparse.from_dense(m)"
)
_IDS_OF_FLOATS = "for floats that hold ids np.where(np.isnan(m), -1, m).astype('int64')"
_IDS_OF_MATRIX = (
    "for a sparse one-hot or multi-hot matrix m tf.SparseTensor(m.indices, m.indices[:, -1], m.dense_shape), "
    "or for a CSR matrix of SciPy tf.RaggedTensor.from_row_splits(m.indices, m.indptr)"
)


def refuse_names(labels):
    dtype = getattr(getattr(labels, "dtype", None), "name", "")  # of NumPy or TensorFlow
    if isinstance(labels, str | bytes) or dtype.startswith(("str", "bytes")):
        raise ValueError(
            "Labels must be integer class ids, but are strings: turn names into ids first, by "
            "tfxc.data.Vocabulary(names).encode(labels). Give a model with a GrowingVocabulary a "
            "tf.data.Dataset: to fit one of names, to evaluate vocabulary.encoded(dataset)."
        )


def as_array(labels):
    """Labels in a form that Keras takes, those of data frames as an array; ValueError for names and lists."""
    if hasattr(labels, "to_numpy"):  # of pandas, Polars or Arrow
        labels = np.asarray(labels)
    if scipy.sparse.issparse(labels):
        labels = labels.tocsr()  # Keras cannot cut all others into batches, not even to have them refused
    refuse_masked(labels, "Labels")  # a batch that Keras makes of them has lost the mask
    first, what = labels, None
    if isinstance(labels, np.ndarray) and labels.dtype == object and labels.size:
        first = labels.flat[0]
        what = f"objects such as {type(first).__name__}"
    first = innermost(first)
    refuse_names(first)
    if isinstance(labels, list | tuple) and isinstance(first, list | numbers.Number):
        what = f"a {type(labels).__name__} of {type(first).__name__}"
    if what is not None:
        raise ValueError(
            f"Labels must be an array or tensor of integer class ids, but are {what}: pass np.array(labels, "
            "'int64'), with -1 for none, or tf.ragged.constant(list(labels)) for several labels per example."
        )
    return labels


def weights_as_array(sample_weight):
    """Weights of examples in a form that Keras takes; ValueError for lists of different lengths."""
    is_other = isinstance(sample_weight, list | tuple) or hasattr(sample_weight, "to_numpy")
    weights = np.asarray(sample_weight, "float32") if is_other else sample_weight
    refuse_masked(weights, "Sample weights")
    if isinstance(weights, np.ndarray) and weights.dtype.kind in "if" and (weights < 0).any():
        warnings.warn(
            f"sample_weight holds {np.sum(weights < 0)} numbers below 0, by which training drives labels "
            "away without end: pass 0 for examples that do not count.",
            stacklevel=2,
        )
    return weights


def tensor_of_labels(labels):
    """Labels as a tensor of any kind; ValueError for a matrix of SciPy, or lists of different lengths."""
    if scipy.sparse.issparse(labels):
        raise ValueError(f"Labels must be class ids, but are a SciPy matrix. Pass ids: {_IDS_OF_MATRIX}.")
    refuse_masked(labels, "Labels")
    if isinstance(labels, dict | list | tuple):
        parts = [part for part in tf.nest.flatten(labels) if tf.is_tensor(part) and part.shape.rank != 0]
        if parts or isinstance(labels, dict):
            of = list(labels) if isinstance(labels, dict) else f"{len(parts)} tensors"
            raise ValueError(
                f"Labels must be one array of class ids, but are a {type(labels).__name__} of {of}: pass "
                "that of the class ids. For several targets, add up tfxc.head_loss in a model of your own."
            )
    try:
        return labels if tf.is_tensor(labels) else tf.convert_to_tensor(labels)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Labels must form a tensor. If examples have different numbers of labels, pass "
            f"tf.ragged.constant(lists), or pad the lists with -1. TensorFlow says: {error}"
        ) from None


def pad_labels(labels, by_position=False):
    """Dense, ragged or sparse integer labels as dense class ids, padded with -1; ValueError for others.

    A ``SparseTensor`` holds ids as its values. ``by_position`` says that its columns are examples or
    positions, whose labels keep their columns; otherwise a row holds the ids of one example, which move to
    its front, and a graph refuses what looks like one-hot or multi-hot rows.
    """
    labels = tensor_of_labels(labels)
    refuse_names(labels)
    if not labels.dtype.is_integer:
        ids = _IDS_OF_MATRIX if isinstance(labels, tf.SparseTensor) else _IDS_OF_ROWS
        if labels.dtype.is_floating and not isinstance(labels, tf.SparseTensor):
            is_one = labels.shape.rank == 1 or (labels.shape.rank is not None and labels.shape[-1] == 1)
            ids = _IDS_OF_FLOATS if is_one else f"{ids}; {_IDS_OF_FLOATS}"
        raise ValueError(
            f"Labels must be integer class ids, but have dtype {labels.dtype.name}. Pass ids: {ids}."
        )
    if labels.dtype.is_unsigned:
        labels = tf.cast(labels, tf.int64)  # an unsigned type has no -1
    if isinstance(labels, tf.SparseTensor):
        labels = tf.sparse.to_dense(labels, PADDING) if by_position else _packed(labels)
    elif isinstance(labels, tf.RaggedTensor):
        labels = labels.to_tensor(default_value=PADDING)
    return labels


def pad_labels_of(query, labels):
    """As ``pad_labels``; ragged and sparse labels of sequences [B, T, ...] are padded to position T."""
    may_end_early = isinstance(labels, tf.RaggedTensor | tf.SparseTensor)
    is_sparse = isinstance(labels, tf.SparseTensor)
    labels = pad_labels(labels, by_position=is_sparse and labels.shape.rank != query.shape.rank)
    if may_end_early and query.shape.rank == 3:
        missing = tf.maximum(tf.shape(query)[1] - tf.shape(labels)[1], 0)
        padding = [[0, 0], [0, missing], *[[0, 0]] * (labels.shape.rank - 2)]
        labels = tf.pad(labels, padding, constant_values=PADDING)
    return labels


def _packed(labels):
    """Returns sparse ids [..., P] as dense ids at the front of their rows. P may be as large as L."""
    lead, width = labels.dense_shape[:-1], labels.dense_shape[-1]
    num_rows = tf.reduce_prod(lead)
    row = tf.sparse.reshape(labels, tf.stack([num_rows, width])).indices[:, 0]
    rows = tf.RaggedTensor.from_value_rowids(labels.values, row, num_rows)
    # A single 1 in each row, in the first two columns, may be the id of class 1.
    is_wide = tf.reduce_any(rows.row_lengths() > 1) | tf.reduce_any(labels.indices[:, -1] > 1)
    checked = require(
        ~(is_wide & tf.reduce_all(labels.values == 1)),
        "The values of sparse labels must be class ids, but these are all 1, as in a one-hot or multi-hot "
        f"matrix. Pass ids: {_IDS_OF_MATRIX}.",
    )
    with tf.control_dependencies(checked):
        ids = tf.identity(rows.to_tensor(PADDING))
    ids = tf.reshape(ids, tf.concat([lead, tf.shape(ids, tf.int64)[1:]], 0))
    ids.set_shape(labels.shape[:-1].concatenate([None]))
    return ids


def flatten_examples(query, labels, sample_weight=None, mask=None):
    """Queries [N, D], labels [N, P], weights [N] or None, and positions [N, 2] in the batch of what counts.

    Every example of queries [B, D] with labels [B] or [B, P] counts, and positions are None. Positions of
    [B, T, D] with labels [B, T] or [B, T, P] count that carry a label and are not masked, by bool [B, T] or
    None. Weights are [B], [B, 1] or [B, T]. Raises ValueError, or an InvalidArgumentError in a graph, where
    the ranks, or the numbers of examples or positions, do not fit together.
    """
    sequence = query.shape.rank == 3
    least = 2 if sequence else 1
    forms = "[B, T] or [B, T, P]" if sequence else "[B] or [B, P]"
    told = f"need labels of shape {forms} (class ids padded with -1), but got"
    if labels.shape.rank not in (None, least, least + 1):
        raise ValueError(f"Queries of shape {query.shape} {told} {labels.shape}.")
    labels = one_for_each(query, labels, "There must be one row of labels for each query")
    if labels.shape.rank is None:  # Keras retraced a step for labels of any form
        shape = tf.shape(labels)
        known = tf.shape(query)[:-1]
        fits = tf.reduce_any(tf.equal(tf.size(shape), [least, least + 1]))
        fits &= tf.reduce_all(tf.equal(tf.pad(shape, [[0, least]])[:least], known))
        with tf.control_dependencies(require(fits, f"Queries {told}", shape, "for queries of", known)):
            labels = tf.reshape(labels, tf.concat([known, [-1]], 0))
    if labels.shape.rank == least:
        labels = labels[..., tf.newaxis]
    if not sequence:
        if sample_weight is not None:
            wanted = "sample_weight must hold a number for each example, [B] or [B, 1]"
            sample_weight = one_for_each(query, tf.reshape(sample_weight, [-1]), wanted)
        return query, labels, sample_weight, None
    wanted = "Queries need a label for each of their positions, -1 for none"
    labels = one_for_each(query, labels, wanted, axis=1)
    keep = tf.reduce_any(labels >= 0, axis=-1)
    if mask is not None:
        keep &= tf.cast(mask, tf.bool)
    if sample_weight is not None:
        sample_weight = tf.convert_to_tensor(sample_weight)
        if sample_weight.shape.rank != 2:  # or unknown: Keras retraced a step for weights of either form
            sample_weight = tf.reshape(sample_weight, tf.concat([tf.shape(sample_weight)[:1], [-1]], 0))
        wanted = "sample_weight must hold a row for each sequence, [B] or [B, T]"
        sample_weight = one_for_each(query, sample_weight, wanted)
        if sample_weight.shape[1] in (1, None):
            is_one = tf.equal(tf.shape(sample_weight)[1], 1)
            sample_weight = tf.tile(sample_weight, [1, tf.where(is_one, tf.shape(keep)[1], 1)])
        wanted = "sample_weight of sequences must hold a number for each position, or one for all"
        sample_weight = tf.boolean_mask(one_for_each(query, sample_weight, wanted, axis=1), keep)
    where = tf.where(keep)
    return tf.gather_nd(query, where), tf.gather_nd(labels, where), sample_weight, where


def one_for_each(query, given, wanted, axis=0):
    """A tensor behind a check that it is as long as the queries, at once where both lengths are known."""
    sizes = [part.shape[axis : axis + 1] for part in (given, query)]
    if not sizes[0].is_compatible_with(sizes[1]):
        raise ValueError(f"{wanted}, but there are {sizes[0][0]} instead of {sizes[1][0]}.")
    if all(size.is_fully_defined() for size in sizes):
        return given
    found, needed = tf.shape(given)[axis], tf.shape(query)[axis]
    checked = require(tf.equal(found, needed), f"{wanted}, but there are", found, "instead of", needed)
    with tf.control_dependencies(checked):
        return tf.identity(given)


def refuse_one_hot_rows(labels, num_classes):
    """Returns labels [..., P] behind a check that they are not the rows of a one-hot or multi-hot matrix."""
    return refuse_zeros_and_ones(
        labels,
        num_classes,
        "Labels must be class ids padded with -1, but each row has as many entries as there are classes, "
        f"all 0 or 1, like one-hot or multi-hot rows. Pass ids: {_IDS_OF_ROWS}.",
    )


def labelled_queries(query, labels, num_classes, sample_weight=None):
    """As ``flatten_examples``, for labels of any accepted form, checked and without duplicates."""
    if isinstance(sample_weight, dict):
        raise ValueError(
            "sample_weight must be an array [B] or [B, T], but is what Keras makes of it for several "
            f"targets, a dict of {list(sample_weight)}: pass that of the class ids, sample_weight[...]."
        )
    labels = check_ids(pad_labels_of(query, labels), num_classes)
    mask = mask_of(query)
    query, labels, sample_weight, where = flatten_examples(query, labels, sample_weight, mask)
    labels = drop_duplicates(refuse_one_hot_rows(labels, num_classes))
    return query, labels, sample_weight, where
