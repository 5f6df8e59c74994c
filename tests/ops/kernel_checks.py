import functools

import pytest

from tfxc.ops import library

# Both sides of every vector and tile of the kernels: 4 to 16 numbers, and 16, 32 or 64.
SIZES = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)


def without_kernel(function):
    @functools.wraps(function)
    def stock(*args, **options):
        with library.stock_ops():
            return function(*args, **options)

    return stock


def both_ways(*functions):
    """What a test of an op is parametrized with: its functions by the kernel, and the same without it."""
    return [
        pytest.param(*functions, marks=pytest.mark.kernels, id="compiled"),
        pytest.param(*map(without_kernel, functions), id="stock"),
    ]
