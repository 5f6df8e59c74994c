"""Types for argparse: numbers in a range, and paths of existing files."""

import argparse
from pathlib import Path


def _number(kind, is_right, range_):
    def parse(text):
        value = kind(text)
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"must be {range_}, but is {text}")
        return value

    parse.__name__ = kind.__name__  # "invalid int value", as argparse says of its own types
    return parse


count = _number(int, lambda value: value >= 1, "at least 1")
from_two = _number(int, lambda value: value >= 2, "at least 2")
from_three = _number(int, lambda value: value >= 3, "at least 3")
whole = _number(int, lambda value: value >= 0, "at least 0")
rate = _number(float, lambda value: 0 < value < float("inf"), "above 0")
share = _number(float, lambda value: 0 <= value < 1, "in [0, 1)")


def existing(text):
    """The path of a file or folder."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file or folder {path.absolute()}")
    return path
