"""What the C library keeps of the memory that a process frees, for its next blocks."""

import ctypes
import os
import sys

# As in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE_BLOCK, _NUM_ARENAS = 4 << 20, 2


def return_large_blocks():
    """Has glibc give back what is free from 4 MB on, and keep the rest in two places.

    For a process that is to stay small: else every thread has a place of its own, and free memory in each.
    Where there is no glibc, or the environment says how malloc is to be tuned, this does nothing.
    """
    _tune({_MMAP_THRESHOLD: _LARGE_BLOCK, _TRIM_THRESHOLD: _LARGE_BLOCK, _ARENA_MAX: _NUM_ARENAS})


def _tune(limits):
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if tuned or "malloc" in os.environ.get("GLIBC_TUNABLES", "") or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        for limit, value in limits.items():
            mallopt(limit, value)
