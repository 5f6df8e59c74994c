"""A further column of interactions: an hour, a country, a price."""

from dataclasses import dataclass

import numpy as np

from tfxc.arguments import integers
from tfxc.data.vocabulary import Vocabulary

MISSING = -1


@dataclass(frozen=True, eq=False)
class Column:
    """One value for each interaction, beside its item.

    Args:
        values: [M] numbers, or with a vocabulary int32 ids in [-1, K); -1 is a missing value.
        vocabulary: the K raw names of categories, or None for numbers.

    Raises:
        ValueError: for ids outside the range, or values that are no numbers.

    Example:
        >>> from tfxc.data import Vocabulary
        >>> column = Column([0, 1, 0], Vocabulary(["de", "fr"]))
        >>> column.vocabulary.decode(column.values)
        ['de', 'fr', 'de']
    """

    values: np.ndarray
    vocabulary: Vocabulary | None = None

    def __post_init__(self):
        # Mapped stays mapped, and ids are cast once they are in their range.
        values = np.asanyarray(self.values) if self.vocabulary is None else integers(self.values, "values")
        object.__setattr__(self, "values", values)
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise ValueError(f"values must be numbers [M], not {values.dtype} of shape {values.shape}.")
        if self.vocabulary is None:
            return
        if len(values) and (values.min() < MISSING or values.max() >= len(self.vocabulary)):
            raise ValueError(
                f"values must be ids in [-1, {len(self.vocabulary)}); "
                f"they range from {values.min()} to {values.max()}."
            )
        object.__setattr__(self, "values", np.asanyarray(values, np.int32))

    def at(self, where) -> "Column":
        """The column at positions `where`."""
        return Column(self.values[where], self.vocabulary)
