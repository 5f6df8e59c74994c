"""Code of libraries that a process holds in memory although only its imports ran it."""

import ctypes
import mmap
import sys
from pathlib import Path


def release_code_pages():
    """Gives back every page of compiled code; what runs again is mapped again from the file.

    Importing TensorFlow touches some 200 MB of code, to register ops and kernels, of which a server that
    draws, scores and updates rows runs a small part. What is given back is code as it lies in its files, so
    nothing is lost, and a page that is needed once more costs a page fault. Where the system is not Linux,
    this does nothing.

    Example:
        >>> release_code_pages()
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, access, _, _, _, *file = line.split(maxsplit=5)
        # Code that cannot be written: data beside it, whose addresses were put in on loading, would be lost.
        if access == "r-xp" and file and file[0].startswith("/"):
            start, end = (int(address, 16) for address in addresses.split("-"))
            madvise(start, end - start, mmap.MADV_DONTNEED)
