"""The way into a sequence encoder: item ids and their vectors."""

from tfxc._keras import keras
from tfxc.arguments import positive_int


def item_vectors(num_classes, max_length, dim, table_dtype):
    """The input "items" [B, T] of class ids + 1, 0 for padding, and its vectors [B, T, D], padding masked.

    The layer is called "item_embedding", so that a head can share its table from row 1 on.

    Raises:
        ValueError: for sizes that are no integers of at least 1, or another dtype.
    """
    if table_dtype not in ("float32", "bfloat16"):
        raise ValueError(f'table_dtype must be "float32" or "bfloat16", but got {table_dtype!r}.')
    rows = positive_int(num_classes, "num_classes") + 1
    items = keras.Input((positive_int(max_length, "max_length"),), dtype="int32", name="items")
    dtype = "bfloat16" if table_dtype == "bfloat16" else None  # None: by Keras's policy
    embed = keras.layers.Embedding(
        rows, positive_int(dim, "dim"), mask_zero=True, name="item_embedding", dtype=dtype
    )
    return items, embed(items)
