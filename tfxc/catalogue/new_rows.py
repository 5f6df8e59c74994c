"""Fills the rows of classes that the model has never seen."""

from functools import cached_property
from typing import Final

import numpy as np
import tensorflow as tf
from scipy import sparse

from tfxc._keras.weights import tf_variable
from tfxc.catalogue.spool import blocks_of
from tfxc.class_rows import AS_BUILT, BY_RULE
from tfxc.data.names import places_of
from tfxc.data.sequences import Sequences

MEAN: Final = "mean"
SIMILAR: Final = "similar"
_AT_ONCE = 1 << 16
_NAMES_AT_ONCE = 128
_NUM_SIMILAR = 8
_REACH = 5  # positions before and after a class in which others count as near
_MOST_KNOWN = 1 << 17  # the most names to compare with, which are drawn at random to save time


class NewRows:
    """Fills the rows of new classes by the rule ``new_rows`` of ``change_classes``."""

    def __init__(self, rule, classes):
        is_named = isinstance(rule, str) and rule in (MEAN, SIMILAR)
        if not (is_named or isinstance(rule, Sequences) or callable(rule)):
            raise ValueError(
                f"new_rows must be {MEAN!r}, {SIMILAR!r}, tfxc.data.Sequences, or a function of a list of "
                f"names to their class vectors [n, D], but got {rule!r}."
            )
        self._rule = rule
        self._classes = classes

    def fill(self, rows):
        """Writes the rows of the new classes into a ``ClassRows`` that holds the rows of the others."""
        added = self._classes.added
        if rows.filled == AS_BUILT or not len(added):
            return
        variable = tf_variable(rows.weight)
        mean = self._mean(variable, rows.row_offset)
        for start in range(0, len(added), _AT_ONCE):
            inside = slice(start, start + _AT_ONCE)
            if callable(self._rule) and rows.filled == BY_RULE:
                values = self._given(added[inside], variable.shape[1:])
            elif self._shares is not None:
                values = self._of_others(variable, rows.row_offset, mean, inside)
            else:
                values = np.broadcast_to(mean, (len(added[inside]), *mean.shape))
            values = tf.cast(values, variable.dtype)
            variable.scatter_update(tf.IndexedSlices(values, added[inside] + rows.row_offset))

    @property
    def given(self):
        """None, or a function from new ids to what the user's function returns for their names."""
        return (lambda ids: self._rule(self._classes.names_of(ids))) if callable(self._rule) else None

    def _mean(self, variable, row_offset):
        kept = self._classes.kept
        sums = (block.sum(0, dtype=np.float64) for block in blocks_of(variable, kept + row_offset))
        return sum(sums) / len(kept)

    def _given(self, ids, shape):
        names = self._classes.names_of(ids)
        values = np.asarray(self._rule(names), np.float32)
        wanted, found = [len(names), *shape], list(values.shape)
        if found != wanted:
            raise ValueError(f"new_rows was asked for the class vectors {wanted} of names, but gave {found}.")
        if not np.isfinite(values).all():
            name = names[int(np.argmin(np.isfinite(values).all(1)))]
            raise ValueError(f"new_rows must return finite numbers, but those for {name!r} are not.")
        return values

    @cached_property
    def _shares(self):
        """None, or the shares of other classes in each new class, a sparse matrix [n, L'] by new ids."""
        if isinstance(self._rule, Sequences):
            return neighbour_shares(self._rule, self._classes)
        return self._similar() if self._rule == SIMILAR else None

    def _similar(self):
        known = self._classes.kept
        if len(known) > _MOST_KNOWN:
            known = np.sort(np.random.default_rng(0).choice(known, _MOST_KNOWN, replace=False))
        names = self._classes.names_of(self._classes.added)
        places, cosines = similar_names(names, self._classes.names_of(known), _NUM_SIMILAR)
        shares = cosines / np.maximum(cosines.sum(1, keepdims=True), 1e-12)
        row, _ = np.nonzero(shares)
        shape = len(names), len(self._classes.old_ids)
        return sparse.csr_matrix((shares[shares > 0], (row, known[places[shares > 0]])), shape)

    def _of_others(self, variable, row_offset, mean, inside):
        shares = self._shares[inside]
        ids, columns = np.unique(shares.indices, return_inverse=True)
        vectors = tf.cast(tf.gather(variable, ids + row_offset), tf.float32).numpy()
        shares = sparse.csr_matrix((shares.data, columns, shares.indptr), (shares.shape[0], len(ids)))
        width = int(np.prod(vectors.shape[1:]))  # reshape cannot infer -1 if there are no vectors
        values = (shares @ vectors.reshape(len(ids), width)).reshape(-1, *vectors.shape[1:])
        if isinstance(self._rule, Sequences) and vectors.ndim > 1:
            # A mean of vectors is shorter than the vectors, which would make the logits too small.
            wanted, found = shares @ np.linalg.norm(vectors, axis=1), np.linalg.norm(values, axis=1)
            values *= (wanted / np.maximum(found, 1e-12))[:, np.newaxis]
        values[np.diff(shares.indptr) == 0] = mean
        return values


def neighbour_shares(sequences, classes):
    """How often each class that stays occurs near each new one in ``Sequences`` of names: float32 [n, L'].

    Shares among the occurrences of staying classes at most 5 positions before or after. Reference: Barkan,
    Koenigstein, "Item2Vec: Neural Item Embedding for Collaborative Filtering", 2016.
    """
    items = places_of(sequences.vocabulary.names.array, classes.names)[sequences.items]
    owner = np.repeat(np.arange(len(sequences)), sequences.lengths)
    place = np.full(len(classes.old_ids), -1)
    place[classes.added] = np.arange(len(classes.added))
    is_new = (items >= 0) & (place[items] >= 0)
    stays = (items >= 0) & ~is_new
    rows, columns = [], []
    for distance in range(1, _REACH + 1):
        before, after = slice(None, -distance), slice(distance, None)
        together = owner[before] == owner[after]
        for new, other in ((before, after), (after, before)):
            where = together & is_new[new] & stays[other]
            rows.append(place[items[new][where]])
            columns.append(items[other][where])
    rows, columns = np.concatenate(rows), np.concatenate(columns)
    shape = len(classes.added), len(classes.old_ids)
    counts = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape)
    return sparse.diags((1 / np.maximum(counts.sum(1).A1, 1)).astype(np.float32)) @ counts


def similar_names(names, known, num_similar):
    """The known names, m of them, that share most trigrams with each of n names. Rare trigrams count more.

    Returns their positions int64 [n, min(num_similar, m)], the most similar first, and the cosines float32 of
    TF-IDF vectors, 0 for a name without a common trigram.
    """
    num_similar = min(num_similar, len(known))
    vectors = _trigram_vectors([*known, *names])
    transposed, vectors = vectors[: len(known)].T.tocsr(), vectors[len(known) :]
    places = np.zeros((len(names), num_similar), np.int64)
    cosines = np.zeros((len(names), num_similar), np.float32)
    for start in range(0, len(names), _NAMES_AT_ONCE):
        products = vectors[start : start + _NAMES_AT_ONCE] @ transposed
        for row in range(products.shape[0]):
            inside = slice(*products.indptr[row : row + 2])
            values = products.data[inside]
            best = _largest(values, num_similar)
            places[start + row, : len(best)] = products.indices[inside][best]
            cosines[start + row, : len(best)] = values[best]
    return places, cosines


def _largest(values, count):
    """Returns the places of the largest values, the largest first, and of equal values the first."""
    places = np.arange(len(values))
    if count < len(values):  # sorting a hundred thousand values would take most of the time
        places = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return places[np.argsort(-values[places], kind="stable")[:count]]


def _trigram_vectors(names):
    """Returns TF-IDF vectors of length 1, a sparse matrix [n, number of distinct trigrams of bytes]."""
    texts = [f" {name.lower()} ".encode() for name in names]
    letters = np.frombuffer(b"".join(texts) + b"  ", np.uint8).astype(np.int64)
    row = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    codes = (letters[:-2] << 16) + (letters[1:-1] << 8) + letters[2:]
    inside = np.flatnonzero(np.append(row[2:], [-1, -1]) == row)  # no trigram spans two names
    _, column = np.unique(codes[inside], return_inverse=True)
    shape, ones = (len(texts), column.max(initial=0) + 1), np.ones(len(column), np.float32)
    counts = sparse.csr_matrix((ones, (row[inside], column)), shape)
    counts.data = 1 + np.log(counts.data)
    num_names = np.bincount(counts.indices, minlength=counts.shape[1])
    counts.data *= np.log1p(len(texts) / num_names)[counts.indices].astype(np.float32)
    lengths = np.sqrt(counts.multiply(counts).sum(1)).A1
    return sparse.diags((1 / np.maximum(lengths, 1e-12)).astype(np.float32)) @ counts
