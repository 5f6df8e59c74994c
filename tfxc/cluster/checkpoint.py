"""Checkpoints of a training on several machines: written by the servers, in blocks, whatever the shards."""

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tfxc._keras import learning_rate_variable, tf_variable, weights_of
from tfxc.ops.remote import Shard, shards_of, whole_of
from tfxc.optimizers.slots import slots_of

_NAME = "epoch-{:06d}"
_PATTERN = re.compile(r"epoch-\d{6}")
_VARIABLES = "variables"
_NUM_KEPT = 2
_BLOCK_BYTES = 1 << 26


class Checkpoint:
    """Weights, slots and counters of a model, kept in a folder, a checkpoint an epoch; the last two stay.

    Every server writes and reads the rows it holds, 64 MB at a time, so nothing of the size of a table
    travels or is copied. A checkpoint takes its name when it is whole: a kill leaves the one before it. It is
    one in TensorFlow's format, in which tables are whole: it loads into any number of shards, and into a
    model on one machine. (Under the same Keras, with the same layers.)

    Args:
        model: a built model; where it is compiled, with its optimizer's slots.
        folder: a folder that the coordinator and all servers see under the same name.

    Raises:
        ValueError: for a model that is not built; from ``restore`` if the checkpoint is of another model.

    Example:
        >>> import tempfile
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(encoder, head=tfxc.layers.DenseHead(1000))
        >>> checkpoint = Checkpoint(model, tempfile.mkdtemp())
        >>> checkpoint.restore()
        0
        >>> checkpoint.save(3)
        >>> checkpoint.restore()
        3
    """

    def __init__(self, model, folder):
        if not model.built:
            raise ValueError("The model is not built: start its encoder with a keras.Input.")
        self._model = model
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, epoch):
        """Writes the checkpoint of a number of epochs, at least 0, and removes all but the last two."""
        path = self.folder / _NAME.format(epoch)
        aside = path.with_suffix(".writing")
        for left in self.folder.glob("*.writing"):
            shutil.rmtree(left)
        aside.mkdir()
        prefixes = []
        for device, pieces in _batches(_tables(self._model)):
            prefixes.append(str(aside / f"part-{len(prefixes):05d}"))
            with tf.device(device):
                _write(prefixes[-1], pieces)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=str(aside / _VARIABLES), delete_old_dirs=False
        )
        shutil.rmtree(path, ignore_errors=True)
        os.rename(aside, path)
        for old in self._paths()[:-_NUM_KEPT]:
            shutil.rmtree(old)

    def restore(self):
        """Loads the newest checkpoint; returns its number of epochs, 0 where there is none."""
        paths = self._paths()
        if not paths:
            return 0
        prefix, tables = str(paths[-1] / _VARIABLES), _tables(self._model)
        saved = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
        wanted = {name: list(table.shape) for name, table in tables.items()}
        differ = sorted(name for name in saved.keys() | wanted if saved.get(name) != wanted.get(name))
        if differ:
            first = differ[0]
            raise ValueError(
                f"The checkpoint {paths[-1]} is of another model: {len(differ)} of its variables differ, "
                f"the first being {first!r}, of shape {saved.get(first)} there and {wanted.get(first)} here "
                "(None: missing). Build and compile the model as it was, under the same Keras."
            )
        for device, pieces in _batches(tables):
            with tf.device(device):
                _read(prefix, pieces)
        return int(paths[-1].name.removeprefix("epoch-"))

    def _paths(self):
        return sorted(path for path in self.folder.iterdir() if _PATTERN.fullmatch(path.name))


class _Table(NamedTuple):
    """A variable as a checkpoint knows it: whole, whatever shards it lies in."""

    shards: list
    shape: tuple


class _Piece(NamedTuple):
    """Rows of a table that lie together: ``num_rows`` of a shard's variable, from row ``first`` of it on."""

    name: str
    shape: tuple
    shard: Shard
    first: int
    num_rows: int

    @property
    def where(self):
        """As TensorFlow's checkpoints write a slice; "" for all of a scalar."""
        if not self.shape:
            return ""
        rows = f"{self.shard.start + self.first},{self.num_rows}"
        return " ".join([*map(str, self.shape), ":".join([rows] + ["-"] * (len(self.shape) - 1))])


def _tables(model):
    """What a model trains with, by names that do not depend on shards."""
    weights = _whole_tables([tf_variable(weight) for weight in weights_of(model)])
    tables = {f"weight {number}": table for number, table in enumerate(weights)}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return tables
    optimizer.build(model.trainable_variables)
    known = set()
    for name, table in list(tables.items()):
        slots = [slots_of(optimizer, shard.variable) for shard in table.shards]
        for kind in slots[0]:
            own = [slot[kind] for slot in slots]
            known.update(map(id, own))
            shards = [Shard(shard.start, slot) for shard, slot in zip(table.shards, own, strict=True)]
            tables[f"{name} {kind}"] = _Table(shards, (table.shape[0], *own[0].shape[1:]))
    rate = learning_rate_variable(optimizer)
    others = [tf_variable(variable) for variable in optimizer.variables] + ([] if rate is None else [rate])
    others = [table for table in _whole_tables(others) if id(table.shards[0].variable) not in known]
    tables.update({f"optimizer {number}": table for number, table in enumerate(others)})
    return tables


def _whole_tables(variables):
    """The tables that variables are, or are shards of."""
    whole = {id(own): own for own in map(whole_of, variables)}
    return [_Table(shards_of(own) or [Shard(0, own)], tuple(own.shape)) for own in whole.values()]


def _batches(tables):
    """(device, pieces of at most 64 MB that lie there) of all tables."""
    pieces = {}
    for name, table in tables.items():
        for shard in table.shards:
            pieces.setdefault(shard.device, []).extend(_pieces(name, table, shard))
    for device, own in pieces.items():
        batch, size = [], 0
        for piece in own:
            if batch and size + _size(piece) > _BLOCK_BYTES:
                yield device, batch
                batch, size = [], 0
            batch.append(piece)
            size += _size(piece)
        yield device, batch


def _pieces(name, table, shard):
    if not table.shape:
        return [_Piece(name, table.shape, shard, 0, 1)]
    num_rows = shard.variable.shape[0]
    row_bytes = max(shard.variable.shape[1:].num_elements(), 1) * shard.variable.dtype.size
    block = max(_BLOCK_BYTES // row_bytes, 1)
    return [
        _Piece(name, table.shape, shard, first, min(block, num_rows - first))
        for first in range(0, num_rows, block)
    ]


def _size(piece):
    return (
        piece.num_rows
        * max(piece.shard.variable.shape[1:].num_elements(), 1)
        * (piece.shard.variable.dtype.size)
    )


def _write(prefix, pieces):
    """Writes pieces that lie on the current device to a file of it; returns when they are there."""
    tensors = [_value(piece) for piece in pieces]
    names, slices = [piece.name for piece in pieces], [piece.where for piece in pieces]
    _save(tf.constant(prefix), tf.constant(names), tf.constant(slices), tensors).numpy()


@tf.function(reduce_retracing=False)
def _save(prefix, names, slices, tensors):
    saved = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors)
    with tf.control_dependencies([saved]):
        return tf.constant(True)


def _value(piece):
    # By gather: to read a table whole copies it.
    if not piece.shape:
        return piece.shard.variable.read_value()
    return tf.gather(piece.shard.variable, tf.range(piece.first, piece.first + piece.num_rows))


def _read(prefix, pieces):
    """Reads the pieces on the current device into their variables there."""
    found = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=[piece.name for piece in pieces],
        shape_and_slices=[piece.where for piece in pieces],
        dtypes=[piece.shard.variable.dtype for piece in pieces],
    )
    for piece, value in zip(pieces, found, strict=True):
        if not piece.shape:
            piece.shard.variable.assign(value)
        else:
            rows = tf.range(piece.first, piece.first + piece.num_rows)
            piece.shard.variable.scatter_update(tf.IndexedSlices(value, rows))
