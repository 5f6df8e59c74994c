"""Groups of classes, by which a metric tells its results apart, and numbers of the classes as text."""

import base64
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.arguments import by_class, is_in
from tfxc.ids import PADDING, check_ids, drop_duplicates

_MOST = 1000  # each is a number in the logs of every epoch
_DTYPE = "<i4"


def encoded(numbers):
    """Numbers [L] as text for a config. Few are distinct and compress to a byte or two; a list takes ten."""
    return base64.b64encode(zlib.compress(numbers.tobytes())).decode()


def decoded(text, dtype, what):
    """The numbers [L] of a text; raises ValueError for one that is not of ``encoded``."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"{text[:20]!r}... holds no {what} of every class: {error}") from error


def numbers_of_classes(values, name, interval, remedy, dtype=np.float64):
    """Numbers of the classes as an array [L]; ValueError for another shape, or one outside of an interval."""
    values = by_class([] if values is None else values, name, dtype)
    bad = np.flatnonzero(~is_in(values, interval))
    if values.ndim != 1 or not values.size or len(bad):
        raise ValueError(
            f"{name} must hold a number in {interval} for each class, [L], but are {values} of shape "
            f"{values.shape}{f', outside at class {bad[0]}' if len(bad) else ''}: pass {remedy}."
        )
    return values


class ClassGroups(NamedTuple):
    """Which group each class is in, for ``by=`` of a metric.

    Attributes:
        ids: integers [L], the group of each class; -1 for a class in no group.
        names: the names of the groups, by id.

    Example:
        >>> groups = ClassGroups([0, 0, 1, -1], names=["old", "new"])
        >>> metric = tfxc.metrics.RecallAtK(2, by=groups)
        >>> metric.update_state([0, 2, 3], [[0, 1], [0, 1], [3, 0]])
        >>> for name, value in metric.result().items():
        ...     print(name, round(float(value), 2))
        recall_at_2 0.67
        recall_at_2/old 1.0
        recall_at_2/new 0.0
    """

    ids: np.ndarray | Sequence[int]
    names: Sequence[str]


def class_groups(by) -> ClassGroups:
    """What a metric was given as ``by``, checked: ``ClassGroups``, their config, or a value for each class.

    Raises ValueError for values that are neither integers nor strings, ids without a name, or many groups.
    """
    if isinstance(by, dict) and by.keys() == set(ClassGroups._fields):
        by = ClassGroups(decoded(by["ids"], _DTYPE, "group"), by["names"])
    values = by_class(by.ids if isinstance(by, ClassGroups) else by, "by", None)
    is_text = values.dtype.kind == "U" or all(isinstance(value, str) for value in values.flat)
    if values.ndim != 1 or not values.size or not (is_text or values.dtype.kind in "iu"):
        raise ValueError(
            "by must hold an integer or a string for each class, [L], or be ClassGroups(ids, names), but is "
            f'{values.dtype} of shape {values.shape}: write np.where(is_new, "new", "old") for booleans, and '
            'give classes without a value a name such as "unknown".'
        )
    if isinstance(by, ClassGroups):
        ids, names = values, tuple(map(str, by.names))
    else:
        kinds, ids = np.unique(values, return_inverse=True)
        in_none = 0 if is_text else int(np.sum(kinds < 0))
        ids, names = np.maximum(ids - in_none, PADDING), tuple(map(str, kinds[in_none:]))
    if not len(names) <= _MOST:
        raise ValueError(f"by makes {len(names)} groups, but a metric takes {_MOST} at most: join some.")
    if is_text and isinstance(by, ClassGroups) or ids.max() >= len(names) or len(set(names)) < len(names):
        raise ValueError(
            f"ClassGroups need a name of its own for each id, an integer, but got {ids} and {names}."
        )
    return ClassGroups(ids.astype(_DTYPE), names)


def config_of(groups: ClassGroups) -> dict:
    """What ``class_groups`` reads again: small, and JSON."""
    return {"ids": encoded(np.asarray(groups.ids, _DTYPE)), "names": list(groups.names)}


def groups_after(groups: ClassGroups, old_ids: np.ndarray) -> ClassGroups:
    """The groups of other classes, see ``Head.config_for``. A new class is in no group."""
    return groups._replace(ids=np.where(old_ids >= 0, np.asarray(groups.ids)[old_ids], PADDING))


def of_each_group(labels, groups):
    """For each example and each group among its labels: the example, the group, and the labels in it [M, P].

    Labels are int64 [N, P] as of ``RankingMetric.per_example``; groups int32 [L], -1 for a class in none.
    """
    labels = check_ids(labels, groups.shape[0])
    group = tf.where(labels >= 0, tf.gather(groups, tf.maximum(labels, 0)), PADDING)
    places = tf.where(drop_duplicates(group) >= 0)
    rows, own = places[:, 0], tf.gather_nd(group, places)
    is_own = tf.equal(tf.gather(group, rows), own[:, tf.newaxis])
    labels = tf.sort(tf.where(is_own, tf.gather(labels, rows), PADDING), axis=1)
    return rows, own, tf.cast(labels, tf.int64)
