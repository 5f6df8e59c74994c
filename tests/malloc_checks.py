"""What glibc gives back to the system; page faults would tell too, but not alike on every kernel."""

import ctypes
import sys

import pytest

C = ctypes.CDLL(None)
BLOCK = 8 << 20

needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(C, "mallinfo2"), reason="needs glibc 2.33"
)


class MallocInfo(ctypes.Structure):
    """As in malloc.h: what glibc took of the system, in numbers of blocks and in bytes."""

    _fields_ = [
        *[(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")],
        *[(name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")],
    ]


def held_bytes():
    C.mallinfo2.restype = MallocInfo
    info = C.mallinfo2()
    return info.arena + info.hblkhd


def returned_bytes():
    """What goes back to the system when a large block is freed that came from there.

    Whatever the limits are, glibc takes a block out of what is free first: that is used up before.
    """
    C.malloc.restype, C.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    C.free.argtypes = [ctypes.c_void_p]
    blocks, before = [], held_bytes()
    while held_bytes() < before + BLOCK:
        blocks.append(C.malloc(BLOCK))
    held = held_bytes()
    C.free(blocks.pop())
    returned = held - held_bytes()
    for block in blocks:
        C.free(block)
    return returned


def return_all_at_once():
    """As TensorFlow does when data come from a generator, where glibc has not adjusted its limits yet."""
    for limit in (-1, -3):
        C.mallopt(limit, 128 << 10)
