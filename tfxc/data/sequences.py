"""Ragged sequences of class ids: the one form every reader returns and every split keeps."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tfxc.data.vocabulary import Vocabulary, name_ids


@dataclass(frozen=True, eq=False)
class Sequences:
    """Class-id sequences of many users (or sessions, or books), each oldest first.

    Sequence u is `items[offsets[u]:offsets[u + 1]]`: two flat arrays, so millions of sequences
    cost no Python object each.

    Args:
        items: [M] int32 class ids in [0, L), all sequences end to end.
        offsets: [U + 1] int64, where each of the U sequences starts; the last entry is M.
        vocabulary: the L raw item names.
        user_ids: U raw names (users, titles), or None where sequences have none.
        times: [M] float64, the time of each item, never falling inside a sequence; or None.

    Raises:
        ValueError: if the parts do not fit together.

    Example:
        >>> sequences = Sequences.from_lists([["tea", "milk", "tea"], ["milk"]])
        >>> len(sequences), sequences.num_classes
        (2, 2)
        >>> sequences[0].tolist()
        [0, 1, 0]
        >>> sequences.counts().tolist()
        [2, 2]
    """

    items: np.ndarray
    offsets: np.ndarray
    vocabulary: Vocabulary
    user_ids: list[str] | None = None
    times: np.ndarray | None = None

    def __post_init__(self):
        object.__setattr__(self, "items", np.asarray(self.items, np.int32))
        object.__setattr__(self, "offsets", np.asarray(self.offsets, np.int64))
        offsets, num_items = self.offsets, len(self.items)
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != num_items:
            raise ValueError(f"offsets must run from 0 to the {num_items} items; they are {offsets}.")
        if (np.diff(offsets) < 0).any():
            raise ValueError("offsets must never fall: sequence u is items[offsets[u]:offsets[u + 1]].")
        if num_items and (self.items.min() < 0 or self.items.max() >= self.num_classes):
            raise ValueError(
                f"items must be class ids in [0, {self.num_classes}); "
                f"they range from {self.items.min()} to {self.items.max()}."
            )
        if self.user_ids is not None and len(self.user_ids) != len(self):
            raise ValueError(f"There are {len(self)} sequences but {len(self.user_ids)} user_ids.")
        if self.times is not None:
            self._check_times()

    def _check_times(self):
        times = np.asarray(self.times, np.float64)
        object.__setattr__(self, "times", times)
        if times.shape != self.items.shape:
            raise ValueError(f"There are {len(self.items)} items but times of shape {times.shape}.")
        if not np.isfinite(times).all():
            raise ValueError("times must be finite numbers.")
        falls = np.diff(times) < 0
        inner = self.offsets[(self.offsets > 0) & (self.offsets < len(times))]
        falls[inner - 1] = False  # between two sequences time may jump back
        if falls.any():
            raise ValueError("times must never fall inside a sequence; from_interactions sorts them.")

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Iterable],
        vocabulary: Vocabulary | None = None,
        user_ids: list[str] | None = None,
    ) -> "Sequences":
        """Sequences from lists of raw item names, oldest first.

        Without a `vocabulary`, names are numbered in order of first appearance.

        Raises:
            ValueError: for a name that is not in the given vocabulary.
        """
        ids = name_ids(vocabulary)
        try:
            encoded = [[ids[str(name)] for name in names] for names in lists]
        except KeyError as error:
            raise ValueError(f"The item {error.args[0]!r} is not in the vocabulary.") from None
        offsets = np.cumsum([0] + [len(sequence) for sequence in encoded])
        items = np.array([i for sequence in encoded for i in sequence], np.int32)
        return cls(items, offsets, Vocabulary(ids) if vocabulary is None else vocabulary, user_ids)

    @classmethod
    def from_interactions(cls, users, items, vocabulary, user_ids, times=None) -> "Sequences":
        """Groups M separate interactions by user, oldest first.

        With times each user's items are sorted by time; without, and among equal times, they keep the
        order in which they are given.

        Args:
            users: [M] integer positions in `user_ids`.
            items: [M] class ids.
            vocabulary: the raw item names.
            user_ids: U raw user names.
            times: [M] numbers, or None.
        """
        users = np.asarray(users)
        order = np.argsort(users, kind="stable") if times is None else np.lexsort((times, users))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=len(user_ids)))])
        times = None if times is None else np.asarray(times)[order]
        return cls(np.asarray(items)[order], offsets, vocabulary, user_ids, times)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, u: int) -> np.ndarray:
        u = range(len(self))[u]  # negative positions, and IndexError past the end
        return self.items[self.offsets[u] : self.offsets[u + 1]]

    def __repr__(self) -> str:
        return f"Sequences({len(self)} sequences, {len(self.items)} items, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """Number of classes L, seen in these sequences or not."""
        return len(self.vocabulary)

    @property
    def lengths(self) -> np.ndarray:
        """[U] number of items in each sequence."""
        return np.diff(self.offsets)

    def counts(self) -> np.ndarray:
        """[L] how often each class occurs."""
        return np.bincount(self.items, minlength=self.num_classes)

    def slices(self, index, starts, stops) -> "Sequences":
        """New sequences: of each sequence chosen by `index`, its items from `starts` up to `stops`.

        Args:
            index: [V] positions of sequences.
            starts: [V] or scalar, first item kept, counted from the sequence's start.
            stops: [V] or scalar, one past the last item kept; `0 <= start <= stop <= length`.
        """
        index = np.asarray(index, np.int64)
        starts, stops = np.broadcast_to(starts, index.shape), np.broadcast_to(stops, index.shape)
        if ((starts < 0) | (stops < starts) | (stops > self.lengths[index])).any():
            raise ValueError("A slice must satisfy 0 <= start <= stop <= length of its sequence.")
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        where = np.repeat(self.offsets[index] + starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Sequences(
            self.items[where],
            offsets,
            self.vocabulary,
            None if self.user_ids is None else [self.user_ids[u] for u in index.tolist()],
            None if self.times is None else self.times[where],
        )

    def select(self, index) -> "Sequences":
        """The sequences chosen by positions [V] or by a boolean mask [U]."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return self.slices(index, 0, self.lengths[index])
