"""What changed since an earlier backup, row by row: training steps touch few rows of a large table."""

import numpy as np
import tensorflow as tf

from tfxc.checked_file import bytes_of

_BLOCK_BYTES = 1 << 22
_SAMPLED_BYTES = 1 << 14  # read at one place
_SMALLEST_TABLE = 1 << 16  # bytes; smaller arrays are kept whole
_ROWS_OF = "rows of "


def changes_since(base, arrays):
    """What changed: of large tables the rows that differ, if few, named "rows of NAME"; others whole."""
    changes = dict(arrays)
    for name, known, own in _tables(base, arrays):
        changed = _changed_rows(known, own)
        if 2 * len(changed) < len(own):
            changes[_ROWS_OF + name] = changed
            shape = len(changed), *base[name].shape[1:]
            changes[name] = own[changed].view(base[name].dtype).reshape(shape)
    return changes


def mostly_changed(base, arrays):
    """Whether over half of a sample of rows differ from ``base``: one row in 256, more in small tables."""
    num_seen = num_changed = 0
    for _, known, own in _tables(base, arrays):
        size = max(1, _SAMPLED_BYTES // own.shape[1])
        for start in range(0, len(own), max(size, min(256 * size, len(own) // 64))):
            block = slice(start, start + size)
            num_seen += own[block].size
            num_changed += int((known[block] != own[block]).any(axis=1).sum()) * own.shape[1]
    return 2 * num_changed > num_seen


def _tables(base, arrays):
    """The large tables that have an earlier state: name, then both as bytes uint8 [n, bytes]."""
    for name, array in arrays.items():
        known = base.get(name)
        if known is None or known.nbytes < _SMALLEST_TABLE or known.shape != tuple(array.shape):
            continue
        if known.dtype == tf.as_dtype(array.dtype).as_numpy_dtype:
            yield name, *(bytes_of(one).reshape(known.shape[0], -1) for one in (known, array))


def with_changes(base, changes):
    """The arrays whose changes ``changes_since`` gave; writes into the arrays of ``base``."""
    arrays = {}
    for name, array in changes.items():
        if _ROWS_OF + name in changes:
            base[name][changes[_ROWS_OF + name]] = array
            arrays[name] = base[name]
        elif not name.startswith(_ROWS_OF):
            arrays[name] = array
    return arrays


def _changed_rows(base, rows):
    """The numbers int64 of the rows uint8 [n, bytes] that differ."""
    size = max(1, _BLOCK_BYTES // rows.shape[1])
    blocks = (slice(start, start + size) for start in range(0, len(rows), size))
    return np.flatnonzero(np.concatenate([(rows[own] != base[own]).any(axis=1) for own in blocks]))
