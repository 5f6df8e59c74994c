"""Ragged sequences of class ids, which every reader returns and every split keeps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tfxc.arguments import integers, positions, refuse_masked, require_kind
from tfxc.data.grouping import by_group, decreases_inside, sort_by_time
from tfxc.data.growing_vocabulary import NEW_CLASSES
from tfxc.data.names import Names, texts
from tfxc.data.vocabulary import Vocabulary, name_ids, require_vocabulary

# Names that the batches of the pipeline and of with_example_ids use for their own parts.
_RESERVED = ("items", "exclude", "example_ids", NEW_CLASSES)
MISSING = -1  # the id of a category that is not there


@dataclass(frozen=True, eq=False)
class Column:
    """A further column of interactions, such as an hour, a country or a price: one value for each.

    Args:
        values: [M] numbers. With a vocabulary, int32 ids in [-1, K), where -1 is a missing value.
        vocabulary: the K raw names of categories, or None for numbers.

    Raises:
        ValueError: for ids outside the range, or values that are not numbers.

    Example:
        >>> column = Column([0, 1, 0], Vocabulary(["de", "fr"]))
        >>> column.vocabulary.decode(column.values)
        ['de', 'fr', 'de']
    """

    values: np.ndarray
    vocabulary: Vocabulary | None = None

    def __post_init__(self):
        require_vocabulary(self.vocabulary)
        values = np.asanyarray(self.values)  # a memory-mapped array stays mapped
        refuse_masked(values, "values")
        if self.vocabulary is not None:
            values = np.asanyarray(integers(values, "values", len(self.vocabulary), MISSING), np.int32)
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise ValueError(f"values must be numbers [M], but are {values.dtype} of shape {values.shape}.")
        object.__setattr__(self, "values", values)

    def take(self, where) -> "Column":
        """Returns the column at some positions."""
        return Column(self.values[where], self.vocabulary)


def check_column_name(name: str):
    """Raises ValueError for a name that is no text, or that the batches use for a part of their own."""
    if not isinstance(name, str):
        raise ValueError(f"Columns go by names, which are texts, but got {name!r}.")
    if name in _RESERVED:
        raise ValueError(f"A column must not be called {name!r}, like a part of the batches: rename it.")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Class-id sequences of many users (or sessions, or books), each oldest first.

    Sequence u is `items[offsets[u]:offsets[u + 1]]`. With two flat arrays, millions of sequences need no
    Python objects.

    Args:
        items: [M] int32 class ids in [0, L), all sequences end to end.
        offsets: [U + 1] int64, where each of the U sequences starts; the last entry is M.
        vocabulary: the L raw item names, a `Vocabulary`.
        user_ids: U raw names (users, titles), kept as `Names`; or None if sequences have no names.
        times: [M] the time of each item, datetime64 of any unit or float64, which never decreases inside a
            sequence; or None.
        columns: further values of each interaction by name, each a `Column` of [M].

    Raises:
        ValueError: if the parts do not fit together.

    Example:
        >>> sequences = Sequences.from_lists([["tea", "milk", "tea"], ["milk"]])
        >>> len(sequences), sequences.num_classes, sequences[0].tolist(), sequences.counts().tolist()
        (2, 2, [0, 1, 0], [2, 2])
    """

    items: np.ndarray
    offsets: np.ndarray
    vocabulary: Vocabulary
    user_ids: Sequence[str] | None = None
    times: np.ndarray | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self):
        require_vocabulary(self.vocabulary)
        # Check ids before casting them: 2^32 would become class 0. Memory-mapped arrays stay mapped.
        items = integers(self.items, "items", self.num_classes)
        offsets = integers(self.offsets, "offsets")
        if self.user_ids is not None:
            object.__setattr__(self, "user_ids", Names(self.user_ids))
        if items.ndim != 1:
            raise ValueError(f"items must be [M], all sequences end to end, but are of shape {items.shape}.")
        num_items = len(items)
        runs = offsets.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == num_items
        if not runs or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(
                f"offsets must run from 0 to the number of items {num_items} and never decrease, but are "
                f"{offsets}: sequence u is items[offsets[u]:offsets[u + 1]]."
            )
        object.__setattr__(self, "items", np.asanyarray(items, np.int32))
        object.__setattr__(self, "offsets", np.asanyarray(offsets, np.int64))
        if self.user_ids is not None and len(self.user_ids) != len(self):
            raise ValueError(f"There are {len(self)} sequences but {len(self.user_ids)} user_ids.")
        if self.times is not None:
            times = _finite_times(self.times)
            times = times if times.dtype.kind == "M" else np.asanyarray(times, np.float64)
            object.__setattr__(self, "times", times)
            if times.shape != items.shape:
                raise ValueError(f"There are {num_items} items but times of shape {times.shape}.")
            if decreases_inside(self.offsets, times):
                raise ValueError("times must never decrease inside a sequence; from_interactions sorts them.")
        for name, column in self.columns.items():
            check_column_name(name)
            if not isinstance(column, Column):
                raise ValueError(
                    f"columns must hold a tfxc.data.Column for each name, but {name!r} is of "
                    f"{type(column).__name__}: pass Column(values)."
                )
            if len(column.values) != num_items:
                raise ValueError(f"There are {num_items} items but {len(column.values)} values of {name!r}.")

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Iterable],
        vocabulary: Vocabulary | None = None,
        user_ids: list[str] | None = None,
    ) -> "Sequences":
        """Makes sequences from lists of item names, oldest first, numbered as they appear or by a vocabulary.

        Raises:
            ValueError: for a name that is not in the given vocabulary, is missing (None, NaN, the missing
                values of pandas and Arrow) or a float; for a set instead of a list, or a dict.
        """
        if isinstance(lists, Mapping) or hasattr(lists, "columns"):  # both give their keys, which are names
            raise ValueError(
                f"lists must be a list of lists, but is a {type(lists).__name__}: pass dict.values() and "
                "user_ids=[*dict], or the column of a data frame that holds lists. tfxc.data.from_frame "
                "takes a data frame with an interaction a row."
            )
        ids = name_ids(vocabulary)
        try:
            named = (texts(names, f" of list {number}") for number, names in enumerate(lists))
            encoded = [[ids[name] for name in own] for own in named]
        except KeyError as error:
            other = vocabulary.other_spelling(error.args[0]) if vocabulary else ""  # new names have ids
            raise ValueError(f"The item {error.args[0]!r} is not in the vocabulary{other}.") from None
        offsets = np.cumsum([0] + [len(sequence) for sequence in encoded])
        items = np.array([i for sequence in encoded for i in sequence], np.int32)
        return cls(items, offsets, Vocabulary(ids) if vocabulary is None else vocabulary, user_ids)

    @classmethod
    def from_interactions(cls, users, items, vocabulary: Vocabulary, user_ids, times=None) -> "Sequences":
        """Groups M interactions by user, sorted by time. Those of equal times, or of none, keep their order.

        Args:
            users: [M] integer positions in `user_ids`.
            items: [M] class ids.
            vocabulary: the raw item names.
            user_ids: U raw user names.
            times: [M] numbers or datetime64, or None.

        Raises:
            ValueError: for arrays of different lengths, numbers outside their range, or times that are
                neither finite numbers nor dates.
        """
        users, items = integers(users, "users", len(user_ids)), integers(items, "items")
        if users.ndim != 1 or items.shape != users.shape:
            raise ValueError(f"users and items must both be [M], but are {users.shape} and {items.shape}.")
        if times is not None and np.shape(times) != users.shape:
            raise ValueError(f"There are {len(users)} interactions but times of shape {np.shape(times)}.")
        order, offsets = by_group(users, len(user_ids))
        items = items[order]
        if times is not None:
            times = _finite_times(times)[order]
            sort_by_time(offsets, times, [items])
        return cls(items, offsets, vocabulary, user_ids, times)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, u: int) -> np.ndarray:
        if isinstance(u, slice):
            raise TypeError("Sequences take one number, [u]: for several sequences use select(index).")
        u = range(len(self))[u]  # negative positions, and IndexError past the end
        return self.items[self.offsets[u] : self.offsets[u + 1]]

    def __repr__(self) -> str:
        return f"Sequences({len(self)} sequences, {len(self.items)} items, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """Number of classes L, whether or not they occur in these sequences."""
        return len(self.vocabulary)

    @property
    def lengths(self) -> np.ndarray:
        """[U] the number of items in each sequence."""
        return np.diff(self.offsets)

    def counts(self) -> np.ndarray:
        """Returns [L], how often each class occurs."""
        return np.bincount(self.items, minlength=self.num_classes)

    def slices(self, index, starts, stops) -> "Sequences":
        """Returns new sequences: the items from `starts` up to `stops` of each sequence that `index` chooses.

        Args:
            index: [V] positions of sequences, negative ones from the end, or a boolean mask [U].
            starts: [V] or scalar, the first item kept, counted from the start of the sequence.
            stops: [V] or scalar, one past the last item kept; `0 <= start <= stop <= length`.
        """
        index = positions(index, len(self), "index")
        starts = np.broadcast_to(integers(starts, "starts"), index.shape).astype(np.int64, copy=False)
        stops = np.broadcast_to(integers(stops, "stops"), index.shape).astype(np.int64, copy=False)
        if ((starts < 0) | (stops < starts) | (stops > self.lengths[index])).any():
            raise ValueError("A slice must satisfy 0 <= start <= stop <= length of its sequence.")
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        where = np.repeat(self.offsets[index] + starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._at(where, offsets, index)

    def select(self, index) -> "Sequences":
        """Returns the sequences at positions [V], negative ones from the end, or of a boolean mask [U]."""
        index = positions(index, len(self), "index")
        return self.slices(index, 0, self.lengths[index])

    def _at(self, where, offsets, index) -> "Sequences":
        """Returns the items at flat positions, as sequences with the names of those at positions `index`."""
        users = None if self.user_ids is None else Names(self.user_ids)[index]
        times = None if self.times is None else self.times[where]
        columns = {name: column.take(where) for name, column in self.columns.items()}
        return Sequences(self.items[where], offsets, self.vocabulary, users, times, columns)


def require_sequences(sequences):
    """Raises ValueError for anything but ``Sequences``, such as a ``Split`` or lists."""
    require_kind(sequences, Sequences, "sequences", "a part of a Split, or Sequences.from_lists(lists)")


def _finite_times(times) -> np.ndarray:
    """Returns times as an array; raises ValueError for others. A memory-mapped array stays mapped."""
    times = np.asanyarray(times)
    refuse_masked(times, "times")
    if times.size and times.dtype.kind not in "biufM":
        raise ValueError(
            f"times must be numbers or datetime64, but are {times.dtype}: convert them, for example by "
            'np.array(times, "datetime64[us]").'
        )
    if times.size and not np.isfinite(times).all():
        raise ValueError("times must be finite: no NaN, infinity or NaT.")
    return times
