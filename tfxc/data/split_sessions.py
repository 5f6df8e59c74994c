"""Cuts sequences into sessions where a user was silent for a while."""

import re
from datetime import timedelta

import numpy as np

from tfxc.data.sequences import Sequences, require_sequences
from tfxc.data.times import UNITS, unit_of
from tfxc.data.warn import warn

_GAP = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|min|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400}


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
        >>> from tfxc.data import Vocabulary
        >>> log = Sequences([0, 1, 2], [0, 3], Vocabulary("abc"), ["ann"], times=[0, 60, 7200])
        >>> sessions = split_sessions(log, gap="30min")
        >>> [own.tolist() for own in sessions], sessions.user_ids
        ([[0, 1], [2]], ['ann', 'ann'])
    """
    require_sequences(sequences)
    if sequences.times is None:
        raise ValueError("split_sessions needs sequences with times: read the log with its time column.")
    unit = unit_of(sequences.times)
    if unit is not None:
        warn(
            f"The times look like {UNITS[unit]} since 1970, but are taken for seconds, as the gap is: read "
            f'the log with time_format="{unit}".'
        )
    times = sequences.times
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


def _gap(gap) -> np.timedelta64:
    found = _GAP.fullmatch(gap.strip()) if isinstance(gap, str) else None
    if found is not None:
        gap = float(found[1]) * _SECONDS[found[2]]
    is_number = isinstance(gap, int | float | np.number) and not isinstance(gap, bool | np.timedelta64)
    own = np.timedelta64(round(gap * 10**6), "us") if is_number and abs(gap) < 2**43 else gap
    own = np.timedelta64(own) if isinstance(own, timedelta) else own
    is_length = isinstance(own, np.timedelta64) and np.datetime_data(own.dtype)[0] not in ("Y", "M")
    if not is_length or np.isnat(own) or own < np.timedelta64(0):
        raise ValueError(
            "gap must be a duration such as '30min' or '12h', a timedelta, or a number of seconds, but got "
            f"{gap!r}."
        )
    return own
