"""Files of variables in TensorFlow's checkpoint format; each device writes and reads its rows in blocks."""

from typing import NamedTuple

import tensorflow as tf

from tfxc.cluster import placement
from tfxc.cluster.placement import Shard, row_blocks, row_bytes, shards_of


class Table(NamedTuple):
    """A variable as a file stores it: a list of ``Shard`` and the shape of the whole, a tuple."""

    shards: list
    shape: tuple


def whole_tables(variables):
    """The tables that variables are, or are shards of: a list of ``Table``, in the variables' order."""
    # A shard has a weak reference to its table.
    whole = [getattr(own, "_sharded_container", lambda own=own: own)() for own in variables]
    whole = {id(own): own for own in whole}
    return [Table(shards_of(own), tuple(own.shape)) for own in whole.values()]


def write_tables(prefix, tables, others=()):
    """Writes a checkpoint of tables by name; every server writes the rows that it holds, 8 MB at a time.

    The prefix is that of TensorFlow, in a folder that all servers see; more files that begin so stand there
    until the end, and stay if it fails. The checkpoints of the prefixes ``others`` become part of this one.
    """
    parts = [*others]
    for device, pieces in _batches(tables):
        parts.append(f"{prefix}.part-{len(parts):05d}")
        with tf.device(device):
            _write(parts[-1], pieces)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False)


def read_tables(prefix, tables):
    """Reads a checkpoint's tables, of these names and shapes; each server reads the rows that it holds."""
    for device, pieces in _batches(tables):
        with tf.device(device):
            _read(prefix, pieces)


class _Piece(NamedTuple):
    """Rows of a table that lie together: ``num_rows`` rows of a shard's variable, beginning at ``first``."""

    name: str
    shape: tuple
    shard: Shard
    first: int
    num_rows: int

    @property
    def where(self):
        """The slice as TensorFlow's checkpoints write it; "" for a scalar or a table without a row."""
        if not self.shape or not self.shape[0]:
            return ""
        rows = f"{self.shard.start + self.first},{self.num_rows}"
        return " ".join([*map(str, self.shape), ":".join([rows] + ["-"] * (len(self.shape) - 1))])


def _batches(tables):
    """Yields a device and pieces of at most 8 MB on it, for all tables."""
    pieces = {}
    for name, table in tables.items():
        for shard in table.shards:
            pieces.setdefault(shard.device, []).extend(_pieces(name, table, shard))
    for device, own in pieces.items():
        batch, size = [], 0
        for piece in own:
            own_bytes = piece.num_rows * row_bytes(piece.shard.variable)
            if batch and size + own_bytes > placement.BLOCK_BYTES:
                yield device, batch
                batch, size = [], 0
            batch.append(piece)
            size += own_bytes
        yield device, batch


def _pieces(name, table, shard):
    blocks = (row_blocks(shard.variable) or [(0, 0)]) if table.shape else [(0, 1)]
    return [_Piece(name, table.shape, shard, *block) for block in blocks]


def _write(prefix, pieces):
    """Writes pieces on the current device to a file there; returns when they are written."""

    def value(piece):
        if not piece.shape:
            return piece.shard.variable.read_value()
        # A read of the whole table would copy it; a gather does not.
        return tf.gather(piece.shard.variable, tf.range(piece.first, piece.first + piece.num_rows))

    tensors = list(map(value, pieces))
    names, slices = [piece.name for piece in pieces], [piece.where for piece in pieces]
    inputs = tf.constant(prefix), tf.constant(names), tf.constant(slices), tensors
    # Each list of shapes has a trace of its own. TensorFlow would warn of that if it were called directly.
    _save.get_concrete_function(*inputs)(*inputs).numpy()


@tf.function(reduce_retracing=False)
def _save(prefix, names, slices, tensors):
    saved = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors)
    with tf.control_dependencies([saved]):
        return tf.constant(True)


def _read(prefix, pieces):
    """Reads pieces into their variables on the current device, and on all replicas."""
    found = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=[piece.name for piece in pieces],
        shape_and_slices=[piece.where for piece in pieces],
        dtypes=[piece.shard.variable.dtype for piece in pieces],
    )
    for piece, value in zip(pieces, found, strict=True):
        variable = piece.shard.variable
        for copy in getattr(variable, "values", [variable]):  # a mirrored variable takes no rows itself
            if not piece.shape:
                copy.assign(value)
            else:
                rows = tf.range(piece.first, piece.first + piece.num_rows)
                copy.scatter_update(tf.IndexedSlices(value, rows))
