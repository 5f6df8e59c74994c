"""The data of a training that goes on: each epoch has the same batches as before, the first what is left."""

import warnings

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.training import batches_of_epoch, dataset_of_grain
from tfxc.data.batching import WithCardinality, in_any_order, row_batches


class TrainingData(keras.callbacks.Callback):
    """Gives epoch e of ``fit`` the order e of the data, also of arrays, and the first what is left of it."""

    def __init__(self, model, arguments):
        super().__init__()
        self._model, self._arguments = model, arguments
        self._num_skipped, self._first_epoch = 0, None
        if _are_arrays(arguments):
            _arrays_to_dataset(arguments)
        given = arguments.get("x")
        dataset = dataset_of_grain(given)  # which reads the same batches in each epoch
        self._is_dataset = isinstance(dataset, tf.data.Dataset)
        # A dataset without end is read once for all epochs.
        self._is_endless = self._is_dataset and dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        if dataset is given:
            self._orders, trouble = _orders(given) if self._is_dataset else ([], type(given).__name__)
        else:
            self._orders, trouble = [], None
            arguments |= {"x": dataset, "shuffle": False}
        if not self._is_endless and arguments.get("steps_per_epoch") is not None:
            trouble = "steps_per_epoch of a dataset that ends; if it does not, say so by "
            trouble += "tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)"
        if model.distribute_strategy.num_replicas_in_sync > 1:
            trouble = "several devices read it ahead"
        if trouble:
            warnings.warn(
                f"BackupAndRestore cannot give the data of an epoch a second time ({trouble}): after a kill "
                "training goes on with other batches, unless yours come the same each time. Give arrays, a "
                "pipeline of tfxc.data (row_batches makes one of any data), or a tf.data.Dataset that is not "
                "shuffled, or by shuffle(..., seed=0, reshuffle_each_iteration=False).",
                stacklevel=8,
            )

    def has_nothing_left(self, position):
        """Whether a position is beyond its epoch's end, or at the end of an epoch of unknown length."""
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
        if self._num_skipped and self._is_dataset:
            self._arguments["x"] = _remaining(self._arguments["x"], lambda: np.int64(self._num_skipped))

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


def _remaining(dataset, num_skipped):
    """A dataset without its first batches: how many, a function says whenever an epoch begins."""

    def rest(_):
        number = tf.numpy_function(num_skipped, [], tf.int64)
        return dataset.skip(tf.ensure_shape(number, []))

    return WithCardinality(tf.data.Dataset.range(1).flat_map(rest), dataset)


def _are_arrays(arguments):
    """Whether these are arrays and dense or ragged tensors, of one length."""
    weights = arguments.get("sample_weight")
    leaves = tf.nest.flatten([arguments.get("x"), arguments.get("y"), () if weights is None else weights])
    arrays = all(isinstance(leaf, np.ndarray | tf.Tensor | tf.RaggedTensor) for leaf in leaves)
    return arrays and len({leaf.shape[0] for leaf in leaves}) == 1


def _arrays_to_dataset(arguments):
    """Puts into the arguments of ``fit`` a dataset of the batches that Keras would make of their arrays."""
    data = [arguments.pop(name, None) for name in ("x", "y", "sample_weight")]
    # A dataset takes a list for one tensor, so a list of several inputs becomes a tuple.
    data = [tuple(part) if isinstance(part, list) else part for part in data if part is not None]
    data = tuple(tf.nest.map_structure(_tensor, part) for part in data)
    split = arguments.pop("validation_split", 0.0)
    num_rows = int(tf.nest.flatten(data)[0].shape[0])
    if split and arguments.get("validation_data") is None:
        num_rows = int(num_rows * (1 - split))
        arguments["validation_data"] = tf.nest.map_structure(lambda part: part[num_rows:], data)
    batch_size = arguments.pop("batch_size", None) or 32
    arguments["validation_batch_size"] = arguments.get("validation_batch_size") or batch_size
    seed = 0 if arguments.pop("shuffle", True) else None

    def batch(rows):
        return tf.nest.map_structure(lambda part: tf.gather(part, rows), data)

    arguments |= {"x": row_batches(num_rows, batch_size, batch, seed), "shuffle": False}


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
            if is_cached:  # it keeps the order of the first epoch that a process reads
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
    """What in a step of a dataset differs each time it is read, as far as can be seen; else None."""
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
