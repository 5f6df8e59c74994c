"""A look at sequences before training: their sizes, times and order, and what may be a mistake."""

import contextlib
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.names import Names
from tfxc.data.sequences import Sequences, require_sequences
from tfxc.data.times import UNITS, unit_of
from tfxc.data.vocabulary import normal_names
from tfxc.data.warn import warn

_QUANTILES = (0, 0.25, 0.5, 0.75, 0.95, 1)
_LATER = 0.1  # the share of interactions in which cold items are counted
_COMPARED = 100_000  # steps
# What databases, pandas, R, Excel and Python write where there is nothing. Any of them may be a name.
_SPELLINGS = pa.array(
    [
        *("NULL", "Null", "null", r"\N", "nan", "NaN", "NAN", "None", "none", "NONE"),
        *("N/A", "n/a", "#N/A", "#NA", "NA", "<NA>", "NaT", "nil", "NIL", "(null)", "<null>", "[NULL]"),
        *("undefined", "unknown", "Unknown", "-nan", "-NaN", "#NULL!", "#REF!", "#VALUE!", "1.#QNAN"),
        *("-1", "(not set)", "-", "--", "?"),  # of pandas.factorize, of web analytics and logs, of UCI
    ],
    pa.large_string(),
)
# Names that a reader got by splitting lines in another way than they are meant: the pattern, the least share
# of names that have it, and what they show.
_MISREAD = (
    (r".[,;|:]$", 0.25, "end in a delimiter, such as {!r}: pass delimiter= to split there."),
    (r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d", 0.5, "look like times, such as {!r}: name the columns as they are."),
    (r"^\[.+\]$|^[A-Z]?\d+([ ,;|]+[A-Z]?\d+)+$", 0.5, "look like lists, such as {!r}: write an item a row."),
)
_MANY = 100  # times, or steps
_REPEATED = 0.1  # the least share of steps that looks like rows that are there twice
_TIED = 0.01  # the least share of steps between items of one time that a model may learn
_PER_BLOCK = 1 << 20
_PAIRS = 1 << 10  # of names a block that are compared


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
        ...
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
    if times is None:  # then the last items count, after others
        is_later = np.zeros(len(items), bool)
        is_later[offsets[1:][lengths > 1] - 1] = True
    else:
        first = min(int(len(items) * (1 - _LATER)), len(items) - 1)
        is_later = times >= np.partition(times, first)[first]
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


def ties(sequences: Sequences) -> tuple[int, float, int]:
    """Returns the number of steps to another item at the same time, and the share of them to a larger name.

    The share is that of some of them. The third number is of steps to the same item at the same time.
    """
    number, num_repeats, before, after = 0, 0, [], []
    if sequences.times is None:
        return 0, 0.0, 0
    for start in range(0, len(sequences.items) - 1, _PER_BLOCK):
        block = slice(start, start + _PER_BLOCK + 1)
        times, items = sequences.times[block], sequences.items[block]
        is_tie = times[1:] == times[:-1]
        first, last = np.searchsorted(sequences.offsets, [start + 1, start + len(items)])
        is_tie[sequences.offsets[first:last] - start - 1] = False  # steps from one sequence to the next
        is_other = items[1:] != items[:-1]
        num_repeats += int(np.count_nonzero(is_tie & ~is_other))
        where = np.flatnonzero(is_tie & is_other)
        number += len(where)
        where = where[:: max(1, len(where) // _PAIRS)]
        before.append(items[where])
        after.append(items[where + 1])
    rising = share_rising(sequences, np.concatenate(before), np.concatenate(after)) if number else 0.0
    return number, rising, num_repeats


def share_rising(sequences: Sequences, before: np.ndarray, after: np.ndarray) -> float:
    """Returns the share of pairs of class ids [M] whose second one has the larger name."""
    names = [sequences.vocabulary.names[ids].array for ids in (before, after)]
    with contextlib.suppress(pa.ArrowInvalid):
        names = [own.cast(pa.int64()) for own in names]
    return pc.mean(pc.greater(names[1], names[0]).cast(pa.int8())).as_py() if len(before) else 0.0


def findings(sequences: Sequences, know_order: bool = False, know_unit: bool = False) -> list[str]:
    """Returns a sentence for each kind of row that may be a mistake, with the option that settles it."""
    found = []
    names = {"item": (sequences.vocabulary.names.array, lambda i: np.count_nonzero(sequences.items == i))}
    if sequences.user_ids is not None:
        own = Names(sequences.user_ids).array
        names = {"user": (own, lambda u: sequences.offsets[u + 1] - sequences.offsets[u])} | names
    for role, (own, count) in names.items():
        found += _spelled_missing(role, own, count)
        found += _alike(role, own)
        found += _misread(role, own[:_PAIRS])
    found += _header(sequences)
    if sequences.times is not None:
        found += [] if know_unit else _other_numbers(sequences.times)
        found += _tied(sequences, know_order)
    found += _padded(sequences)
    for name, column in sequences.columns.items():
        known = column.vocabulary
        first = known.names.array[:_MANY] if known else []
        if len(first) and pc.all(pc.match_substring_regex(first, r"^[+-]?\d+,\d+$")).as_py():
            found.append(
                f"The column {name!r} holds numbers with a comma, such as {first[0].as_py()!r}, which are "
                "read as names of categories: write them with a point, or leave out commas between thousands."
            )
        if known and len(column.values) and column.values.max() < 0:
            found.append(
                f"No value of the column {name!r} is one of the {len(known)} categories, such as "
                f"{known.names[0]!r}, that were passed: spell them as in training, integers without '.0'."
            )
    return found


def warn_of(sequences: Sequences, source, know_order: bool = False, know_unit: bool = False):
    for finding in findings(sequences, know_order, know_unit):
        warn(f"{source}: {finding}")


def warn_of_header(sequences: Sequences, user: str, item: str, source):
    """Warns of a user and an item that are called as their columns are: a header among rows without times."""
    named = (Names(sequences.user_ids or ()).array, user), (sequences.vocabulary.names.array, item)
    if sequences.times is None and all(own.index(name).as_py() >= 0 for own, name in named):
        warn(
            f"{source}: a user is called {user!r} and an item {item!r}, as their columns are: where files "
            "were joined, their headers are rows. Leave those lines out."
        )


def _other_numbers(times: np.ndarray):
    """Finds numbers that are read as times in seconds and seem to be something else."""
    if times.dtype.kind == "M" or not len(times):
        return
    unit, least, most = unit_of(times), times.min(), times.max()
    told = f"The times are numbers from {least:.16g} to {most:.16g}, which look like"
    if unit is not None:
        remedy = f'pass time_format="{unit}", or "s" if they are none.'
        yield f"{told} {UNITS[unit]} since 1970, but are read as seconds: {remedy}"
    elif least >= 1900 and most <= 2100:
        yield f'{told} years: pass time_format="%Y", or "s" if they are seconds.'
    elif len(times) >= _MANY and least >= 0 and most <= 10 and len(np.unique(times)) <= 11:
        yield f"{told} ratings: name the column of times."


def _padded(sequences):
    """Finds sequences of one length of which some begin or end with two items called 0, as padded ones do."""
    zero, width = sequences.vocabulary.names.array.index("0").as_py(), sequences.lengths.max(initial=0)
    if zero < 0 or width < 2 or sequences.lengths.min() < width:
        return
    rows = sequences.items.reshape(-1, width) == zero
    number = np.count_nonzero(rows[:, :2].all(1) | rows[:, -2:].all(1))
    if number:
        yield (
            f"{number} of {len(rows)} sequences, all of {width} items, begin or end with several items "
            "called '0', which look like padding, but are read as items: leave them out."
        )


def _header(sequences):
    """Finds a first sequence that may be a line with the names of columns: other names are integers."""
    first = np.unique(sequences[0]) if len(sequences) > 2 else np.array([], int)
    users, items = Names(sequences.user_ids or ()).array, sequences.vocabulary.names.array
    own = [*users[: min(len(first), 1)].to_pylist(), *items.take(pa.array(first)).to_pylist()]
    if not own or _num_texts(pa.array(own)) < len(own):
        return
    are_integers = _are_other_integers(users, 1) or _are_other_integers(items, len(first))
    if are_integers and not np.isin(sequences.items[sequences.offsets[1] :], first).any():
        told = ", ".join(map(repr, own[:3]))
        yield f"The first names, {told}, are no integers as others are: if they are a header, leave it out."


def _are_other_integers(names: pa.Array, num_texts: int) -> bool:
    """Whether all names but so many, which are none, are integers. Most often a few names tell."""
    parts = names[: num_texts + _MANY], names
    return len(names) > num_texts and all(_num_texts(part) <= num_texts for part in parts)


def _num_texts(names: pa.Array) -> int:
    """Returns how many names are no integers."""
    return len(names) - pc.sum(pc.match_substring_regex(names, r"^[+-]?\d+$")).as_py()


def _misread(role, names: pa.Array):
    for pattern, share, told in _MISREAD:
        found = pc.match_substring_regex(names, pattern)
        if len(names) and pc.mean(found.cast(pa.int8())).as_py() >= share:
            yield f"Many {role} names {told.format(names.filter(found)[0].as_py())}"


def _spelled_missing(role, names: pa.Array, count):
    where = np.flatnonzero(pc.is_in(names, _SPELLINGS))
    counts = {names[int(i)].as_py(): int(count(i)) for i in where}
    counts = {name: number for name, number in counts.items() if number}
    if counts:
        shown = ", ".join(f"{name!r} (rows: {number})" for name, number in counts.items())
        yield (
            f"Names that may stand for a missing {role} are read as names: {shown}. Readers of logs leave "
            f"these rows out with missing={tuple(counts)!r}."
        )


def _alike(role, names: pa.Array):
    """Finds names that differ by normal form or blanks only, and integers that went through a float."""
    is_ascii = pc.all(pc.string_is_ascii(names)).as_py()
    same = _same(names, pc.ascii_trim_whitespace(names) if is_ascii else normal_names(names, "NFC"))
    if same is not None:
        yield (
            f"{same[0]} {role} names differ from others only by the normal form of Unicode, blanks or marks "
            f"that are not seen, such as {same[1]}, and stay apart: make them one in the data, or read it "
            'again with vocabulary=tfxc.data.Vocabulary(names, normalize="NFC").'
        )
    if pc.any(pc.match_substring(names, "+")).as_py():
        rounded = names.filter(pc.match_substring_regex(names, r"^\d(\.\d+)?[eE]\+\d+$"))
        if len(rounded):
            yield (
                f"{len(rounded)} {role} names are rounded numbers, such as {rounded[0].as_py()!r}, which may "
                "stand for several: write them as integers or texts where they come from."
            )
    if pc.any(pc.ends_with(names, ".0")).as_py():
        integers = pc.replace_substring_regex(names, r"^(-?\d+)\.0$", r"\1")
        same, is_float = _same(names, integers), pc.not_equal(integers, names)
        if same is not None:
            told = f"{same[0]} {role} names went through a float, such as {same[1]}, and stay apart"
            yield f"{told}: write them as integers."
        elif 2 * pc.sum(is_float).as_py() > len(names):
            first = names.filter(is_float)[0].as_py()
            yield f"Most {role} names went through a float, such as {first!r}: write them as integers."


def _same(names: pa.Array, plain: pa.Array) -> tuple[int, str] | None:
    """Returns how many names repeat an earlier one when made plain, and two of them; None if none do."""
    if plain.equals(names):
        return None
    codes = plain.dictionary_encode().indices.to_numpy()
    counts = np.bincount(codes)
    repeated = np.flatnonzero(counts[codes] > 1)
    if not len(repeated):
        return None
    first, second = names.filter(pa.array(codes == codes[repeated[0]]))[:2].to_pylist()
    return len(repeated) - int((counts > 1).sum()), f"{first!r} beside {second!r}"


def _tied(sequences, know_order):
    number, rising, num_repeats = ties(sequences)
    steps = len(sequences.items) - np.count_nonzero(sequences.lengths)
    if num_repeats >= max(_MANY, _REPEATED * steps):
        yield (
            f"{num_repeats} of {steps} steps ({num_repeats / steps:.1%}) go to the same item at the same "
            "time, as if rows were there twice, which teaches a model to repeat: drop such rows, for example "
            "by frame.drop_duplicates()."
        )
    if number >= max(1, _TIED * steps) and not know_order:
        yield (
            f"{number} of {steps} steps ({number / steps:.1%}) go to another item at the same "
            f"time, {rising:.0%} of them to the larger name, in the order of the table: a model learns "
            'that order. Pass ties="random" to shuffle them, or ties="order" if the order is right.'
        )
