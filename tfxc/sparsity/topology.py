"""The inputs that each class reads: functions that draw a topology, drop weak connections and grow new ones.

A topology is an int32 array [L, K]: row l holds the K distinct inputs, of E, that class l reads. All
functions are pure functions of arrays and a random generator.
"""

from collections.abc import Sequence

import numpy as np

# Rows, and random keys, in a block: temporaries stay small beside the topology.
_BLOCK_ROWS = 1 << 16
_BLOCK_KEYS = 1 << 20


def random_topology(num_classes: int, fan_in: int, num_inputs: int, seed: int | Sequence[int]) -> np.ndarray:
    """A topology int32 [L, K] whose rows are uniformly random; ``fan_in`` K must be in [1, E].

    Example:
        >>> topology = random_topology(5, fan_in=3, num_inputs=100, seed=0)
        >>> topology.shape, all(len(set(row)) == 3 for row in topology.tolist())
        ((5, 3), True)
    """
    if not 1 <= fan_in <= num_inputs:
        raise ValueError(f"fan_in must be in [1, {num_inputs}], the number of inputs, but got {fan_in}.")
    rng = np.random.default_rng(seed)
    topology = np.empty((num_classes, fan_in), np.int32)
    for start in range(0, num_classes, _BLOCK_ROWS):
        block = topology[start : start + _BLOCK_ROWS]
        block[:] = _draw_unread(np.empty((len(block), 0), np.int32), fan_in, num_inputs, rng)
    return topology


def check_topology(indices: np.ndarray, num_inputs: int) -> None:
    """Raises ValueError that names the first bad row, unless every row holds distinct inputs in [0, E).

    Example:
        >>> check_topology(np.array([[0, 2], [1, 1]]), num_inputs=3)
        Traceback (most recent call last):
        ValueError: Class 1 reads [1, 1]: its inputs must be distinct and in [0, 3).
    """
    if indices.ndim != 2 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"Expected integers [L, K], but got {indices.dtype} of shape {indices.shape}.")
    row = _first_bad_row(indices, num_inputs)
    if row is not None:
        inputs = indices[row].tolist()
        raise ValueError(f"Class {row} reads {inputs}: its inputs must be distinct and in [0, {num_inputs}).")


def _first_bad_row(rows, limit):
    """The first row whose entries are not distinct and in [0, limit), or None."""
    for start in range(0, len(rows), _BLOCK_ROWS):
        ordered = np.sort(rows[start : start + _BLOCK_ROWS], axis=1)
        bad = ((ordered < 0) | (ordered >= limit)).any(1) | (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if bad.any():
            return start + int(np.argmax(bad))
    return None


def group_norms(weights: np.ndarray, group_size: int) -> np.ndarray:
    """The strength [ceil(L / G), K] of each input of G classes: the norm of its weights [L, K] over them.

    The last group is smaller where G does not divide L. A weight that is not finite is a ValueError.

    Example:
        >>> group_norms(np.array([[3.0, 1.0], [-4.0, 0.0], [2.0, -5.0]]), 2).tolist()
        [[5.0, 1.0], [2.0, 5.0]]
    """
    norms = np.empty((-(-len(weights) // group_size), weights.shape[1]), weights.dtype)
    groups_a_block = max(1, _BLOCK_ROWS // group_size)
    for start in range(0, len(norms), groups_a_block):
        block = weights[start * group_size : (start + groups_a_block) * group_size]
        _check_finite(block, start * group_size)  # here: a norm does not tell the class of the group
        squares = np.add.reduceat(np.square(block), np.arange(0, len(block), group_size), axis=0)
        norms[start : start + groups_a_block] = np.sqrt(squares)
    return norms


def smallest(weights: np.ndarray, num_drop: int) -> np.ndarray:
    """The positions int64 [L, n] of the n = ``num_drop`` weights of smallest magnitude in each row of [L, K].

    The smallest come first, and the lower position first among equals. A weight that is not finite is a
    ValueError.

    Example:
        >>> smallest(np.array([[0.3, -0.1, 0.2], [0.0, 0.0, -5.0]]), 2).tolist()
        [[1, 2], [0, 1]]
    """
    if not 0 <= num_drop <= weights.shape[1]:
        raise ValueError(
            f"num_drop must be in [0, {weights.shape[1]}], the weights of a class, but got {num_drop}."
        )
    positions = np.empty((len(weights), num_drop), np.int64)
    for start in range(0, len(weights), _BLOCK_ROWS):
        magnitude = np.abs(weights[start : start + _BLOCK_ROWS])
        _check_finite(magnitude, start)  # the loop below marks taken weights by infinity
        block = positions[start : start + _BLOCK_ROWS]
        # For few of K this is cheaper than a sort, and ties go to the lower position.
        for n in range(num_drop):
            block[:, n] = np.argmin(magnitude, axis=1)
            np.put_along_axis(magnitude, block[:, n : n + 1], np.inf, 1)
    return positions


def _check_finite(weights, first_class):
    finite = np.isfinite(weights).all(1)
    if not finite.all():
        row = first_class + int(np.argmin(finite))
        raise ValueError(
            f"The weights of class {row} are not finite: training has diverged. Lower the learning rate."
        )


def grow(indices: np.ndarray, dropped: np.ndarray, num_inputs: int, rng: np.random.Generator) -> np.ndarray:
    """Replaces the dropped connections of a topology, positions [L, n], by connections to other inputs.

    The new inputs of a class are drawn uniformly from those it did not read before the drop, so a connection
    never replaces itself, and K + n is at most E.

    Example:
        >>> grow(np.int32([[0, 1]]), np.array([[1]]), num_inputs=3, rng=np.random.default_rng(0)).tolist()
        [[0, 2]]
    """
    fan_in, num_grown = indices.shape[1], dropped.shape[1]
    if fan_in + num_grown > num_inputs:
        raise ValueError(
            f"Cannot move {num_grown} connections of a class: it leaves {num_inputs - fan_in} inputs unread."
        )
    if len(dropped) != len(indices):
        raise ValueError(f"Expected positions for {len(indices)} classes, but got {len(dropped)} rows.")
    row = _first_bad_row(dropped, fan_in)
    if row is not None:
        raise ValueError(
            f"Class {row} drops {dropped[row].tolist()}: positions must be distinct and in [0, {fan_in})."
        )
    grown = indices.copy()
    for start in range(0, len(indices), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        new = _draw_unread(indices[rows], num_grown, num_inputs, rng)
        np.put_along_axis(grown[rows], dropped[rows], new, 1)
    return grown


def _draw_unread(read, num_drawn, num_inputs, rng):
    """Distinct inputs [b, n] for each row, uniform among those not in ``read`` [b, K]."""
    fan_in = read.shape[1]
    if 2 * (fan_in + num_drawn) > num_inputs:  # rejection would be slow
        return _draw_by_keys(read, num_drawn, num_inputs, rng)
    taken = np.concatenate([read, np.full((len(read), num_drawn), -1, np.int32)], 1)
    for n in range(fan_in, fan_in + num_drawn):
        rows = np.arange(len(read))
        while len(rows):
            new = rng.integers(num_inputs, size=len(rows), dtype=np.int32)
            clash = (taken[rows, :n] == new[:, np.newaxis]).any(1)
            taken[rows, n] = new
            rows = rows[clash]
    return taken[:, fan_in:]


def _draw_by_keys(read, num_drawn, num_inputs, rng):
    """As ``_draw_unread``, at a cost of O(E) a row: the inputs with the smallest of E random keys."""
    drawn = np.empty((len(read), num_drawn), np.int32)
    num_rows = max(1, _BLOCK_KEYS // num_inputs)
    for start in range(0, len(read) if num_drawn else 0, num_rows):
        rows = slice(start, start + num_rows)
        keys = rng.random((len(read[rows]), num_inputs))
        np.put_along_axis(keys, read[rows], np.inf, 1)
        drawn[rows] = np.argpartition(keys, num_drawn - 1, axis=1)[:, :num_drawn]
    return drawn
