"""One attribute of the classes: the values that a user gives, as a table, and what requests want of it."""

import re
import warnings

import numpy as np
import tensorflow as tf

from tfxc.arguments import by_class, refuse_masked
from tfxc.ids import fitting_int32
from tfxc.infinity import infinity_is_meant

# What a code is where it is none of a value: wanted but of no class, padding of a request, of a class.
_UNKNOWN, _PADDING, _EMPTY = -1, -2, -3
_MOST_VALUES = 64  # of a class: each class takes room for as many as the class with most
_NAME = re.compile(r"[A-Za-z0-9_]+")
_BUCKETS = 2**63 - 1
_MOST_KINDS = 256  # of classes that a cell counts apart
_PADDING_OF = {tf.string: "", tf.int32: -1, tf.float32: float("nan")}
_WANTED = "strings, integers, booleans or floats, one for each class, or ragged or padded lists of the former"


class Part(tf.Module):
    """One attribute: a variable ``table`` [L, W] with a row for each class, and ``names`` that requests use.

    A subclass tells what a request's tensors mean (``wanted``), which of its rows want anything
    (``restricts``, bool [n, 1]) and which rows of the table, [m, S, W], pass (``passes``, bool [N, S]); and
    into which kinds it divides classes, for an index to count them (``kinds``, ``kinds_wanted``).
    """

    def __init__(self, name, table, dtype, names):
        super().__init__(f"where_{name}")  # a name that TensorFlow takes: no digit first
        self.attribute = name
        self.table = tf.Variable(table, trainable=False)
        self.dtype = dtype
        self.names = names

    def is_empty_like(self, other):
        """Whether no class has a value here, and the other attribute is of lists, too."""
        return type(self) is type(other) is Values and not (self.table.numpy() != _EMPTY).any()

    def require_classes(self, num_classes, of_whom):
        """Raises ValueError for a number of classes that is not the table's."""
        if self.table.shape[0] != num_classes:
            raise ValueError(
                f"The attribute {self.attribute!r} has values of {self.table.shape[0]} classes, but "
                f"{of_whom} {num_classes}."
            )


class Values(Part):
    """Values to be met: ``keys`` int64 [U], ascending, and for each class places among them, [L, W].

    The keys of strings are fingerprints of 63 bits: among a million strings two are alike in one case of ten
    million.
    """

    def __init__(self, name, keys, codes, dtype):
        super().__init__(name, codes, dtype, [f"where_{name}"])
        self.keys = tf.Variable(keys, trainable=False)
        self.num_kinds = min(len(keys), _MOST_KINDS)

    @classmethod
    def fitted(cls, name, keys, codes, dtype):
        """The values of codes [L, W], with the keys and bits that they need, and no more."""
        is_used = np.zeros(len(keys), bool)
        is_used[codes[codes >= 0]] = True
        keys, codes = keys[is_used], _moved(codes, (np.cumsum(is_used) - 1).astype(codes.dtype))
        codes = codes.astype(np.min_scalar_type(-max(len(keys), -_EMPTY)))
        return cls(name, keys if len(keys) else np.int64([-1]), codes, dtype)

    def arranged(self, ids):
        return Values.fitted(self.attribute, self.keys.numpy(), self.table.numpy()[ids], self.dtype)

    def joined(self, more):
        keys, tables = np.union1d(self.keys.numpy(), more.keys.numpy()), []
        width = max(self.table.shape[1], more.table.shape[1])
        for part in (self, more):
            codes = _moved(part.table.numpy(), np.searchsorted(keys, part.keys.numpy()))
            tables.append(np.pad(codes, [[0, 0], [0, width - codes.shape[1]]], constant_values=_EMPTY))
        return Values.fitted(self.attribute, keys, np.concatenate(tables), self.dtype)

    def kinds(self, codes):
        """The kinds int32 of codes, -1 for none."""
        return tf.where(codes >= 0, tf.cast(codes, tf.int32) % self.num_kinds, -1)

    def kinds_wanted(self, codes):
        """The first and the last kind of each [n, V] that passing classes have."""
        return self.kinds(codes), self.kinds(codes)

    def wanted(self, values):
        """Codes [n, V + 1], ascending in each row, of values [n, V]."""
        keys, (key, is_padding) = tf.convert_to_tensor(self.keys), _keys(values)
        # tf.searchsorted fails in a graph that knows that there are no values.
        code = tf.raw_ops.LowerBound(sorted_inputs=keys[tf.newaxis], values=tf.reshape(key, [1, -1]))
        code = tf.reshape(tf.minimum(code, tf.size(keys) - 1), tf.shape(key))
        code = tf.where(is_padding, _PADDING, tf.where(tf.gather(keys, code) == key, code, _UNKNOWN))
        # One code at least: TensorFlow searches in no empty row.
        return (tf.sort(tf.pad(code, [[0, 0], [1, 0]], constant_values=_PADDING), axis=1),)

    def restricts(self, codes):
        return tf.reduce_any(codes != _PADDING, 1, keepdims=True)

    def passes(self, own, codes):
        num_rows = tf.maximum(tf.shape(own)[0], tf.shape(codes)[0])
        flat, restricts = tf.reshape(own, [tf.shape(own)[0], -1]), self.restricts(codes)
        codes = tf.cast(codes, flat.dtype)

        def among_many():
            values = tf.broadcast_to(flat, [num_rows, tf.shape(flat)[1]])
            several = tf.broadcast_to(codes, [num_rows, tf.shape(codes)[1]])
            # A value is met if more are not above it than are below it.
            bounds = tf.raw_ops.UpperBound, tf.raw_ops.LowerBound
            not_above, below = (bound(sorted_inputs=several, values=values) for bound in bounds)
            return not_above > below

        # Beside the padding there is often one.
        met = tf.cond(tf.shape(codes)[1] > 2, among_many, lambda: flat == codes[:, -1:])
        if own.shape[2] > 1:
            met = tf.reduce_any(tf.reshape(met, [num_rows, -1, own.shape[2]]), 2)
        return met | ~restricts


class Numbers(Part):
    """Numbers [L, 1] within limits."""

    def __init__(self, name, numbers):
        super().__init__(name, numbers, tf.float32, [f"where_{name}_min", f"where_{name}_max"])
        shares = np.linspace(0, 1, _MOST_KINDS + 1)[1:-1]
        bounds = np.unique(np.quantile(numbers, shares, method="lower")) if len(numbers) else numbers[:, 0]
        self.bounds, self.num_kinds = tf.Variable(bounds, trainable=False), len(bounds) + 1

    def arranged(self, ids):
        return Numbers(self.attribute, self.table.numpy()[ids])

    def joined(self, more):
        return Numbers(self.attribute, np.concatenate([self.table.numpy(), more.table.numpy()]))

    def kinds(self, numbers):
        kinds = tf.searchsorted(self.bounds, tf.reshape(numbers, [-1]), side="right")
        return tf.reshape(kinds, tf.shape(numbers))

    def kinds_wanted(self, least, most):
        return self.kinds(least), self.kinds(most)

    @infinity_is_meant()
    def wanted(self, least, most):
        """Limits [n, 1] each; infinite where there is none."""
        least = tf.where(tf.math.is_nan(least), float("-inf"), least)
        most = tf.where(tf.math.is_nan(most), float("inf"), most)
        return tf.reduce_max(least, 1, keepdims=True), tf.reduce_min(most, 1, keepdims=True)

    def restricts(self, least, most):
        return (least > float("-inf")) | (most < float("inf"))

    def passes(self, own, least, most):
        own = tf.squeeze(own, 2)
        return (own >= least) & (own <= most)


def part_of(name, values):
    """The attribute of a name and the values that a user gives; ValueError as of ``Attributes``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            "Requests use the name of an attribute, where_<name>, so it holds ASCII letters, digits and "
            f"underscores, but one is {name!r}."
        )
    what = f"The values of the attribute {name!r}"
    values, num_values = _flat(values, what)
    if values.dtype == tf.float32 and num_values is None:
        bad = np.flatnonzero(np.isnan(values))
        if bad.size:
            raise ValueError(
                f"{what} hold NaN for class {bad[0]}: give it a number, such as inf, which passes no "
                f"where_{name}_max."
            )
        return Numbers(name, values.numpy()[:, np.newaxis])
    if values.dtype == tf.float32:
        raise ValueError(f"{what} must be {_WANTED}, but are several floats for each class.")
    if num_values is None:
        num_values = np.ones(len(values), np.int64)
    most = max(num_values.max(initial=0), 1)
    if most > _MOST_VALUES:
        raise ValueError(
            f"{what} are {most} for class {num_values.argmax()}, but each class takes room for as many: give "
            f"at most {_MOST_VALUES}."
        )
    keys, is_padding = (part.numpy() for part in _keys(values))
    vocabulary, code = np.unique(keys[~is_padding], return_inverse=True)
    codes = np.full(len(keys), _EMPTY, np.min_scalar_type(-max(len(vocabulary), -_EMPTY)))
    codes[~is_padding] = code
    table = np.full([len(num_values), most], _EMPTY, codes.dtype)
    table[np.arange(most) < num_values[:, np.newaxis]] = codes
    return Values(name, vocabulary if len(vocabulary) else np.int64([-1]), table, values.dtype)


def _flat(values, what):
    """Values as a flat tensor, of strings, int32 or float32; and None, or how many are of each class, [L]."""
    num_values, of_classes = None, []
    try:
        if isinstance(values, tf.RaggedTensor) and values.shape.rank == 2:
            values, num_values = values.flat_values, values.row_lengths().numpy()
        values = tf.convert_to_tensor(values).numpy() if tf.is_tensor(values) else values
        refuse_masked(values, "values")
        values = by_class(values, "values", None) if hasattr(values, "iloc") else values
        # Of Polars and Arrow, whose lists are no lists of Python.
        to_list = getattr(values, "to_list", None) or getattr(values, "to_pylist", None)
        of_classes = values = values if to_list is None else to_list()
        if any(isinstance(own, list | tuple | np.ndarray) for own in values):
            if any(isinstance(own, str | bytes) for own in values):
                raise ValueError("got single strings among lists.")
            num_values = np.array([len(own) for own in values])
            values = [value for own in values for value in own] or tf.zeros([0], tf.string)
        given, values = values, tf.convert_to_tensor(values)
        if values.dtype.is_integer:
            values = fitting_int32(values.numpy(), what)
        if values.dtype.is_floating:
            _warn_of_rounded(np.asarray(given, np.float64), what)
        values = _typed(values)
        if values.shape.rank != 1 or values.dtype not in _PADDING_OF:
            raise ValueError(f"got {values.dtype.name} {values.shape}.")
    except (TypeError, ValueError, tf.errors.OpError) as error:
        is_list = isinstance(of_classes, list) or getattr(of_classes, "ndim", 0)
        missing = [place for place, own in enumerate(of_classes if is_list else []) if _is_missing(own)]
        why = f'class {missing[0]} has none: give it "", -1 or a number' if missing else error
        raise ValueError(f"{what} must be {_WANTED}: {why}") from error
    return values, num_values


def _is_missing(value):
    # pandas.NA cannot be compared. It is known by its type, as pandas need not be installed.
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _warn_of_rounded(values, what):
    """Warns of whole numbers float64, such as times in seconds, that float32 rounds."""
    with np.errstate(all="ignore"):
        rounded = np.flatnonzero((values % 1 == 0) & (values.astype(np.float32) != values))
    if rounded.size:
        warnings.warn(
            f"{what} are kept as float32, which rounds {values.flat[rounded[0]]:.0f}, so that limits are not "
            "met exactly: count from a later start, or in larger units.",
            stacklevel=6,
        )


def rows_of(given, name, dtype):
    """What a request gives by a name as a tensor [N, V] of the attribute's type; ValueError for another."""
    padding = _PADDING_OF[dtype]
    try:
        if isinstance(given, tf.RaggedTensor):  # not every type has the padding
            given = given.with_flat_values(_typed(given.flat_values, dtype)).to_tensor(padding)
        rows = fitting_int32(given, name) if dtype == tf.int32 else tf.convert_to_tensor(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be {dtype.name} [N, V], padded with {padding!r}: {error}") from error
    if rows.shape.num_elements() == 0:  # empty lists have no type of their own
        rows = tf.zeros(rows.shape, dtype)
    rows = _typed(rows, dtype)  # an integer beyond int32 is a limit, too
    if rows.dtype != dtype or rows.shape.rank not in (2, None):
        raise ValueError(
            f"{name} must be {dtype.name} [N, V], a row for each query, or one for all of them, but is "
            f"{rows.dtype.name} {rows.shape}: write a single row as [[...]]."
        )
    return rows


def read_rows(table, rows, width):
    """The rows [n, S * width, W] of a table [P, W], by blocks of so many of them, int32 [n, S]."""
    num_values = table.shape[1]
    blocks = tf.reshape(tf.convert_to_tensor(table), [-1, width * num_values])
    return tf.reshape(tf.gather(blocks, rows), [tf.shape(rows)[0], width * tf.shape(rows)[1], num_values])


def _moved(codes, places):
    """Codes of keys at other places; those of no key stay."""
    return np.where(codes >= 0, places[np.maximum(codes, 0)], codes) if len(places) else codes


def _typed(values, dtype=None):
    """A tensor with integers and booleans as int32, floats as float32; and integers, if that is wanted."""
    if values.dtype.is_floating or (dtype == tf.float32 and values.dtype.is_integer):
        return tf.cast(values, tf.float32)
    if values.dtype.is_bool:
        return tf.cast(values, tf.int32)
    return tf.saturate_cast(values, tf.int32) if values.dtype.is_integer else values


def _keys(values):
    """The keys int64 of values of int32 or strings, and which of these are padding."""
    is_padding = values == _PADDING_OF[values.dtype]
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, _BUCKETS), is_padding
    return tf.cast(values, tf.int64), is_padding
