"""Splits sequences into training, validation and test parts, and into sessions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from tfxc.arguments import real_number, seed_or_drawn
from tfxc.data.sequences import Sequences, require_sequences
from tfxc.data.times import UNITS, point_in_time, unit_of
from tfxc.data.warn import warn

_GAP = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|min|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Split:
    """Training sequences and the examples to evaluate on.

    In `validation` and `test` each sequence is one example: its **last item is the target**, and all items
    before it are the history, the user's whole past. (After `tail_split`, which cuts long streams, every item
    but the first is a target.) All three share one vocabulary.

    Args:
        train: sequences to learn from.
        validation: examples for choosing a model.
        test: examples for the final figures.
        num_not_evaluated: the number of sequences without an example in validation or test.

    Example:
        >>> split = leave_last_out(Sequences.from_lists(["tea", "ate"]))
        >>> *history, target = split.test[0]
        >>> split.test.vocabulary.decode(target)
        'a'
    """

    train: Sequences
    validation: Sequences
    test: Sequences
    num_not_evaluated: int = 0


def leave_last_out(sequences: Sequences) -> Split:
    """Tests on each user's last item, validates on the one before, trains on the rest.

    The history of a test example includes the validation item. Users with fewer than 3 items stay entirely
    in training and count in `num_not_evaluated`.

    Raises:
        ValueError: if no user has 3 items.

    Example:
        >>> split = leave_last_out(Sequences.from_lists([[*"abcd"], [*"ba"]]))
        >>> [split.train[0].tolist(), split.validation[0].tolist(), split.test[0].tolist()]
        [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
        >>> len(split.train), len(split.test), split.num_not_evaluated
        (2, 1, 1)
    """
    require_sequences(sequences)
    lengths = sequences.lengths
    evaluated = np.flatnonzero(lengths >= 3)
    if not len(evaluated):
        raise ValueError("No sequence has 3 items, which leave_last_out needs (train, validation, test).")
    train_stops = np.where(lengths >= 3, lengths - 2, lengths)
    train = sequences.slices(np.arange(len(sequences)), 0, train_stops)
    validation = sequences.slices(evaluated, 0, lengths[evaluated] - 1)
    return Split(train, validation, sequences.select(evaluated), len(sequences) - len(evaluated))


def ratio_split(sequences: Sequences, fractions: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0) -> Split:
    """Splits whole sequences at random, so that evaluation meets users that training never saw.

    Sequences with fewer than 2 items have no history and target. They stay in training and count in
    `num_not_evaluated`.

    Args:
        sequences: one a user or session.
        fractions: shares of train, validation and test among the sequences with 2 items or more; three
            numbers in (0, 1) that sum to 1.
        seed: same seed, same split.

    Raises:
        ValueError: for other fractions, or if a part would be empty.

    Example:
        >>> split = ratio_split(Sequences.from_lists([["a", "b"]] * 10), (0.6, 0.2, 0.2))
        >>> len(split.train), len(split.validation), len(split.test)
        (6, 2, 2)
    """
    require_sequences(sequences)
    shares = np.array(fractions)
    are_three = shares.shape == (3,) and shares.dtype.kind in "iuf"
    if not (are_three and min(fractions) > 0 and abs(sum(fractions) - 1) <= 1e-6):
        raise ValueError(f"fractions must be three positive numbers that sum to 1, not {fractions!r}.")
    usable = np.flatnonzero(sequences.lengths >= 2)
    num_validation, num_test = (round(fraction * len(usable)) for fraction in fractions[1:])
    if not num_validation or not num_test or num_validation + num_test >= len(usable):
        raise ValueError(
            f"{len(usable)} sequences of 2 items or more are too few to split by {tuple(fractions)}: a part "
            "would be empty. Use other fractions or more sequences."
        )
    shuffled = np.random.default_rng(seed_or_drawn(seed) % 2**64).permutation(usable)
    held_out = shuffled[: num_validation + num_test]
    validation, test = map(np.sort, np.split(held_out, [num_validation]))
    train = np.delete(np.arange(len(sequences)), held_out)
    parts = sequences.select(train), sequences.select(validation), sequences.select(test)
    return Split(*parts, num_not_evaluated=len(sequences) - len(usable))


def time_split(sequences: Sequences, validation_start, test_start) -> Split:
    """Trains on what happened before a point in time and evaluates on what came next, as in production.

    Training holds every interaction before `validation_start`. A user's validation example has all items
    before `validation_start` as history and the next item before `test_start` as target. The test example has
    all items before `test_start` as history and the next item as target. No history reaches into the period
    that it is tested on. Users without an example count in `num_not_evaluated`: those without a later item,
    and new users, without an earlier one. Sessions rarely span these points: use `ratio_split`, or
    `sequences.select(sequences.times[sequences.offsets[:-1]] < point)` for those that began before one.

    Args:
        sequences: they must have times.
        validation_start: an ISO 8601 date such as `"2024-05-01"`, a `datetime`, `date` or `np.datetime64`
            (in UTC if it names no zone), or a number: seconds since 1970, or in the unit of the times if
            these are numbers.
        test_start: likewise; later than `validation_start`.

    Raises:
        ValueError: without times, for an invalid point in time, if `test_start` is not the later one, or if a
            part would be empty.

    Example:
        >>> log = Sequences([0, 1, 2, 0], [0, 4], tfxc.data.Vocabulary("abc"), ["ann"], times=[1, 5, 6, 9])
        >>> split = time_split(log, validation_start=5, test_start=8)
        >>> [split.train[0].tolist(), split.validation[0].tolist(), split.test[0].tolist()]
        [[0], [0, 1], [0, 1, 2, 0]]
    """
    require_sequences(sequences)
    if sequences.times is None:
        raise ValueError("time_split needs sequences with times: read the log with its time column.")
    validation_start = point_in_time(validation_start, sequences.times)
    test_start = point_in_time(test_start, sequences.times)
    if not validation_start < test_start:
        raise ValueError(f"validation_start {validation_start} must be before test_start {test_start}.")

    def num_before(point):  # the number of older items in each sequence
        return np.diff(np.concatenate([[0], np.cumsum(sequences.times < point)])[sequences.offsets])

    num_train, num_known = num_before(validation_start), num_before(test_start)
    in_train = np.flatnonzero(num_train > 0)
    in_validation = np.flatnonzero((num_train > 0) & (num_known > num_train))
    in_test = np.flatnonzero((num_known > 0) & (sequences.lengths > num_known))
    for name, index in (("training", in_train), ("validation", in_validation), ("test", in_test)):
        if not len(index):
            span = [sequences.times.min(), sequences.times.max()] if len(sequences.times) else [None, None]
            hint = _other_unit(sequences.times)
            if not hint and len(in_train):
                hint = f" No sequence has items before and after the start of {name}, as its examples need: "
                hint += "split sessions, which are too short for that, by ratio_split or leave_last_out."
            raise ValueError(
                f"The {name} part would be empty: times run from {span[0]} to {span[1]}, "
                f"validation starts at {validation_start} and the test at {test_start}.{hint}"
            )
    train = sequences.slices(in_train, 0, num_train[in_train])
    validation = sequences.slices(in_validation, 0, num_train[in_validation] + 1)
    test = sequences.slices(in_test, 0, num_known[in_test] + 1)
    return Split(train, validation, test, len(sequences) - len(np.union1d(in_validation, in_test)))


def tail_split(sequences: Sequences, validation_fraction: float = 0.05, test_fraction: float = 0.05) -> Split:
    """Holds out the end of every sequence, for a few long streams such as books.

    The last `test_fraction` of each sequence is its test part, and the `validation_fraction` before that its
    validation part (both rounded down). **Every** item of a part except the first is a target: feed
    validation and test by `sequence_training_dataset(part, ..., windows="all", seed=None)`. Sequences too
    short for an example of two items in either part count in `num_not_evaluated`.

    Args:
        validation_fraction: in (0, 1).
        test_fraction: in (0, 1); both together below 1.

    Raises:
        ValueError: for other fractions, or if a part would have no sequence of two items.

    Example:
        >>> split = tail_split(Sequences.from_lists([range(100)]), 0.1, 0.05)
        >>> len(split.train[0]), split.validation[0].tolist()[0], split.test[0].tolist()[0]
        (85, 85, 95)
    """
    require_sequences(sequences)
    validation_fraction = real_number(validation_fraction, "validation_fraction")
    test_fraction = real_number(test_fraction, "test_fraction")
    fractions = validation_fraction, test_fraction
    if not (min(fractions) > 0 and sum(fractions) < 1):
        raise ValueError(f"Both fractions must be positive and sum to less than 1, but are {fractions}.")
    lengths, every = sequences.lengths, np.arange(len(sequences))
    test_starts = lengths - _shares(lengths, test_fraction)
    starts = test_starts - _shares(lengths, validation_fraction)
    in_validation, in_test = test_starts - starts >= 2, lengths - test_starts >= 2
    parts = ("validation", in_validation, validation_fraction), ("test", in_test, test_fraction)
    for name, is_in, fraction in parts:
        if not is_in.any():
            raise ValueError(
                f"The {name} part would be empty: {fraction} of {max(lengths, default=0)} items, the longest "
                "sequence, are fewer than 2. Use a larger fraction or longer sequences."
            )
    bounds = (0, starts), (starts, test_starts), (test_starts, lengths)
    train, validation, test = (sequences.slices(every, *own) for own in bounds)
    return Split(train, validation, test, int((~(in_validation | in_test)).sum()))


def split_sessions(sequences: Sequences, gap="30min") -> Sequences:
    """Cuts each sequence wherever more time than `gap` passes between two items.

    Args:
        sequences: they must have times, `datetime64` or seconds.
        gap: a text of a number and a unit, `ms`, `s`, `min`, `h` or `d`; a `timedelta` or
            `np.timedelta64`; or a number of seconds. At least 0.

    Returns:
        One sequence a session, in the order of users and times; none for an empty sequence. `user_ids` holds
        the user of each session, so that a user with several sessions is there several times.

    Raises:
        ValueError: without times, or for another gap.

    Example:
        >>> log = Sequences([0, 1, 2], [0, 3], tfxc.data.Vocabulary("abc"), ["ann"], times=[0, 60, 7200])
        >>> sessions = split_sessions(log, gap="30min")
        >>> [own.tolist() for own in sessions], sessions.user_ids
        ([[0, 1], [2]], ['ann', 'ann'])
    """
    require_sequences(sequences)
    if sequences.times is None:
        raise ValueError("split_sessions needs sequences with times: read the log with its time column.")
    times, hint = sequences.times, _other_unit(sequences.times)
    if hint:
        warn(f"The gap is in seconds.{hint}")
    is_coarse = times.dtype.kind == "M" and np.datetime_data(times.dtype)[0] in ("Y", "M")  # of no length
    between = np.diff(times.astype("datetime64[D]") if is_coarse else times)
    limit = _gap(gap)
    is_long = between > (limit if between.dtype.kind == "m" else limit / np.timedelta64(1, "s"))
    starts = np.unique(np.concatenate([sequences.offsets[:-1], 1 + np.flatnonzero(is_long)]))
    starts = starts[starts < len(sequences.items)]
    users = np.searchsorted(sequences.offsets, starts, side="right") - 1
    within = starts - sequences.offsets[users]
    stops = np.append(starts[1:], len(sequences.items)) - sequences.offsets[users]
    return sequences.slices(users, within, stops)


def _other_unit(times) -> str:
    """Returns what to say of times that are numbers of another unit than seconds, or nothing."""
    unit = unit_of(times)
    if unit is None:
        return ""
    told = f" Numbers are read as seconds, but these times look like {UNITS[unit]} since 1970"
    return f'{told}: read the log with time_format="{unit}".'


def _gap(gap) -> np.timedelta64:
    found = _GAP.fullmatch(gap.strip()) if isinstance(gap, str) else None
    if found is not None:
        gap = float(found[1]) * _SECONDS[found[2]]
    is_number = isinstance(gap, int | float | np.number) and not isinstance(gap, bool | np.timedelta64)
    own = np.timedelta64(round(gap * 10**6), "us") if is_number and abs(gap) < 2**43 else gap
    own = np.timedelta64(own) if isinstance(own, timedelta) else own
    is_length = isinstance(own, np.timedelta64) and np.datetime_data(own.dtype)[0] not in ("Y", "M")
    if not is_length or np.isnat(own) or own < np.timedelta64(0):
        raise ValueError(f"gap must be a duration such as '30min', a timedelta or seconds, but got {gap!r}.")
    return own


def _shares(lengths: np.ndarray, fraction: float) -> np.ndarray:
    """Returns shares rounded down, where 0.29 of 100 is 29 although the float product is slightly less."""
    return np.round(lengths * fraction, 6).astype(np.int64)
