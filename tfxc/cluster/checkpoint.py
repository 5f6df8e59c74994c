"""Checkpoints of a training on several machines, which the servers write in blocks, whatever the shards."""

import os
import re
import shutil
import warnings
from pathlib import Path

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import learning_rate_variable, parts_of, variables_of_optimizer
from tfxc._keras.training import build_slots
from tfxc._keras.weights import tf_variable, weights_of
from tfxc.arguments import local_path, positive_int
from tfxc.atomic_write import REPLACED, WRITING, put_in_place, recover
from tfxc.checked_file import DamagedFile, read_arrays, write_arrays
from tfxc.cluster.placement import Shard
from tfxc.cluster.sharded_sampler import derived_weights, follow_saved
from tfxc.cluster.table_files import Table, read_tables, whole_tables, write_tables
from tfxc.layers.adapted import follow_weights
from tfxc.layers.class_cache import expire_class_vectors
from tfxc.optimizers.slots import slots_of
from tfxc.resume.state import digest_of
from tfxc.samplers import Sampler

_NAME, _PATTERN = "epoch-{:06d}", re.compile(r"epoch-(\d{6,})")
_VARIABLES, _NOTES = "variables", "notes"
_NUM_KEPT = 2
_OF_TENSORFLOW = tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError
_DAMAGES = DamagedFile, FileNotFoundError, *_OF_TENSORFLOW


class Checkpoint:
    """Keeps weights, slots and counters of a model in a folder, a checkpoint an epoch; the last two stay.

    Every server writes and reads the rows that it holds, 8 MB at a time. A checkpoint takes its name when it
    is whole: a kill leaves the one before it. It has TensorFlow's format, in which tables are whole: under
    the same Keras it loads into the same layers in any number of shards, and on one machine. It does not hold
    what layers have adapted to, such as vocabularies: adapt the layers alike before.

    Args:
        model: a built model; if it is compiled, the checkpoint has its optimizer's slots.
        directory: a folder that the coordinator and all servers see under the same name.

    Raises:
        ValueError: for a model that is not built or was given to ``change_classes``, or a path of other
            storage; from ``save`` for a number that is not whole, or below that of a checkpoint in the
            folder; from ``restore`` if the checkpoint is of another model or of other class names, or
            (``DamagedFile``) if no checkpoint in the folder can be read.

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

    def __init__(self, model: keras.Model, directory: str | os.PathLike[str]) -> None:
        if not model.built:
            raise ValueError("The model is not built: start its encoder with a keras.Input.")
        _require_weights(model)
        self._model = model
        self._class_names = digest_of(getattr(model, "class_names", None))
        self.directory = Path(local_path(directory))
        self.directory.mkdir(parents=True, exist_ok=True)

    def save(self, epoch: int) -> None:
        """Writes the checkpoint of a number of epochs, at least 0, and removes all but the last two."""
        _require_weights(self._model)
        path = self.directory / _NAME.format(positive_int(epoch, "epoch", least=0))
        newest = self._paths()[-1:]
        if newest and _epoch(newest[0]) > epoch:
            raise ValueError(
                f"{self.directory} holds the checkpoint of epoch {_epoch(newest[0])}, beside which one of "
                f"epoch {epoch} would count as old. Call restore() first, or name another folder."
            )
        for left in self.directory.glob(f"{WRITING}epoch-*"):  # by a kill
            shutil.rmtree(left)
        aside = self.directory / (WRITING + path.name)
        aside.mkdir()
        write_tables(str(aside / _VARIABLES), _tables(self._model))
        write_arrays(aside / _NOTES, {}, {"class_names": self._class_names})
        put_in_place(aside, path)
        for old in self._paths()[:-_NUM_KEPT]:
            shutil.rmtree(old)

    def restore(self) -> int:
        """Loads the newest checkpoint that is whole; returns its number of epochs, 0 in an empty folder.

        A warning names a damaged one, which is renamed ``.damaged`` if an earlier one is whole.
        """
        _require_weights(self._model)
        damaged, tables = [], _tables(self._model)
        for path in reversed(self._paths()):
            try:
                self._check(path, tables)
                read_tables(str(path / _VARIABLES), tables)
            except _DAMAGES as error:
                damaged.append(path)
                warnings.warn(f"{path} is cut short or damaged: {error}", stacklevel=2)
                continue
            for unread in damaged:  # else it would count as newer than the next ones
                shutil.rmtree(unread.with_suffix(".damaged"), ignore_errors=True)  # of an earlier time
                unread.rename(unread.with_suffix(".damaged"))
            for layer in layers_of(self._model):
                if isinstance(layer, Sampler):
                    follow_saved(layer)
            expire_class_vectors(self._model)
            follow_weights(self._model)
            return _epoch(path)
        if damaged:
            names = ", ".join(path.name for path in damaged)
            raise DamagedFile(
                f"No checkpoint in {self.directory} could be read: {names}. The model may hold parts of "
                "them: build it anew. Check that every server sees the folder."
            )
        return 0

    def _check(self, path, tables):
        try:
            reader = tf.train.load_checkpoint(str(path / _VARIABLES))
        except (tf.errors.OpError, ValueError) as error:  # about this machine's file, not from a server
            raise DamagedFile(str(error)) from error
        saved = reader.get_variable_to_shape_map()
        wanted = {name: list(table.shape) for name, table in tables.items()}
        differ = sorted(name for name in saved.keys() | wanted if saved.get(name) != wanted.get(name))
        if differ:
            first = differ[0]
            raise ValueError(
                f"The checkpoint {path} is of another model: {len(differ)} of its variables differ. "
                f"{first!r} has shape {saved.get(first)} in the file and {wanted.get(first)} in the model "
                "(None: missing). Build and compile the model as it was, under the same Keras."
            )
        names = read_arrays(path / _NOTES)[1]["class_names"]  # None for a model without names
        if None not in (names, self._class_names) and names != self._class_names:
            raise ValueError(
                f"The checkpoint {path} is of another model: with other class names, or in another order. "
                "Restore it into a model with its names for change_classes, or name another folder."
            )

    def _paths(self):
        """The checkpoints, the newest last, also one whose name a kill has left to nothing."""
        for replaced in self.directory.glob(f"{REPLACED}epoch-*"):
            recover(replaced.with_name(replaced.name.removeprefix(REPLACED)))
        return sorted((own for own in self.directory.iterdir() if _PATTERN.fullmatch(own.name)), key=_epoch)


def _epoch(path):
    return int(_PATTERN.fullmatch(path.name)[1])


def _require_weights(model):
    """Raises ValueError for a model that ``change_classes`` has consumed: it refuses to show its weights."""
    _ = model.weights


def _tables(model):
    """All that a model trains with, by names that do not depend on shards."""
    samplers = [layer for layer in layers_of(model) if isinstance(layer, Sampler)]
    derived = {id(own) for sampler in samplers for own in derived_weights(sampler)}
    weights = [own for own in map(tf_variable, weights_of(model)) if id(own) not in derived]
    tables = {f"weight {number}": table for number, table in enumerate(whole_tables(weights))}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return tables
    with model.distribute_strategy.scope():  # slots lie where the weights do
        build_slots(model)
    known = set()
    for name, table in list(tables.items()):
        slots = [slots_of(optimizer, shard.variable) for shard in table.shards]
        for kind in slots[0]:
            own = [slot[kind] for slot in slots]
            if [slot.shape[:1] for slot in own] != [shard.variable.shape[:1] for shard in table.shards]:
                continue  # a slot without rows is among the optimizer's other variables
            known.update(map(id, own))
            shards = [Shard(shard.start, slot) for shard, slot in zip(table.shards, own, strict=True)]
            tables[f"{name} {kind}"] = Table(shards, (*table.shape[:1], *own[0].shape[1:]))
    rates = map(learning_rate_variable, parts_of(optimizer))
    others = variables_of_optimizer(optimizer) + [rate for rate in rates if rate is not None]
    others = [table for table in whole_tables(others) if id(table.shards[0].variable) not in known]
    tables.update({f"optimizer {number}": table for number, table in enumerate(others)})
    return tables
