"""Which class of one list of names is which of another."""

from collections.abc import Mapping, Set
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.model.raw_names import as_texts


class ClassMap:
    """From the classes of a model to those of another list of names, matched by name.

    Args:
        old_names: the model's L names, in id order.
        names: the L' names of the new classes, in id order; bytes are taken as UTF-8, anything else but a
            string counts as its ``str``.

    Attributes:
        old_ids: int64 [L'], the old id of each new class, -1 for one that is new.
        new_ids: int64 [L], the new id of each old class, -1 for one that is gone.

    Raises:
        ValueError: for names that are no list of names, occur twice, or of which the model knows none.

    Example:
        >>> classes = ClassMap(["tea", "milk", "salt"], ["milk", "rum", "tea"])
        >>> classes.old_ids.tolist(), classes.new_ids.tolist(), classes.added.tolist()
        ([1, -1, 0], [2, 0, -1], [1])
        >>> classes.destinations(num_rows=5, row_offset=1).tolist()  # of the rows of a table
        [0, 3, 1, -1, 4]
    """

    def __init__(self, old_names, names):
        old, self.names = _as_array(old_names, "The model's class names"), _as_array(names, "The names")
        found = pc.index_in(old, value_set=self.names)
        self.new_ids = pc.fill_null(pc.cast(found, pa.int64()), -1).to_numpy(zero_copy_only=False)
        kept = np.flatnonzero(self.new_ids >= 0)
        if not len(kept):
            raise ValueError(
                f"None of the {len(self.names)} names is a class of the model: the first are "
                f"{self.names[0].as_py()!r} and {old[0].as_py()!r}. Pass names, not class ids, written as "
                "the model has them."
            )
        self.old_ids = np.full(len(self.names), -1)
        self.old_ids[self.new_ids[kept]] = kept

    @cached_property
    def added(self):
        """The new ids of the new classes, ascending."""
        return np.flatnonzero(self.old_ids < 0)

    @cached_property
    def kept(self):
        """The new ids of the classes that stay, ascending."""
        return np.flatnonzero(self.old_ids >= 0)

    def names_of(self, ids):
        """The names of new ids, as a list."""
        return self.names.take(pa.array(ids)).to_pylist()

    def destinations(self, num_rows, row_offset):
        """Where the rows of a table of the old classes go, int64 [num_rows]; -1 for those that are gone."""
        rows = np.arange(num_rows)
        stop = row_offset + len(self.new_ids)
        rows[row_offset:stop] = np.where(self.new_ids >= 0, self.new_ids + row_offset, -1)
        rows[stop:] += self.num_added
        return rows

    @property
    def num_added(self):
        """How many more classes there are than before."""
        return len(self.old_ids) - len(self.new_ids)


def _as_array(names, what):
    array = getattr(names, "array", None)
    if not isinstance(array, pa.Array):
        if isinstance(names, str | bytes | Mapping | Set) or not hasattr(names, "__getitem__"):
            raise ValueError(
                f"{what} must be a list of names in the order of the class ids, but are "
                f"{type(names).__name__}. Of a tfxc.data.Vocabulary pass its names."
            )
        array = pa.array([str(name) for name in as_texts(names)], pa.large_string())
    if not len(array):
        raise ValueError(f"{what} are an empty list.")
    if pc.count_distinct(array).as_py() < len(array):
        counts = pc.value_counts(array)
        twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0].as_py()
        raise ValueError(f"{what} hold {twice!r} twice: which class is meant? Names must be distinct.")
    return array.cast(pa.large_string())
