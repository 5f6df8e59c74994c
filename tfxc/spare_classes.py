"""Spare classes: the last ones of a head, which a ``GrowingVocabulary`` has not named yet. None ranks."""

import tensorflow as tf

from tfxc._keras.layers import Untracked
from tfxc.ids import PADDING


def spare_from(head, num_given):
    """Makes the classes of a head from ``num_given`` on, an int32 variable that training moves, spare."""
    head._num_given = Untracked(num_given)


def num_given_of(head):
    """The variable of ``spare_from``; None for a head without spare classes."""
    return head._num_given.value if hasattr(head, "_num_given") else None


def require_no_spare(head):
    """Raises ValueError for a head with spare classes, which an index would rank."""
    num_given = num_given_of(head)
    if num_given is not None and num_given < head.num_classes:
        raise ValueError(
            f"Only {int(num_given)} of {head.num_classes} classes have names, and an index would "
            "rank the others, too: build it once all have, or do without."
        )


def without_spare(head, passes=None, restricts=None):
    """What ``tfxc.search.attributes.passing`` gives of a request, without spare classes."""
    num_given = num_given_of(head)
    if num_given is None:
        return passes, restricts
    own = lambda ids: ids < num_given  # noqa: E731
    if passes is None:
        return own, num_given < head.num_classes
    return lambda ids: own(ids) & passes(ids), restricts | (num_given < head.num_classes)


def spare_as_empty(head, ids):
    """Class ids that a sampler drew, with an empty slot for each spare class, which keeps estimates right."""
    num_given = num_given_of(head)
    return ids if num_given is None else tf.where(ids < num_given, ids, PADDING)
