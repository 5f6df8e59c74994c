"""Matches the classes of two lists of names."""

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.names import first_repeated, places_of
from tfxc.data.vocabulary import normal_names
from tfxc.serving.class_names import names_array


class ClassMap:
    """Maps the L classes of a model to the L' of another list of names, both in id order.

    Bytes are UTF-8, an integer counts as its ``str``. ``old_ids`` int64 [L'] has the old id of each new
    class, -1 for one that is new; ``new_ids`` int64 [L] the new id of each old one, -1 if it is gone.
    """

    def __init__(self, old_names, names):
        old, self.names = _distinct(old_names, "The model's class names"), _distinct(names, "The names")
        self.new_ids = places_of(old, self.names)
        kept = np.flatnonzero(self.new_ids >= 0)
        self.old_ids = np.full(len(self.names), -1)
        self.old_ids[self.new_ids[kept]] = kept
        _refuse_other_spelling(old.filter(pa.array(self.new_ids < 0)), self.names.take(pa.array(self.added)))
        if not len(kept):
            raise ValueError(
                f"None of the {len(self.names)} names is a class of the model: its first is {str(old[0])!r}, "
                f"yours {str(self.names[0])!r}. Pass names, not class ids, spelled as in model.class_names."
            )

    @cached_property
    def added(self):
        """The new ids of the new classes, ascending."""
        return np.flatnonzero(self.old_ids < 0)

    @cached_property
    def kept(self):
        """The new ids of the classes that stay, ascending."""
        return np.flatnonzero(self.old_ids >= 0)

    def names_of(self, ids):
        return self.names.take(pa.array(ids)).to_pylist()

    def destinations(self, num_rows, row_offset):
        """Returns the new places of the rows of a table, int64 [num_rows]; -1 for classes that are gone."""
        rows = np.arange(num_rows)
        stop = row_offset + len(self.new_ids)
        rows[row_offset:stop] = np.where(self.new_ids >= 0, self.new_ids + row_offset, -1)
        rows[stop:] += self.num_added
        return rows

    @property
    def num_added(self):
        """The number of classes by which the list grows; negative if it shrinks."""
        return len(self.old_ids) - len(self.new_ids)


def _refuse_other_spelling(gone, added):
    """Raises ValueError if a name that is gone is there in another spelling: its class would start anew."""
    plain = [normal_names(names, "NFC") for names in (gone, added)]
    own, other = (pc.replace_substring_regex(names, r"^(-?\d+)\.0$", r"\1") for names in plain)
    found = pc.index_in(other, value_set=own)
    if found.null_count < len(found):
        where = found.is_valid().index(True).as_py()
        raise ValueError(
            f"{len(found) - found.null_count} names are classes of the model in another spelling, such as "
            f"{added[where].as_py()!r} of {gone[found[where].as_py()].as_py()!r}, and would start anew: "
            "spell them as in model.class_names. Ids that went through a float end in '.0': write integers."
        )


def _distinct(names, what):
    """Returns the names as an array; raises ValueError if one occurs twice."""
    array = names_array(names, what)
    twice = first_repeated(array)
    if twice is not None:
        raise ValueError(f"{what} hold {twice!r} twice, but must be distinct: rename or remove one.")
    return array
