"""A further column of interactions, such as an hour, a country or a price."""

from dataclasses import dataclass

import numpy as np

from tfxc.arguments import integers, refuse_masked
from tfxc.data.vocabulary import Vocabulary

MISSING = -1


@dataclass(frozen=True, eq=False)
class Column:
    """One value for each interaction, in addition to its item.

    Args:
        values: [M] numbers. With a vocabulary, int32 ids in [-1, K), where -1 is a missing value.
        vocabulary: the K raw names of categories, or None for numbers.

    Raises:
        ValueError: for ids outside the range, or values that are not numbers.

    Example:
        >>> from tfxc.data import Vocabulary
        >>> column = Column([0, 1, 0], Vocabulary(["de", "fr"]))
        >>> column.vocabulary.decode(column.values)
        ['de', 'fr', 'de']
    """

    values: np.ndarray
    vocabulary: Vocabulary | None = None

    def __post_init__(self):
        values = np.asanyarray(self.values)  # a memory-mapped array stays mapped
        refuse_masked(values, "values")
        if self.vocabulary is not None:
            values = np.asanyarray(integers(values, "values", len(self.vocabulary), MISSING), np.int32)
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise ValueError(f"values must be numbers [M], but are {values.dtype} of shape {values.shape}.")
        object.__setattr__(self, "values", values)

    def take(self, positions) -> "Column":
        """Returns the column at some positions."""
        return Column(self.values[positions], self.vocabulary)
