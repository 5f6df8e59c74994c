"""Sizes on both sides of every vector and tile of the kernels: 4 to 16 numbers, and 16, 32 or 64."""

import pytest

SIZES = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)
