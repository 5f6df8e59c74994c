"""Which weights have a row for each class: what a layer answers when the classes change."""

from typing import Any, NamedTuple

# What fills the row of a new class.
BY_RULE = "rule"  # the user's rule: a class vector
BY_MEAN = "mean"  # the mean of the classes that stay, or of similar ones
AS_BUILT = "built"  # what the layer was built with


class ClassRows(NamedTuple):
    """A weight with a row for each class, as ``class_rows()`` of a layer lists them.

    Args:
        weight: the weight [rows, ...], as Keras holds it; at least ``row_offset`` + L rows. Rows outside
            those of the classes (of padding, say) stay what they are.
        row_offset: the row of class 0.
        filled: what fills the row of a new class: "rule", the ``new_rows`` of ``change_classes``; "mean", the
            mean of the classes that stay, or of similar ones; "built", what the layer was built with.

    Example:
        >>> head = tfxc.layers.DenseHead(5, use_bias=True)
        >>> head.build((None, 2))
        >>> [(rows.weight.shape[0], rows.row_offset, rows.filled) for rows in head.class_rows()]
        [(5, 0, 'rule'), (5, 0, 'mean')]
    """

    weight: Any
    row_offset: int = 0
    filled: str = AS_BUILT
