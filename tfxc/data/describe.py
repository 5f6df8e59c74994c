"""A look at sequences before training: their sizes, times and order, and what may be a mistake."""

import os
from typing import Any

import numpy as np

from tfxc.data.findings import findings, share_rising, ties
from tfxc.data.sequences import Sequences, require_sequences

_QUANTILES = (0, 0.25, 0.5, 0.75, 0.95, 1)
_LATER = 0.1  # the share of interactions in which cold items are counted
_COMPARED = 100_000  # steps


def describe(sequences: Sequences, plot: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Prints and returns what to check before training.

    Args:
        sequences: at least one interaction.
        plot: path of a picture of lengths, frequencies of items and times, which needs matplotlib.

    Returns:
        By name: the numbers of `users`, of `items` that occur and of `interactions`; `density`, interactions
        for each pair of a user and an item; `lengths` of sequences by quantile; `span`, the first and the
        last time, or None. Shares in [0, 1] of the steps from one item to the next: `ties`, to another item
        at the same time; `repeats`, to the same item; `rising`, to a larger name, by number if names are
        integers: far from a half, items are sorted rather than in order of time. The number of `cold_items`
        of the last tenth of the interactions, or without times among last items, that do not occur before,
        and their share of these interactions, `cold`. `largest_user` and `largest_item`: name (None for users
        without names), number and share. `findings`: sentences about what may be a mistake.

    Raises:
        ValueError: if there is no interaction.

    Example:
        >>> log = Sequences.from_lists([["tea", "milk", "tea"], ["rum", "rum"]], user_ids=["ann", "bob"])
        >>> found = describe(log)
        users         2
        items         3
        interactions  5
        density       0.8333
        lengths       {0: 2.0, 0.25: 2.25, 0.5: 2.5, 0.75: 2.75, 0.95: 2.95, 1: 3.0}
        span          None
        ties          0
        repeats       0.3333
        rising        0.3333
        cold_items    0
        cold          0
        largest_user  ('ann', 3, 0.6)
        largest_item  ('tea', 2, 0.4)
    """
    require_sequences(sequences)
    items, offsets, times = sequences.items, sequences.offsets, sequences.times
    if not len(items):
        raise ValueError("There is no interaction to describe.")
    lengths, counts = sequences.lengths, sequences.counts()
    is_step = np.ones(len(items), bool)
    is_step[offsets[:-1][lengths > 0]] = False
    steps = np.flatnonzero(is_step)
    num_steps, num_items = max(len(steps), 1), int(np.count_nonzero(counts))
    seen = steps[:: max(1, len(steps) // _COMPARED)]
    is_later = _later(sequences)
    later = items[is_later]
    is_cold = np.bincount(items[~is_later], minlength=sequences.num_classes)[later] == 0
    users = [None] * len(sequences) if sequences.user_ids is None else sequences.user_ids
    found: dict[str, Any] = {
        "users": len(sequences),
        "items": num_items,
        "interactions": len(items),
        "density": len(items) / (len(sequences) * num_items),
        "lengths": dict(zip(_QUANTILES, np.quantile(lengths, _QUANTILES).tolist(), strict=True)),
        "span": None if times is None else (times.min(), times.max()),
        "ties": ties(sequences)[0] / num_steps,
        "repeats": np.count_nonzero(items[steps] == items[steps - 1]) / num_steps,
        "rising": share_rising(sequences, items[seen - 1], items[seen]),
        "cold_items": len(np.unique(later[is_cold])),
        "cold": np.count_nonzero(is_cold) / max(len(later), 1),
        "largest_user": _largest(users, lengths),
        "largest_item": _largest(sequences.vocabulary.names, counts),
        "findings": findings(sequences),
    }
    shown = found if times is None else {**found, "span": f"{times.min()} to {times.max()}"}
    for name, value in shown.items():
        if name != "findings":
            print(f"{name:12}  {f'{value:.4g}' if isinstance(value, float) else value}")
    print(*(f"- {finding}\n" for finding in found["findings"]), sep="", end="")
    if plot is not None:
        _draw(sequences, counts, plot)
    return found


def _largest(names, counts) -> tuple[str | None, int, float]:
    where = int(counts.argmax())
    return names[where], int(counts[where]), float(counts[where] / counts.sum())


def _later(sequences) -> np.ndarray:
    """Returns which interactions [M] are among the last tenth, or, without times, are last after another."""
    num_items = len(sequences.items)
    if sequences.times is None:
        is_later = np.zeros(num_items, bool)
        is_later[sequences.offsets[1:][sequences.lengths > 1] - 1] = True
        return is_later
    first = min(int(num_items * (1 - _LATER)), num_items - 1)
    return sequences.times >= np.partition(sequences.times, first)[first]


def _draw(sequences, counts, path):
    from matplotlib.figure import Figure

    figure = Figure((12, 3.5), layout="constrained")
    for_lengths, for_items, for_times = figure.subplots(1, 3)
    longest = max(int(sequences.lengths.max()), 2)
    for_lengths.hist(sequences.lengths, np.geomspace(1, longest + 1, 40))
    for_lengths.set(xscale="log", xlabel="interactions of a user", ylabel="users")
    frequencies = np.sort(counts[counts > 0])[::-1]
    for_items.plot(np.arange(1, len(frequencies) + 1), frequencies)
    for_items.set(xscale="log", yscale="log", xlabel="rank of the item", ylabel="interactions")
    if sequences.times is not None:
        for_times.hist(sequences.times, 100)
    for_times.set(xlabel="time", ylabel="interactions")
    figure.savefig(path)
