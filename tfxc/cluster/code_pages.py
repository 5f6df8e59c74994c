"""Pages of libraries that a process holds in memory although only its imports read them."""

import ctypes
import mmap
import re
import sys
from pathlib import Path

# A mapping of a file that cannot be written, and how much of it is no longer as in the file: addresses that
# were put in on loading are not in there, and would be lost.
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r-.p .* /.*\n(?:\w+:.*\n)*?Anonymous: +0 kB$", re.MULTILINE)


def release_code_pages():
    """Gives back every page of code and constants of libraries; what is needed again comes from the file.

    Importing TensorFlow reads some 300 MB of them, to register ops and kernels, of which a server that draws,
    scores and updates rows needs a small part. Nothing is lost, and a page that is needed once more costs a
    page fault. Where the system is not Linux, this does nothing.

    Example:
        >>> release_code_pages()
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for start, end in _MAPPING.findall(Path("/proc/self/smaps").read_text(encoding="utf-8")):
        madvise(int(start, 16), int(end, 16) - int(start, 16), mmap.MADV_DONTNEED)
