"""What a fuzzer is: a strategy that draws small cases, and a check that makes a few calls of each.

A case holds sizes, choices and a seed; arrays are filled by NumPy from the seed, so that a call costs about a
millisecond and a case is a line of JSON. Every call is counted, and must either succeed or be refused.
"""

import contextlib
import json
import os
import resource
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfxc.ops import library

# How often each op and reader was called in this process.
CALLS: Counter = Counter()
TARGETS: dict = {}
# A process that may crash leaves here the case that it was at.
_CASE_FILE = os.environ.get("TFXC_FUZZ_CASE_FILE")
_REFUSALS = (tf.errors.InvalidArgumentError, ValueError)

SEEDS = st.integers(0, 2**32 - 1)
# 0, 1 and both sides of every vector and tile; most are small, for problems are products of several sizes.
SIZES = st.sampled_from(
    [0, *[1] * 3, *[2, 3, 5, 7] * 2, *[8, 9, 15, 16, 17] * 2, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129]
)
# Numbers that no size comes near; 2^24 is the most draws of one query.
HUGE = st.sampled_from(
    [2**24 + 1, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**40, 2**61, 2**62 - 1, 2**62, 2**63 - 2, 2**63 - 1]
)


class Target(NamedTuple):
    strategy: st.SearchStrategy
    check: object

    def run(self, case):
        if _CASE_FILE:
            Path(_CASE_FILE + ".new").write_text(json.dumps([self.check.__name__, case]))
            os.replace(_CASE_FILE + ".new", _CASE_FILE)  # whole, whenever the process ends
        self.check(**case)

    def run_with_neighbours(self, case, count):
        """The same sizes and choices with several seeds: drawing a case takes as long as some calls."""
        for more in range(count):
            self.run(dict(case, seed=(case["seed"] + more) % 2**32))


@contextlib.contextmanager
def limited_memory(most=6 << 30):
    """Allocations of so many bytes more than are in use fail, and do not take the machine with them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fuzz(**drawn):
    def register(check):
        TARGETS[check.__name__] = Target(st.fixed_dictionaries(drawn), check)
        return check

    return register


def counted(function):
    """The name of an op or a function, whose calls are counted by it."""
    name = getattr(function, "func", function).__name__
    CALLS[name] += 1
    return name


def in_stock_ops(function):
    stock = library.stock_ops()(function)
    stock.__name__ += " in stock ops"
    return stock


def call(function, *args, **kwargs):
    op = counted(function)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise AssertionError(f"{op} refuses what it must take: {error}") from error


def refused(function, *args, **kwargs):
    """A call that must be refused, with a reason."""
    op = counted(function)
    try:
        result = function(*args, **kwargs)
    except _REFUSALS as error:
        assert len(str(error)) > 20, f"{op} gives no reason: {error!r}"
    except Exception as error:
        wanted = "InvalidArgumentError or ValueError"
        raise AssertionError(f"{op} must refuse with {wanted}: {error!r}") from error
    else:
        raise AssertionError(f"{op} takes what it must refuse, and gives {result!r:.300}")


def attempt(valid, function, *args, **kwargs):
    return (call if valid else refused)(function, *args, **kwargs)


def check_if_drawn(least, num_classes, draw, *args, **kwargs):
    """A draw from what is broken is refused or, if it meets nothing broken, gives ids in [least, L)."""
    counted(draw)
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        ids, log_prob, *_ = draw(*args, **kwargs)
        assert ((ids >= least) & (ids < num_classes)).numpy().all() and np.isfinite(log_prob).all()
