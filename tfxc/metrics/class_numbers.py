"""Numbers of the classes in the config of a metric, as text: a loaded model evaluates by the same numbers."""

import base64
import zlib

import numpy as np


def encoded(numbers):
    """Numbers [L] as text. Few are distinct and compress to a byte or two each; a list takes ten."""
    return base64.b64encode(zlib.compress(numbers.tobytes())).decode()


def decoded(text, dtype, what):
    """The numbers [L] of a text; raises ValueError for one that is not of ``encoded``."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"{text[:20]!r}... holds no {what} of every class: {error}") from error
