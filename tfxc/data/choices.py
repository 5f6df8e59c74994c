"""What the data alone cannot settle when a log is read."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfxc.arguments import one_of, seed_int


@dataclass(frozen=True)
class Choices:
    """Decisions of the caller of a reader, see ``from_frame``.

    Raises ValueError for other ties, a seed that is no integer, or `missing` that is one text or no texts.
    """

    ties: str | None = None
    seed: int = 0
    missing: Iterable[str] = ()
    time_format: str | None = None

    def __post_init__(self):
        one_of(self.ties, "ties", (None, "order", "random"))
        seed_int(self.seed)
        names = tuple(self.missing) if isinstance(self.missing, Iterable) else (None,)
        if isinstance(self.missing, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f'missing must be several texts, such as ("NULL", ""), but is {self.missing!r}.')
        object.__setattr__(self, "missing", names)  # a generator gives them once

    @property
    def shuffle(self) -> int | None:
        """The seed by which ties are shuffled, or None."""
        return self.seed if self.ties == "random" else None
