"""Weights with a row for each class: what a layer answers when the classes change."""

from typing import Any, NamedTuple

BY_RULE, BY_MEAN, AS_BUILT = "rule", "mean", "built"  # what fills the row of a new class, see ``ClassRows``


class ClassRows(NamedTuple):
    """A weight with a row for each class, as ``class_rows()`` of a layer lists them.

    Args:
        weight: the weight [rows, ...], as Keras holds it, of at least ``row_offset`` + L rows. Rows of no
            class (of padding, say) stay as they are.
        row_offset: the row of class 0.
        filled: what fills the row of a new class. "rule": the ``new_rows`` of ``change_classes``. "mean": the
            mean of the classes that stay, or of similar classes. "built": the values that the layer was built
            with.

    Example:
        >>> head = tfxc.layers.DenseHead(5, use_bias=True)
        >>> head.build((None, 2))
        >>> [(rows.weight.shape[0], rows.row_offset, rows.filled) for rows in head.class_rows()]
        [(5, 0, 'rule'), (5, 0, 'mean')]
    """

    weight: Any
    row_offset: int = 0
    filled: str = AS_BUILT
