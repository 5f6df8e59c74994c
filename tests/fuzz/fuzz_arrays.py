"""Arrays from a seed: numbers of every kind, ids at both ends and outside, gradients that are mostly zero."""

import numpy as np
import tensorflow as tf

NUMBERS = ("normal", "small", "large", "grid", "non-finite")
GRADIENTS = ("dense", "mostly zero", "one", "zero")


class Arrays:
    def __init__(self, seed):
        self.seed = seed
        self.random = np.random.default_rng(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, choices):
        return choices[self.random.integers(len(choices))]

    def numbers(self, shape, kind="normal"):
        """float32; a grid has few values, so that sums of them are exact and many are equal."""
        values = self.random.normal(size=shape)
        if kind == "small":
            values *= 1e-3
        elif kind == "large":
            values *= 30.0
        elif kind == "grid":
            values = np.round(values)
        elif kind == "non-finite" and values.size:
            where = self.random.integers(values.size, size=self.random.integers(1, 3))
            values.reshape(-1)[where] = self.random.choice([np.nan, np.inf, -np.inf], size=len(where))
        return values.astype(np.float32)

    def table(self, numbers):
        """A variable of the numbers, one time in three of bfloat16, and the numbers float32 that it holds."""
        if np.random.default_rng([self.seed, 1]).random() > 1 / 3:
            return tf.Variable(numbers), numbers
        half = tf.cast(numbers, tf.bfloat16)
        return tf.Variable(half), tf.cast(half, tf.float32).numpy()

    def gradient(self, shape, kind):
        values = self.numbers(shape)
        keep = np.ones(values.shape, bool)
        if kind == "mostly zero":
            keep = self.random.random(values.shape) < 0.05
        elif kind != "dense":
            keep[...] = False
            if kind == "one" and keep.size:
                keep.reshape(-1)[self.random.integers(keep.size)] = True
        return np.where(keep, values, np.float32(0.0))

    def ids(self, shape, limit, low=0):
        """int32 in [low, limit): all over it, at both ends, or a few again and again."""
        if limit <= low:
            return np.full(shape, low if low < 0 else 0, np.int32)
        kind = self.random.integers(4)
        if kind == 0:
            return self.random.choice([low, limit - 1], size=shape).astype(np.int32)
        if kind == 1:
            few = self.random.integers(low, limit, size=3)
            return self.random.choice(few, size=shape).astype(np.int32)
        return self.random.integers(low, limit, size=shape).astype(np.int32)

    def spoil(self, ids, low, limit):
        """The ids with one outside [low, limit); None if there is none to spoil."""
        if not ids.size:
            return None
        ids = ids.copy()
        info = np.iinfo(ids.dtype)
        bad = [low - 1, limit, info.max, info.min]
        ids.reshape(-1)[self.random.integers(ids.size)] = self.pick([one for one in bad if one <= info.max])
        return ids

    def tensor(self, array):
        """The array as a tensor of its own, or cut out of a larger one."""
        array = np.asarray(array)
        if array.ndim == 0 or self.chance(0.7):
            return tf.constant(array)
        around = tf.constant(np.concatenate([np.ones_like(array[:1]), array, np.ones_like(array[:1])]))
        start = min(len(array), 1)
        return around[start : start + len(array)]

    def seeds(self):
        """A seed of draws, int64 [2]."""
        return tf.constant(self.random.integers(-(2**63), 2**63, size=2))


def misshapen(tensors, axes):
    """The tensors, one of them with an axis more, with none at all, or longer along one of its own axes."""
    for at, (one, of_one) in enumerate(zip(map(tf.convert_to_tensor, tensors), axes, strict=True)):
        longer = (tf.pad(one, [[0, int(i == axis)] for i in range(one.shape.rank)]) for axis in of_one)
        for changed in (one[tf.newaxis], tf.zeros([], one.dtype), *longer):
            yield *tensors[:at], changed, *tensors[at + 1 :]


def unit_rows(table, normalize):
    """The rows float64, of length 1 if they are normalized, with their lengths and which are too short."""
    rows = table.astype(np.float64)
    norm = np.sqrt((rows**2).sum(1)) if normalize else np.ones(len(rows))
    return rows / np.maximum(norm, 1e-12)[:, np.newaxis], norm, norm <= 1e-12


def agree(got, want, tolerance, what, not_hidden=True):
    """Finite numbers must be within the tolerance; others must not be hidden by finite ones.

    With ``not_hidden=False`` they may: in a gradient a factor 0 need not have met what is not finite.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    # Beyond float32 it may be infinite.
    with np.errstate(invalid="ignore"):
        wrong = (np.abs(want) < 1e37) & ~(np.abs(got - want) <= tolerance)
    if not_hidden:
        wrong |= ~np.isfinite(want) & np.isfinite(got)
    if wrong.any():
        where = tuple(index[0] for index in np.nonzero(wrong))
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} differ, the first at {where}: "
            f"{got[where]} instead of {want[where]}"
        )
