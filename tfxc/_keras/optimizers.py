"""Optimizers: how they are made and built, and what they keep of a weight."""

import functools

import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import constant, tf_variable

# Keras 3 clips the gradients of each replica, tf-keras their sum.
CLIPS_SUMMED_GRADIENTS = not IS_KERAS_3


def scales_loss(optimizer):
    """Whether an optimizer wants a loss that is scaled."""
    is_wrapper = isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    return is_wrapper or bool(getattr(optimizer, "loss_scale_factor", None))


def inner_optimizer(optimizer):
    """The optimizer within a ``LossScaleOptimizer``; any other is itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


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
    optimizer = inner_optimizer(optimizer)
    return tf_variable(optimizer._iterations if IS_KERAS_3 else optimizer.iterations)


def places_without_decay(optimizer, variables):
    """Where in a list of weights those stand that an optimizer's weight decay leaves out."""
    decays = [optimizer._use_weight_decay(tf_variable(variable)) for variable in variables]
    return [place for place, is_decayed in enumerate(decays) if not is_decayed]


def learning_rate_variable(optimizer):
    """The ``tf.Variable`` that holds the learning rate; None where it follows a schedule or a function."""
    rate = getattr(optimizer, "_learning_rate", None)
    if schedule_of(optimizer) is not None or not hasattr(rate, "assign"):
        return None
    return tf_variable(rate)


def schedule_of(optimizer):
    """The ``LearningRateSchedule`` of an optimizer, or None.

    Example:
        >>> type(schedule_of(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 5)))).__name__
        'CosineDecay'
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None


def serialized_learning_rate(optimizer, config):
    """The learning rate as it stands in a config, given that of Keras's base class."""
    if IS_KERAS_3:
        return config["learning_rate"]
    return optimizer._serialize_hyperparameter(optimizer._learning_rate)


def variable_index(optimizer, variable):
    """Where a weight stands among those that an optimizer trains; None if it does not train it."""
    optimizer = inner_optimizer(optimizer)
    indices = optimizer._trainable_variables_indices if IS_KERAS_3 else getattr(optimizer, "_index_dict", {})
    return indices.get(optimizer._var_key(variable))


def part_of(optimizer, variable):
    """The part of a ``MultiOptimizer`` that trains a weight, else its first; any other optimizer itself."""
    optimizer = inner_optimizer(optimizer)
    parts = getattr(optimizer, "optimizers", [])
    training = [part for part in parts if variable_index(part, variable) is not None]
    return [*training, *parts, optimizer][0]


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
