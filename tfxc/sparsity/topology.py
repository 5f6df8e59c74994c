"""Which inputs each class reads: drawing a topology, dropping weak connections, growing new ones.

A topology is an int32 array [L, K]: row l holds the K distinct inputs, of E, that class l reads. All this is
pure functions of arrays and a random generator.
"""

import numpy as np

_BLOCK_ROWS = 1 << 16  # rows worked on at a time: temporaries stay small beside the topology


def random_topology(num_classes, fan_in, num_inputs, seed):
    """K distinct inputs for each class, uniformly at random.

    Args:
        num_classes: L.
        fan_in: K, in [1, E].
        num_inputs: E.
        seed: int, or a sequence of ints.

    Returns:
        int32 [L, K].

    Raises:
        ValueError: for a fan-in outside [1, E].

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


def check_topology(indices, num_inputs):
    """Raises ValueError, naming the first bad row, unless every row holds distinct inputs in [0, E).

    Example:
        >>> check_topology(np.array([[0, 2], [1, 1]]), num_inputs=3)
        Traceback (most recent call last):
        ValueError: Class 1 reads [1, 1]: its inputs must be distinct and in [0, 3).
    """
    ordered = np.sort(indices, axis=1)
    bad = (ordered < 0).any(1) | (ordered >= num_inputs).any(1) | (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"Class {row} reads {indices[row].tolist()}: "
            f"its inputs must be distinct and in [0, {num_inputs})."
        )


def smallest(weights, num_drop):
    """Where the weights of smallest magnitude stand in each row.

    Args:
        weights: float [L, K].
        num_drop: n, in [0, K].

    Returns:
        int64 [L, n] positions in [0, K), the smallest first; the lower position first among equals.

    Raises:
        ValueError: for NaN weights, which have no magnitude: training has diverged.

    Example:
        >>> smallest(np.array([[0.3, -0.1, 0.2], [0.0, 0.0, -5.0]]), 2).tolist()
        [[1, 2], [0, 1]]
    """
    positions = np.empty((len(weights), num_drop), np.int64)
    for start in range(0, len(weights), _BLOCK_ROWS):
        magnitude = np.abs(weights[start : start + _BLOCK_ROWS])
        if np.isnan(magnitude).any():
            row = start + int(np.argmax(np.isnan(magnitude).any(1)))
            raise ValueError(
                f"The weights of class {row} are NaN: training has diverged; lower the learning rate."
            )
        block = positions[start : start + _BLOCK_ROWS]
        for n in range(
            num_drop
        ):  # few of K: cheaper than sorting the rows, and ties go to the lower position
            block[:, n] = np.argmin(magnitude, axis=1)
            np.put_along_axis(magnitude, block[:, n : n + 1], np.inf, 1)
    return positions


def grow(indices, dropped, num_inputs, rng):
    """A topology in which the dropped connections lead to other inputs.

    The new inputs of a class are drawn uniformly from those it did not read before the drop, so that a
    connection is never replaced by itself.

    Args:
        indices: int32 [L, K].
        dropped: positions [L, n] in [0, K), distinct within a row; K + n at most E.
        num_inputs: E.
        rng: ``np.random.Generator``.

    Returns:
        int32 [L, K].

    Raises:
        ValueError: if too few inputs are left to draw from.

    Example:
        >>> grow(np.int32([[0, 1]]), np.array([[1]]), num_inputs=3, rng=np.random.default_rng(0)).tolist()
        [[0, 2]]
    """
    fan_in, num_grown = indices.shape[1], dropped.shape[1]
    if fan_in + num_grown > num_inputs:
        raise ValueError(
            f"{num_grown} connections a class cannot move: of {num_inputs} inputs it reads {fan_in}, "
            f"which leaves {num_inputs - fan_in}."
        )
    grown = indices.copy()
    for start in range(0, len(indices), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        new = _draw_unread(indices[rows], num_grown, num_inputs, rng)
        np.put_along_axis(grown[rows], dropped[rows], new, 1)
    return grown


def _draw_unread(read, num_drawn, num_inputs, rng):
    """For each row n distinct inputs [b, n], uniform among those not in ``read`` [b, K]."""
    fan_in = read.shape[1]
    if 2 * (fan_in + num_drawn) > num_inputs:  # rejection would take long
        keys = rng.random((len(read), num_inputs))
        np.put_along_axis(keys, read, np.inf, 1)
        return np.argpartition(keys, num_drawn - 1, axis=1)[:, :num_drawn] if num_drawn else read[:, :0]
    taken = np.concatenate([read, np.full((len(read), num_drawn), -1, np.int32)], 1)
    for n in range(fan_in, fan_in + num_drawn):
        rows = np.arange(len(read))
        while len(rows):
            new = rng.integers(num_inputs, size=len(rows), dtype=np.int32)
            clash = (taken[rows, :n] == new[:, np.newaxis]).any(1)
            taken[rows, n] = new
            rows = rows[clash]
    return taken[:, fan_in:]
