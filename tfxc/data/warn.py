"""Warnings that name the line of the user's program, however deep in the package they arise."""

import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn(message: str):
    """Warns at the innermost line of the stack that is outside this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def warn_of_cut(what: str, line: bytes):
    """Warns of the last line of a text, whose end may be missing."""
    warn(
        f"{what} has no line end ({line!r}). It was read as it is. If the file is truncated there, fetch it "
        "again."
    )
