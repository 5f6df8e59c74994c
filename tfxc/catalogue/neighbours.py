"""Counts which classes occur near which in sequences."""

import numpy as np
import pyarrow.compute as pc
from scipy import sparse

_REACH = 5  # positions before and after


def neighbour_shares(sequences, classes):
    """How often each class that stays occurs near each new one in ``Sequences`` of names: float32 [n, L'].

    A sparse matrix of shares among the occurrences of staying classes at most 5 positions before or after; a
    row without any is empty. Reference: Barkan, Koenigstein, "Item2Vec: Neural Item Embedding for
    Collaborative Filtering", 2016 (items that occur together are alike).
    """
    found = pc.index_in(sequences.vocabulary.names.array, value_set=classes.names)
    items = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)[sequences.items]
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
