"""Progress of long work: a bar on a terminal, and now and then a line in a log."""

import sys

from tqdm import tqdm

_PATIENCE = 30  # seconds before the first line in a log, and between two of them


def progress(total, title, unit):
    """A ``tqdm`` bar, none without a title; in a log, work of less than half a minute has no line."""
    if title is None:
        return tqdm(disable=True)
    if sys.stderr.isatty():
        return tqdm(total=total, desc=title, unit=f" {unit}")
    line = "{desc}: {percentage:.0f}% of {total_fmt}{unit} in {elapsed}, {remaining} left\n"
    options = {"delay": _PATIENCE, "mininterval": _PATIENCE, "leave": False, "bar_format": line}
    return tqdm(total=total, desc=title, unit=f" {unit}", **options)
