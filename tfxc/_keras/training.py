"""Compiled models: what ``compile``, ``fit`` and ``evaluate`` keep, and which variables a step changes."""

import math

import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import build_optimizer, learning_rate_variable, parts_of, unlisted_variables
from tfxc._keras.weights import layer_and_name, stored_numbers, tf_variable, weights_of

# Under Keras 3 a compiled loss returns a replica's share of the mean over all replicas.
COMPILED_LOSS_IS_A_SHARE = IS_KERAS_3


class Mean(keras.metrics.Mean):
    """Keras's own ``Mean``, of its name in files, which loads in the scope of a ``MirroredStrategy``, too.

    There tf-keras divides what it reads by the number of replicas, which a data set of HDF5 does not support.
    """

    if not IS_KERAS_3:  # Keras 3 keeps no metrics in its files

        def load_own_variables(self, store):
            """tf-keras calls this when it loads a model."""
            super().load_own_variables(stored_numbers(store))


class Directed:
    """Before Keras's class among a metric's bases: tells what a mode of "auto" means, and resets all."""

    higher_is_better = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._direction = "up" if self.higher_is_better else "down"

    def reset_state(self):
        for variable in map(tf_variable, self.variables):
            variable.assign(tf.zeros_like(variable))  # tf-keras resets scalars only


def refuse_callbacks_that_keep_the_lowest(model, callbacks):
    """Raises ValueError for a callback by which tf-keras would keep the epoch of a metric's lowest value."""
    if IS_KERAS_3:
        return
    names = {f"val_{metric.name}" for metric in given_metrics(model) if metric.higher_is_better}
    kinds = keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau, keras.callbacks.ModelCheckpoint
    for callback in callbacks:
        if not isinstance(callback, kinds) or callback.monitor.partition("/")[0] not in names:
            continue
        if getattr(callback, "save_best_only", True) and callback.monitor_op(-math.inf, 0):
            raise ValueError(
                f'{type(callback).__name__}(monitor="{callback.monitor}") would take the lowest value for '
                'the best, as tf-keras does for metrics whose names it does not know. Give it mode="max".'
            )


def refuse_on_replicas(model):
    """Raises ValueError for what several replicas fail at in the first step: TensorFlow or Keras 3 cannot."""
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    num_steps = steps_per_execution(model)
    if IS_KERAS_3 and num_steps > 1:
        raise ValueError(
            f"Keras 3 cannot make {num_steps} training steps at once on several replicas: compile with "
            "steps_per_execution=1."
        )
    in_half = [own for own in model.encoder.trainable_weights if own.dtype == "bfloat16"]
    if in_half:
        raise ValueError(
            f"TensorFlow cannot add up the gradients of several replicas for {layer_and_name(in_half[0])}, "
            'which are of bfloat16: make the table with dtype="float32" and table_dtype="float32".'
        )


def refuse_batch_on_replicas(model, call):
    """Raises ValueError for ``train_on_batch`` or ``predict_on_batch``, as ``call`` says, on replicas."""
    if IS_KERAS_3 and model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Keras 3 gives all of the batch of {call}_on_batch to each of several replicas: call "
            f"{'fit' if call == 'train' else call} with a batch_size."
        )


def is_compiled(model):
    return model.compiled if IS_KERAS_3 else model._is_compiled


def build_slots(model):
    """Makes the slots of a model's optimizer for the weights that ``fit`` trains, if it has none yet."""
    if IS_KERAS_3:
        build_optimizer(model.optimizer, model.trainable_variables)
        return
    # tf-keras trains what was trainable in compile, whatever is frozen since.
    with keras.src.engine.training_utils.RespectCompiledTrainableState(model):
        build_optimizer(model.optimizer, model.trainable_variables)


def forget_validation_data(model):
    """For before ``fit``: tf-keras keeps the validation data of a ``fit`` that was cut off, for the next."""
    if not IS_KERAS_3:
        model._eval_data_handler = None


def forget_compile(model):
    """Marks a model as not compiled, after a ``compile`` that was refused."""
    setattr(model, "compiled" if IS_KERAS_3 else "_is_compiled", False)


def given_metrics(model):
    """The metrics that ``compile`` received, including the weighted ones."""
    holder = model._compile_metrics if IS_KERAS_3 else model.compiled_metrics
    given = [] if holder is None else [holder._user_metrics, holder._user_weighted_metrics]
    return [metric for metric in tf.nest.flatten(given) if metric is not None]


def metrics_not_compiled(model):
    """The metrics that ``compile`` did not receive: those of the model itself and of its layers."""
    compiled = [model._compile_metrics] if IS_KERAS_3 else model.compiled_metrics.metrics
    ids = {id(metric) for metric in compiled}
    return [metric for metric in model.metrics if id(metric) not in ids]


def updated_metrics(model, x, labels, ids, sample_weight):
    """All results by name, with ranked ids added; tf-keras would cast weights to integers, the ids' type."""
    if IS_KERAS_3 or sample_weight is None:
        return model.compute_metrics(x, labels, ids, sample_weight)
    compiled = model.compiled_metrics
    if not compiled.built:
        compiled.build(ids, labels)
    for metrics, weight in ((compiled._metrics, None), (compiled._weighted_metrics, sample_weight)):
        for metric in tf.nest.flatten(metrics):
            if metric is not None:
                metric.update_state(labels, ids, sample_weight=weight)
    return model.get_metrics_result()


def compiled_labels(labels):
    """Labels of a compiled loss or metric, as integers: a strategy has Keras 3 build both on float means."""
    if not IS_KERAS_3 or not tf.is_tensor(labels) or not labels.dtype.is_floating:
        return labels
    with keras.SymbolicScope() as scope:
        return tf.cast(labels, tf.int32) if scope.original_scope is not None else labels


def drop_compiled_metrics(model):
    """Call this before ``compile``: Keras 3 keeps the metrics of the last ``compile`` if it receives none."""
    model._compile_metrics = None  # tf-keras knows no such attribute


def adopt_own_loss_and_metrics(model):
    """For after ``compile``: Keras's loss and trackers get no data; Keras 3 reports built metrics only."""
    if IS_KERAS_3:
        model._compile_loss = None
        model._loss_tracker = None
        if model._compile_metrics is not None:
            ids = tf.zeros([1, 1], tf.int32)
            model._compile_metrics.build(ids, ids)
    else:
        model.compiled_loss = None


if IS_KERAS_3:
    from keras.src.backend.tensorflow.trainer import TFEpochIterator
    from keras.src.trainers import data_adapters

    class EpochsFromBatch(TFEpochIterator):
        """Numbers the batches of the first epoch from ``first_batch`` on; the later epochs are whole."""

        def _enumerate_iterator(self):
            first, self.first_batch = self.first_batch, 0
            return (step for step in super()._enumerate_iterator() if step[0] >= first)


class StartsAtBatch:
    """A model whose ``fit`` begins its first epoch, and the data, at ``first_batch``; the next at 0."""

    first_batch = 0

    def _maybe_symbolic_build(self, iterator=None, **kwargs):
        """Keras 3 calls this with what numbers the batches, before the first of them."""
        if not self.built:  # under a strategy Keras fails there at ragged and sparse labels
            super()._maybe_symbolic_build(iterator=iterator, **kwargs)
        if iterator is not None and self.first_batch:
            iterator.__class__ = EpochsFromBatch  # Keras makes the iterator within fit
            iterator.first_batch, self.first_batch = self.first_batch, 0

    def _maybe_load_initial_counters_from_ckpt(self, steps_per_epoch, initial_epoch):
        """tf-keras calls this to find out at which epoch and batch it begins."""
        first, self.first_batch = self.first_batch, 0
        if first:
            return initial_epoch, first
        return super()._maybe_load_initial_counters_from_ckpt(steps_per_epoch, initial_epoch)


class LogsOfAllReplicas:
    """A model whose steps log ``training_logs()`` alone: Keras 3 would take means of the replicas' logs."""

    def _get_metrics_result_or_logs(self, logs):
        own = self.training_logs() if self.distribute_strategy.num_replicas_in_sync > 1 else {}
        if own and isinstance(logs, dict) and set(logs) == set(own):
            return own
        return super()._get_metrics_result_or_logs(logs)


class LogFreeCallback(keras.callbacks.Callback):
    """A callback that reads no logs, so Keras does not wait for the logs or for the callback."""

    async_safe = True

    def __init__(self):
        super().__init__()  # tf-keras sets the next attribute to False
        self._supports_tf_logs = True


def dataset_of_grain(x):
    """The dataset that Keras 3 makes of a Grain ``MapDataset``, ``IterDataset`` or ``DataLoader``; else x."""
    if IS_KERAS_3 and data_adapters.is_grain_dataset(x):
        return data_adapters.GrainDatasetAdapter(x).get_tf_dataset()
    return x


def steps_per_execution(model):
    """How many training steps a compiled model makes between two reports to its callbacks."""
    if IS_KERAS_3:
        return int(model.steps_per_execution)
    return int(model._steps_per_execution.numpy())  # int() does not take a strategy's variable


def batches_of_epoch(model, steps):
    """How many batches ``fit`` reads of endless data for an epoch: tf-keras shortens the last execution."""
    at_once = steps_per_execution(model) if IS_KERAS_3 else 1
    return math.ceil(steps / at_once) * at_once


def list_of_callbacks(callbacks):
    """The callbacks of ``fit`` as a list: ``fit`` takes None, a callback, a list or a ``CallbackList``."""
    callbacks = getattr(callbacks, "callbacks", callbacks)
    callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
    for own in callbacks:
        if isinstance(own, type) or not hasattr(own, "set_model"):
            raise ValueError(f"callbacks must be objects such as EarlyStopping(), but got {own!r}.")
    return callbacks


def variables_of_training(model):
    """The variables that a step reads or changes: a dict, name -> ``tf.Variable``. Builds the optimizer."""
    build_slots(model)
    optimizers = parts_of(model.optimizer)
    groups = {
        "weight": weights_of(model) + random_states(model),
        "optimizer": [own for each in optimizers for own in each.variables],
        "unlisted": [own for each in optimizers for own in unlisted_variables(each)],
        "learning_rate": [rate for rate in map(learning_rate_variable, optimizers) if rate is not None],
        "loss": [] if not hasattr(model, "loss_tracker") else model.loss_tracker.variables,
    }
    of_loss = {id(variable) for variable in groups["loss"]}
    metrics = [own for metric in metrics_not_compiled(model) for own in metric.variables]
    # Keras lists a metric of a nested layer for each layer around it.
    groups["metric"] = list({id(own): own for own in metrics if id(own) not in of_loss}.values())
    return {
        f"{group} {number}": tf_variable(variable)
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    }


def random_states(model):
    """The states of tf-keras's random layers, which get generators of their own: others' cannot be read."""
    states = []
    for layer in layers_of(model):
        source = None if IS_KERAS_3 else getattr(layer, "_random_generator", None)
        if source is None or source._rng_type == source.RNG_STATELESS:
            continue
        if source._rng_type == source.RNG_LEGACY_STATEFUL:
            source._rng_type, source._built = source.RNG_STATEFUL, False
            model.train_function = None  # it may have been traced
        source._maybe_init()
        states.append(source._generator.state)
    return states


def steps_are_remote(model):
    """Whether the steps run in other processes, where Keras refuses callbacks that look at batches."""
    return model.distribute_strategy._should_use_with_coordinator
