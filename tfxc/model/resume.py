"""A call of ``fit`` that goes on where a backup stands: at its epoch and batch, with what is left of it."""

import contextlib
import warnings

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.training import batches_of_epoch
from tfxc.callbacks import BackupAndRestore
from tfxc.data.batching import in_any_order, row_batches
from tfxc.model.adapted import follow_weights


@contextlib.contextmanager
def resuming(model, arguments):
    """Changes the arguments of ``fit`` so that it goes on from the newest backup.

    Does nothing where no ``BackupAndRestore`` is among the callbacks.

    Args:
        model: the ``ExtremeClassifier``.
        arguments: a dict, the arguments of ``fit``, callbacks as a list; it is changed.

    Raises:
        ValueError: if the model is not built or is under a ``MultiWorkerMirroredStrategy``, the backup is of
            another model, or there are two such callbacks.

    Example:
        >>> with resuming(None, {"callbacks": []}):
        ...     pass
    """
    callbacks = arguments["callbacks"]
    backups = [own for own in callbacks if isinstance(own, BackupAndRestore)]
    if not backups:
        yield
        return
    if len(backups) > 1:
        folders = [str(own.directory) for own in backups]
        raise ValueError(f"A training has only one BackupAndRestore, but these name the folders {folders}.")
    backup = backups[0]
    if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            "BackupAndRestore keeps the training of one process, but under a MultiWorkerMirroredStrategy "
            "several may train the model, and each would go on from a step of its own: take "
            "keras.callbacks.BackupAndRestore, with a folder that all of them see."
        )
    if not model.built:
        raise ValueError(
            "BackupAndRestore needs a built model, and a generator is not read to build one: call the model "
            "on one batch first, or start the encoder with a keras.Input."
        )
    data = _Data(model, arguments)
    # It comes last, so that it sees all that the others did; before it the history, which Keras adds behind.
    callbacks = [own for own in callbacks if own is not backup]
    if not any(isinstance(own, keras.callbacks.History) for own in callbacks):
        callbacks.append(keras.callbacks.History())
    with backup.at_work(model, callbacks, arguments.get("initial_epoch") or 0) as position:
        if position is not None:
            if data.has_nothing_left(position):
                position = backup.begin_next_epoch()
            epochs = arguments.get("epochs") or 1
            backup.check_end(epochs)
            is_finished = position.has_stopped or position.epoch >= epochs
            backup.check_nothing_is_undone(model, is_finished)
            backup.restore_variables()  # now, for what is computed by copies of them
            follow_weights(model)
            arguments["initial_epoch"] = position.epoch
            if position.has_stopped:
                arguments["epochs"] = position.epoch
            data.start_at(position, backup.first_epoch)
            model.first_batch = position.batch
        arguments["callbacks"] = [data, *callbacks, backup]
        try:
            yield
        finally:
            model.first_batch = 0  # a fit that failed before its first epoch has not taken it


class _Data(keras.callbacks.Callback):
    """Gives epoch e of ``fit`` the order e of the data, and to the first epoch what is left of its batches.

    Args:
        model: the model.
        arguments: those of ``fit``. Arrays among them become a dataset in an order that is known.
    """

    def __init__(self, model, arguments):
        super().__init__()
        self._model, self._arguments = model, arguments
        self._num_skipped, self._first_epoch = 0, None
        if _are_arrays(arguments):
            _arrays_to_dataset(arguments)
        dataset = arguments.get("x")
        self._is_dataset = isinstance(dataset, tf.data.Dataset)
        # Without end, it is read once for all epochs.
        self._is_endless = self._is_dataset and dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        self._orders, trouble = _orders(dataset) if self._is_dataset else ([], type(dataset).__name__)
        if not trouble and not self._is_endless and arguments.get("steps_per_epoch") is not None:
            trouble = "steps_per_epoch of a dataset that ends"
        if model.distribute_strategy.num_replicas_in_sync > 1:
            trouble = "several devices read it ahead"
        if trouble:
            warnings.warn(
                f"BackupAndRestore cannot give the data of an epoch a second time ({trouble}): after a kill "
                "training goes on with other batches than it would have had. Give arrays, a pipeline of "
                "tfxc.data (row_batches makes one of any data), or a tf.data.Dataset that is not shuffled, "
                "or by shuffle(..., seed=0, reshuffle_each_iteration=False).",
                stacklevel=5,
            )

    def has_nothing_left(self, position):
        """Whether a position is beyond its epoch's end, or at that of one of an unknown number of batches."""
        dataset = self._arguments["x"]
        if not self._is_dataset or not position.batch:
            return False
        if dataset.cardinality() != tf.data.UNKNOWN_CARDINALITY:  # of larger batches there are fewer
            return not self._is_endless and int(dataset.cardinality()) < position.batch
        return next(iter(dataset.skip(position.batch)), None) is None

    def start_at(self, position, first_epoch):
        """Leaves out the batches before a position; the training began with ``first_epoch``."""
        self._num_skipped, self._first_epoch = position.batch, position.epoch
        if self._is_endless and position.epoch > first_epoch:
            steps = batches_of_epoch(self._model, self._arguments["steps_per_epoch"])
            self._num_skipped += (position.epoch - first_epoch) * steps
        if not self._num_skipped or not self._is_dataset:
            return
        dataset = self._arguments["x"]

        def rest(_):
            number = tf.numpy_function(lambda: np.int64(self._num_skipped), [], tf.int64)
            return dataset.skip(tf.ensure_shape(number, []))

        remaining = tf.data.Dataset.range(1).flat_map(rest)
        remaining.cardinality = dataset.cardinality  # what Keras asks for: of all epochs but the first
        self._arguments["x"] = remaining

    def on_train_begin(self, logs=None):
        self._set_orders(0)

    def on_epoch_begin(self, epoch, logs=None):
        if not self._is_endless:
            self._set_orders(epoch)
        if epoch != self._first_epoch:
            self._num_skipped = 0

    def _set_orders(self, epoch):
        for order in self._orders:
            order.next = epoch


def _are_arrays(arguments):
    """Whether these are arrays and dense or ragged tensors, of one length."""
    leaves = tf.nest.flatten([arguments.get(name) for name in ("x", "y")])
    if arguments.get("sample_weight") is not None:
        leaves.append(arguments["sample_weight"])
    arrays = all(isinstance(leaf, np.ndarray | tf.Tensor | tf.RaggedTensor) for leaf in leaves)
    return arrays and len({leaf.shape[0] for leaf in leaves}) == 1


def _arrays_to_dataset(arguments):
    """Puts into the arguments of ``fit`` a dataset of the batches that Keras would make of their arrays."""
    data = [arguments.pop(name, None) for name in ("x", "y", "sample_weight")]
    # A list of several inputs as a tuple: a dataset takes a list for one tensor.
    data = [tuple(part) if isinstance(part, list) else part for part in data if part is not None]
    data = tuple(tf.nest.map_structure(_tensor, part) for part in data)
    split = arguments.pop("validation_split", 0.0)
    num_rows = int(tf.nest.flatten(data)[0].shape[0])
    if split and arguments.get("validation_data") is None:
        num_rows = int(num_rows * (1 - split))
        arguments["validation_data"] = tf.nest.map_structure(lambda part: part[num_rows:], data)
    batch_size = arguments.pop("batch_size", None) or 32
    if arguments.get("validation_batch_size") is None:
        arguments["validation_batch_size"] = batch_size
    seed = 0 if arguments.pop("shuffle", True) else None

    def batch(rows):
        return tf.nest.map_structure(lambda part: tf.gather(part, rows), data)

    arguments["x"] = row_batches(num_rows, batch_size, batch, seed)
    arguments["shuffle"] = False


def _tensor(array):
    if isinstance(array, np.ndarray) and array.dtype.kind == "f":
        array = array.astype(keras.backend.floatx(), copy=False)  # as Keras does
    with tf.device("CPU:0"):
        return array if tf.is_tensor(array) else tf.convert_to_tensor(array)


def _orders(dataset):
    """The ``EpochOrder``s that a dataset reads; and the name of what in it is in no known order, or None."""
    orders, steps = [], [(dataset, False)]
    while steps:
        step, is_cached = steps.pop()
        if hasattr(step, "epoch_order"):
            if is_cached:  # for good in the order of the first epoch that a process read
                return [], "cache of a shuffled pipeline"
            orders.append(step.epoch_order)
            continue
        trouble = _trouble(step)
        if trouble:
            return [], trouble
        is_cached = is_cached or "Cache" in type(step).__name__
        steps.extend((part, is_cached) for part in step._inputs())
    return orders, None


def _trouble(step):
    """What a step of a dataset does that is not the same each time, as far as can be seen; else None."""
    name = type(step).__name__.strip("_")
    if "Shuffle" in name:
        fixed = not step._reshuffle_each_iteration and (int(step._seed) or int(step._seed2))
        return None if fixed else "shuffle"
    if "Random" in name or "Generator" in name:
        return name
    if in_any_order(step):
        return f"deterministic=False of {name}"
    for function in step._functions():
        for op in function.function.graph.get_operations():
            drawn = "Random" in op.type and "Stateless" not in op.type
            if drawn or "Shuffle" in op.type or op.type in ("PyFunc", "EagerPyFunc", "GeneratorDataset"):
                return f"{op.type} in a function of {name}"
    return None
