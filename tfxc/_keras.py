"""The one place that knows which Keras is running.

tfxc follows ``tf.keras``: Keras 3 by default, ``tf_keras`` when the environment
sets ``TF_USE_LEGACY_KERAS=1`` (TensorFlow Recommenders needs that one). Every
other module imports ``keras`` and these helpers from here.
"""

import functools
import os

import numpy as np
import tensorflow as tf

IS_KERAS_3 = os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True")

if IS_KERAS_3:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"tfxc runs on Keras's TensorFlow backend, but Keras is configured for "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before importing keras."
        )
else:
    import tf_keras as keras

# tf-keras takes a path without ".keras" for a folder in TensorFlow's format.
SAVES_TO_FOLDERS = not IS_KERAS_3
# Keras 3 takes from a compiled loss a replica's share of the mean over all; tf-keras divides itself.
COMPILED_LOSS_IS_A_SHARE = IS_KERAS_3
# tf-keras takes cuDNN's recurrent layers only for sequences that these can read.
WITHOUT_CUDNN = {"use_cudnn": False} if IS_KERAS_3 else {}

register = keras.saving.register_keras_serializable(package="tfxc")
unpack_x_y_sample_weight = keras.utils.unpack_x_y_sample_weight


# Keras 3 clips the gradients of each replica, tf-keras their sum.
CLIPS_SUMMED_GRADIENTS = not IS_KERAS_3


def tf_variable(variable):
    """The ``tf.Variable`` behind a weight (Keras 3 wraps it, tf-keras does not)."""
    return variable.value if IS_KERAS_3 and not isinstance(variable, tf.Variable) else variable


def add_weight(layer, name, shape, initializer="zeros", dtype="float32", trainable=True, aggregation="none"):
    """``layer.add_weight`` without autocast, so mixed precision never casts a whole table."""
    if IS_KERAS_3:
        options = {"autocast": False, "aggregation": aggregation}
    else:
        options = {
            "experimental_autocast": False,
            "aggregation": getattr(tf.VariableAggregation, aggregation.upper()),
        }
    return layer.add_weight(
        name=name,
        shape=shape,
        initializer=initializer,
        dtype=dtype,
        trainable=trainable,
        **options,
    )


def constant(value):
    """An initializer that gives this value: variables must be right from the start, not assigned in build."""

    def initializer(shape, dtype=None, partition_shape=None, partition_offset=None):
        if partition_shape is None:
            return tf.broadcast_to(tf.cast(value, dtype), shape)
        whole = np.broadcast_to(value, shape)  # a server makes its rows of a table that is cut into shards
        rows = slice(partition_offset[0], partition_offset[0] + partition_shape[0])
        return tf.cast(whole[rows], dtype)

    return initializer


class Untracked:
    """Holds a layer, or a list of them, that Keras must not count among its holder's own.

    Example:
        >>> layer = keras.layers.Layer()
        >>> layer.other = Untracked(keras.layers.Dense(2))
        >>> type(layer.other.value).__name__, len(layers_of(layer))
        ('Dense', 1)
    """

    def __init__(self, value):
        self.value = value


def layers_of(layer):
    """The layer or model itself and all layers in it, however deep."""
    return list(layer._flatten_layers())


def operations_of(layer):
    """``layers_of``, and the operations that Keras 3 has between the layers of functional models.

    Example:
        >>> inputs = keras.Input((2,))
        >>> len(operations_of(keras.Model(inputs, inputs + 1)))  # the model, its input and the sum
        3
    """
    layers = layers_of(layer)
    parts = [part for own in layers if IS_KERAS_3 for part in getattr(own, "operations", [])]
    return list({id(part): part for part in [*layers, *parts]}.values())


def is_made_of_layers(model):
    """Whether a model is functional or Sequential, so that Keras can make it anew of other layers."""
    functional = keras.src.models.functional if IS_KERAS_3 else keras.src.engine.functional
    return isinstance(model, (functional.Functional, keras.Sequential))


def readers_of(layer):
    """The layers that read a layer's output in a functional or Sequential model; none in a subclassed one.

    Where a model made of layers reads it, those in it that do. In Keras 3 there are operations among them.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.ReLU()])
        >>> [type(reader).__name__ for reader in readers_of(model.layers[0])]
        ['ReLU']
    """
    found = []
    for node in layer._outbound_nodes:
        reader = node.operation if IS_KERAS_3 else node.outbound_layer
        if not is_made_of_layers(reader):
            found.append(reader)
            continue
        given = node.input_tensors if IS_KERAS_3 else node.keras_inputs
        for own, tensor in zip(reader.inputs, given, strict=False):
            if layer_of(tensor) is layer:
                found.extend(readers_of(layer_of(own)))
    return found


def layer_of(tensor):
    """The layer whose output a symbolic tensor is.

    Example:
        >>> layer_of(keras.Input((2,), name="x")).name
        'x'
    """
    return tensor._keras_history[0]


def is_declared_as(inputs, form):
    """Whether a model's input was made with ``keras.Input(..., sparse=True)``, or ``ragged=True``.

    Args:
        inputs: one of ``model.inputs``.
        form: "sparse" or "ragged".

    Example:
        >>> is_declared_as(keras.Input((2,), sparse=True), "sparse")
        True
    """
    if IS_KERAS_3:
        return bool(getattr(inputs, form))
    kind = {"sparse": tf.SparseTensorSpec, "ragged": tf.RaggedTensorSpec}[form]
    return isinstance(inputs.type_spec, kind)


def stored_numbers(store):
    """The arrays of a saved layer; tf-keras saves bfloat16 as mere bytes, which it could not read."""
    if IS_KERAS_3:
        return store
    arrays = {name: np.asarray(store[name]) for name in store}
    half = tf.bfloat16.as_numpy_dtype
    return {name: array.view(half) if array.dtype == "V2" else array for name, array in arrays.items()}


class Mean(keras.metrics.Mean):
    """Keras's own, which is loaded on the replicas of a ``MirroredStrategy``, too.

    There tf-keras divides what it reads by their number, which a data set of a file does not let it do. The
    name is Keras's, for files call a metric by its class.

    Example:
        >>> metric = Mean(name="loss")
        >>> _ = metric.update_state([1.0, 2.0])
        >>> float(metric.result())
        1.5
    """

    if not IS_KERAS_3:  # which keeps no metrics in its files

        def load_own_variables(self, store):
            """tf-keras calls this when it loads a model."""
            super().load_own_variables(stored_numbers(store))


def variables_of(model):
    """The ``tf.Variable`` behind each weight of a model; tf-keras lists vocabularies among the weights."""
    return [tf_variable(weight) for weight in model.weights if hasattr(weight, "shape")]


def is_compiled(model):
    """Whether a model has an optimizer."""
    return model.compiled if IS_KERAS_3 else model._is_compiled


def weights_of(model):
    """The weights of a model as Keras holds them, without the states of its metrics."""
    metrics = [layer for layer in layers_of(model) if isinstance(layer, keras.metrics.Metric)]
    metrics = {metric.name: metric for metric in [*metrics, *model.metrics]}
    of_metrics = {id(variable) for metric in metrics.values() for variable in metric.variables}
    # tf-keras lists vocabularies, too.
    return [own for own in model.variables if id(own) not in of_metrics and hasattr(own, "shape")]


def no_autocast(layer):
    """Has a layer get its inputs as they come, in mixed precision, too.

    Example:
        >>> layer = keras.layers.Dense(1, dtype="mixed_bfloat16")
        >>> no_autocast(layer)
        >>> layer.autocast
        False
    """
    layer.autocast = layer._autocast = False


def scales_loss(optimizer):
    """Whether an optimizer wants a loss that is scaled."""
    is_wrapper = isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    return is_wrapper or bool(getattr(optimizer, "loss_scale_factor", None))


def parts_of(optimizer):
    """An optimizer, and those that a ``MultiOptimizer`` is made of.

    Example:
        >>> len(parts_of(keras.optimizers.SGD()))
        1
    """
    return [optimizer, *getattr(optimizer, "optimizers", [])]


def averages_weights(optimizer):
    """Whether an optimizer, or one that it is made of, ends training by putting averages into the weights."""
    return any(getattr(own, "use_ema", False) for own in parts_of(optimizer))


def metrics_not_compiled(model):
    """The metrics of a model that came in no ``compile``: its own and its layers'."""
    compiled = [model._compile_metrics] if IS_KERAS_3 else model.compiled_metrics.metrics
    ids = {id(metric) for metric in compiled}
    return [metric for metric in model.metrics if id(metric) not in ids]


def updated_metrics(model, x, labels, ids, sample_weight):
    """Updates the compiled metrics with ranked ids; all results, by name.

    tf-keras would turn the weights into integers, the type of the ids.
    """
    if IS_KERAS_3 or sample_weight is None:
        return model.compute_metrics(x, labels, ids, sample_weight)
    compiled = model.compiled_metrics
    if not compiled.built:
        compiled.build(ids, labels)
    for metric in tf.nest.flatten(compiled._metrics):
        if metric is not None:
            metric.update_state(labels, ids)
    for metric in tf.nest.flatten(compiled._weighted_metrics):
        if metric is not None:
            metric.update_state(labels, ids, sample_weight=sample_weight)
    return model.get_metrics_result()


def refuse_keras_3(what):
    """Raises ValueError where Keras 3 runs, which does not train so.

    Args:
        what: does not work, for the error.
    """
    if IS_KERAS_3:
        raise ValueError(
            f"Keras 3 does not train with {what}. Set the environment variable TF_USE_LEGACY_KERAS=1 before "
            "TensorFlow is imported, and install tf_keras; or train by tfxc.head_loss in a loop of your own."
        )


def mask_of(tensor):
    """Which positions of a layer's output count, bool [B, T]; None where all do."""
    return getattr(tensor, "_keras_mask", None)


def layer_and_name(variable):
    """What a weight is called, after its layer; the layers around it are others in a loaded model."""
    return "/".join(getattr(variable, "path", variable.name).split("/")[-2:])


def shape_called_with(layer):
    """The shape of a layer's first input, in the structure in which it came; None before it was called."""
    if IS_KERAS_3:
        return next(iter((getattr(layer, "_build_shapes_dict", None) or {}).values()), None)
    return getattr(layer, "_build_input_shape", None)


def compiled_labels(labels):
    """Labels as a compiled loss or metric gets them, whole numbers again where Keras 3 only builds.

    Under a distribution strategy it first runs loss and metrics on symbols for the mean of the replicas'
    batches, for the shapes alone: there, and only there, integer ids come as floats.
    """
    if not IS_KERAS_3 or not tf.is_tensor(labels) or not labels.dtype.is_floating:
        return labels
    with keras.SymbolicScope() as scope:
        return tf.cast(labels, tf.int32) if scope.original_scope is not None else labels


def drop_compiled_metrics(model):
    """Before ``compile``, which in Keras 3 keeps those of the last time where it is given none."""
    if IS_KERAS_3:
        model._compile_metrics = None


def adopt_own_loss_and_metrics(model):
    """After ``compile``: what a model with its own loss and ranked ids as predictions needs.

    Keras's loss container and its trackers would never get data; and Keras 3 cannot report metrics that
    training does not update unless they are built.
    """
    if IS_KERAS_3:
        model._compile_loss = None
        model._loss_tracker = None
        if model._compile_metrics is not None:
            ids = tf.zeros([1, 1], tf.int32)
            model._compile_metrics.build(ids, ids)
    else:
        model.compiled_loss = None


def start_optimizer(optimizer, learning_rate, name, **options):
    """Runs Keras's constructor; without a learning rate, the optimizer's own property gives it."""
    if IS_KERAS_3:
        rate = (lambda: optimizer.learning_rate) if learning_rate is None else learning_rate
        keras.optimizers.Optimizer.__init__(optimizer, learning_rate=rate, name=name, **options)
        return
    options = {"weight_decay": None, "jit_compile": False, **options}
    keras.optimizers.Optimizer.__init__(optimizer, name=name, **options)
    if learning_rate is not None:
        optimizer._learning_rate = optimizer._build_learning_rate(learning_rate)


def build_optimizer(optimizer, variables):
    """Makes an optimizer's slots, if there are none yet.

    Example:
        >>> optimizer, table = keras.optimizers.SGD(momentum=0.9), tf.Variable([1.0])
        >>> build_optimizer(optimizer, [table])
        >>> variable_index(optimizer, table)
        0
    """
    if not getattr(optimizer, "built" if IS_KERAS_3 else "_built", False):
        optimizer.build(variables)


def unlisted_variables(optimizer):
    """What an optimizer changes in a step and does not list: the product of Nadam in tf-keras, once built."""
    return [optimizer._u_product] if not IS_KERAS_3 and hasattr(optimizer, "_u_product") else []


def variables_of_optimizer(optimizer):
    """Each ``tf.Variable`` of an optimizer and of those it is made of, once; also those it does not list.

    Example:
        >>> optimizer = keras.optimizers.SGD()
        >>> any(own is tf_variable(optimizer.iterations) for own in variables_of_optimizer(optimizer))
        True
    """
    listed = [own for part in parts_of(optimizer) for own in [*part.variables, *unlisted_variables(part)]]
    return list({id(own): own for own in map(tf_variable, listed)}.values())


def steps_variable(optimizer):
    """The ``tf.Variable`` that counts an optimizer's calls.

    Where several batches make one step, Keras 3's ``iterations`` is no variable.

    Example:
        >>> int(steps_variable(keras.optimizers.SGD()))
        0
    """
    return tf_variable(optimizer._iterations)


def places_without_decay(optimizer, variables):
    """Where in a list of weights those stand that an optimizer's weight decay leaves out.

    Example:
        >>> optimizer, table = keras.optimizers.AdamW(), tf.Variable([1.0])
        >>> optimizer.exclude_from_weight_decay([table])
        >>> places_without_decay(optimizer, [tf.Variable([1.0]), table])
        [1]
    """
    decays = [optimizer._use_weight_decay(tf_variable(variable)) for variable in variables]
    return [place for place, is_decayed in enumerate(decays) if not is_decayed]


def learning_rate_variable(optimizer):
    """The ``tf.Variable`` that holds the learning rate; None where it follows a schedule or a function."""
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or not hasattr(rate, "assign"):
        return None
    return tf_variable(rate)


def serialized_learning_rate(optimizer, config):
    """The learning rate as it stands in a config, given that of Keras's base class."""
    if IS_KERAS_3:
        return config["learning_rate"]
    return optimizer._serialize_hyperparameter(optimizer._learning_rate)


def variable_index(optimizer, variable):
    """Where a weight stands among those that an optimizer trains; None if it does not train it."""
    indices = optimizer._trainable_variables_indices if IS_KERAS_3 else getattr(optimizer, "_index_dict", {})
    return indices.get(optimizer._var_key(variable))


def constraint_of(optimizer, index, variable):
    """The constraint of a weight as the model holds it; Keras 3 hands optimizers the bare ``tf.Variable``."""
    return (optimizer._trainable_variables[index] if IS_KERAS_3 else variable).constraint


def add_slot(optimizer, variable, name, shape, initial_value):
    """A new variable of an optimizer, placed beside the weight that it is a slot of; float32 for bfloat16."""
    is_widened = variable.dtype == "bfloat16"
    if not IS_KERAS_3 and is_widened:
        with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
            value = functools.partial(tf.fill, shape, tf.cast(initial_value, tf.float32))
            slot = tf.Variable(value, name=f"{name}/{variable._shared_name}", trainable=False)
        optimizer._variables.append(slot)
        return slot
    if not IS_KERAS_3:
        fill = functools.partial(tf.fill, shape, tf.cast(initial_value, variable.dtype))
        # A function, so that the slot is filled where it lies, which may be another machine.
        return optimizer.add_variable_from_reference(variable, name, initial_value=fill)
    with optimizer._distribution_strategy.extended.colocate_vars_with(tf_variable(variable)):
        return optimizer.add_variable(
            shape=shape,
            initializer=constant(initial_value),  # Keras's own makes a second tensor of the size of the slot
            dtype="float32" if is_widened else variable.dtype,
            name=f"{getattr(variable, 'path', variable.name).replace('/', '_').replace(':', '_')}_{name}",
        )


_ADAM_SLOTS = {"_momentums": "momentum", "_velocities": "velocity", "_velocity_hats": "velocity_hat"}
# The attributes in which Keras's optimizers list their slots, a slot a weight, and what is in them.
_OPTIMIZER_SLOTS = {
    "Adadelta": {"_accumulated_grads": "squared_gradient", "_accumulated_delta_vars": "squared_update"},
    "Adafactor": {"_v": "velocity", "_r": "row_velocity"},  # of matrices it keeps row and column means alone
    "Adagrad": {"_accumulators": "accumulator"},
    "Adam": _ADAM_SLOTS,
    "AdamW": _ADAM_SLOTS,
    "Adamax": {"_m": "momentum", "_u": "norm"},
    "Ftrl": {"_accumulators": "accumulator", "_linears": "linear"},
    "Lamb": {"_momentums": "momentum", "_velocities": "velocity"},
    "Lion": {"_momentums": "momentum", "momentums": "momentum"},
    "Muon": {"momentums": "momentum", "adam_velocities": "velocity"},
    "Nadam": {"_momentums": "momentum", "_velocities": "velocity"},
    "RMSprop": {
        "_velocities": "velocity",
        "_momentums": "momentum",
        "_average_gradients": "average_gradient",
    },
    "SGD": {"momentums": "momentum"},
    "ScheduleFreeAdamW": {"_momentums": "weight", "_velocities": "velocity"},
}
_COMMON_SLOTS = {"_accumulated_gradients": "gradient", "_model_variables_moving_average": "average"}


def keras_slots(optimizer, variable):
    """The slots that one of Keras's optimizers keeps of a weight: a dict, name -> ``tf.Variable``.

    Raises:
        TypeError: for an optimizer that is none of Keras's own.
    """
    if hasattr(optimizer, "inner_optimizer"):  # LossScaleOptimizer
        return keras_slots(optimizer.inner_optimizer, variable)
    names = [name for name in _OPTIMIZER_SLOTS if isinstance(optimizer, _keras_optimizer(name))]
    if not names:
        raise TypeError(
            f"What {type(optimizer).__name__} remembers of a weight is not known. Give it a method "
            "slots_of(variable) that returns a dict, name -> tf.Variable; names are those of "
            "tfxc.optimizers.LazyAdam: momentum, velocity."
        )
    index = variable_index(optimizer, variable)
    if index is None:
        return {}
    slots = {}
    for attribute, name in {**_OPTIMIZER_SLOTS[names[-1]], **_COMMON_SLOTS}.items():
        every = getattr(optimizer, attribute, None)
        if every and every[index] is not None:
            slots[name] = tf_variable(every[index])
    return slots


def _keras_optimizer(name):
    return getattr(keras.optimizers, name, ())  # tf-keras lacks some; isinstance(x, ()) is False


class StartsAtBatch:
    """A model whose ``fit`` begins its first epoch at ``first_batch``, a number that is taken once.

    Of the data it expects the remaining batches only. To stand before ``keras.Model`` among the bases.
    """

    first_batch = 0

    def _maybe_symbolic_build(self, iterator=None, **kwargs):
        """Keras 3 calls this with what numbers the batches, before the first of them."""
        super()._maybe_symbolic_build(iterator=iterator, **kwargs)
        first, self.first_batch = self.first_batch, 0
        if iterator is None or not first:
            return
        numbered = iterator._enumerate_iterator

        def remaining():
            iterator._enumerate_iterator = numbered  # the next epochs are whole
            return (step for step in numbered() if step[0] >= first)

        iterator._enumerate_iterator = remaining

    def _maybe_load_initial_counters_from_ckpt(self, steps_per_epoch, initial_epoch):
        """tf-keras asks here at which epoch and batch it begins."""
        first, self.first_batch = self.first_batch, 0
        if first:
            return initial_epoch, first
        return super()._maybe_load_initial_counters_from_ckpt(steps_per_epoch, initial_epoch)


class LogFreeCallback(keras.callbacks.Callback):
    """A callback that reads no logs: Keras need not wait for them, nor for what the callback does.

    Example:
        >>> LogFreeCallback().on_train_batch_end(0, {"loss": tf.constant(1.0)})
    """

    async_safe = True

    def __init__(self):
        super().__init__()  # sets it to False in tf-keras
        self._supports_tf_logs = True


def steps_per_execution(model):
    """How many training steps a compiled model makes from one report to its callbacks to the next."""
    if IS_KERAS_3:
        return int(model.steps_per_execution)
    return int(model._steps_per_execution.numpy())  # of a strategy's variable, int() would not do


def list_of_callbacks(callbacks):
    """What ``fit`` takes as callbacks, None, one, a list of them or a ``CallbackList``, as a list."""
    callbacks = getattr(callbacks, "callbacks", callbacks)
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []


def variables_of_training(model):
    """What a training step reads or changes: a dict, name -> ``tf.Variable``. The optimizer gets built.

    Weights, an optimizer's slots and counters, states of random layers, and the metrics that are there from
    the start; those of a compiled model belong to an evaluation.
    """
    build_optimizer(model.optimizer, model.trainable_variables)
    optimizers = parts_of(model.optimizer)
    groups = {
        "weight": weights_of(model) + _random_states(model),
        "optimizer": [own for each in optimizers for own in each.variables],
        "unlisted": [own for each in optimizers for own in unlisted_variables(each)],
        "learning_rate": [rate for rate in map(learning_rate_variable, optimizers) if rate is not None],
        "loss": [] if not hasattr(model, "loss_tracker") else model.loss_tracker.variables,
    }
    return {
        f"{group} {number}": tf_variable(variable)
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    }


def _random_states(model):
    """The states of tf-keras's random layers; Keras 3 counts them among a model's variables.

    By default tf-keras draws by ops that keep their state where nobody can read it: then the layers get
    generators of their own.
    """
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
