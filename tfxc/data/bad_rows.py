"""Counts the rows of a source that cannot be used, and reports them together."""

import bisect
import threading

from tfxc.arguments import one_of
from tfxc.data.warn import warn

_NUM_REPORTED = 10


class BadRows:
    """Counts bad rows and keeps the first ten with their reasons. At the end it raises or warns about them.

    Messages name the source and call a row a unit, such as `"line"`. `on_error` is what `report` does:
    `"raise"` or `"skip"`.
    """

    def __init__(self, source, unit: str, on_error: str = "raise"):
        self.source = source
        self.unit = unit
        self.on_error = one_of(on_error, "on_error", ("raise", "skip"))
        self.number = 0
        self.hint = ""  # what may be the reason of many, at the end of the message
        self._reasons: list[tuple[int, str]] = []
        self._lock = threading.Lock()

    def reject(self, row: int, reason):
        """Counts a row as bad. Rows may come in any order and from several threads."""
        with self._lock:
            self.number += 1
            bisect.insort(self._reasons, (row, str(reason)))
            del self._reasons[_NUM_REPORTED:]

    def report(self, num_rows: int):
        """Raises a ValueError about the bad rows, or warns once if they are to be skipped."""
        if not self.number:
            return
        shown = [f"  {self.unit} {row}: {reason}" for row, reason in self._reasons]
        shown += ["  ..."] if self.number > _NUM_REPORTED else []
        counted = ", counted from 0" if self.unit == "row" else ""
        first = f"{self.source}: {self.number} bad of {num_rows} {self.unit}s{counted}"
        message = "\n".join([first, *shown]) + self.hint
        if self.on_error == "raise":
            raise ValueError(message + '\nCorrect them, or pass on_error="skip" to leave them out.')
        warn(message + f"\nThese {self.unit}s were left out.")
