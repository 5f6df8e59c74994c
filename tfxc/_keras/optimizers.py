"""Optimizers: how they are made and built, and which variables they keep for a weight."""

from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import constant, tf_variable

# Keras 3 clips the gradients of each replica, tf-keras their sum.
CLIPS_SUMMED_GRADIENTS = not IS_KERAS_3
ACCUMULATES_GRADIENTS = IS_KERAS_3


def scales_loss(optimizer):
    is_wrapper = isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    return is_wrapper or bool(getattr(optimizer, "loss_scale_factor", None))


def inner_optimizer(optimizer):
    """The optimizer within a ``LossScaleOptimizer``; any other is itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def parts_of(optimizer):
    """An optimizer and, for a ``MultiOptimizer``, its parts."""
    return [optimizer, *getattr(optimizer, "optimizers", [])]


def is_of_strategy(optimizer, strategy):
    """Whether an optimizer was made in the scope of a strategy, which tf-keras's own do not need."""
    return all(
        type(part).__module__.startswith("tf_keras.")
        or getattr(part, "_distribution_strategy", strategy) is strategy
        for part in parts_of(optimizer)
    )


def averages_weights(optimizer):
    """Whether an optimizer, or a part of it, replaces the weights by their averages when training ends."""
    return any(getattr(own, "use_ema", False) for own in parts_of(optimizer))


def start_optimizer(optimizer, learning_rate, name, **options):
    """Runs Keras's constructor. If ``learning_rate`` is None, the optimizer's own property gives the rate."""
    if IS_KERAS_3:
        rate = (lambda: optimizer.learning_rate) if learning_rate is None else learning_rate
        keras.optimizers.Optimizer.__init__(optimizer, learning_rate=rate, name=name, **options)
        return
    options = {"weight_decay": None, "jit_compile": False, **options}
    keras.optimizers.Optimizer.__init__(optimizer, name=name, **options)
    if callable(learning_rate) and not isinstance(
        learning_rate, keras.optimizers.schedules.LearningRateSchedule
    ):
        raise ValueError("tf-keras calls a learning rate once only: give a LearningRateSchedule or a number.")
    if learning_rate is not None:
        optimizer._learning_rate = optimizer._build_learning_rate(learning_rate)


def build_optimizer(optimizer, variables):
    """Makes the slots of an optimizer that has none yet."""
    if not getattr(optimizer, "built" if IS_KERAS_3 else "_built", False):
        optimizer.build(variables)


def unlisted_variables(optimizer):
    """Variables that a step changes and the optimizer does not list: Nadam's momentum product in tf-keras."""
    return [optimizer._u_product] if not IS_KERAS_3 and hasattr(optimizer, "_u_product") else []


def variables_of_optimizer(optimizer):
    """Every ``tf.Variable`` of an optimizer and its parts, each once, also those that it does not list."""
    listed = [own for part in parts_of(optimizer) for own in [*part.variables, *unlisted_variables(part)]]
    return list({id(own): own for own in map(tf_variable, listed)}.values())


def steps_variable(optimizer):
    """The ``tf.Variable`` that counts an optimizer's calls, also where Keras 3 accumulates gradients."""
    optimizer = inner_optimizer(optimizer)
    return tf_variable(optimizer._iterations)


def places_without_decay(optimizer, variables):
    """The indices of the weights in a list that an optimizer's weight decay leaves out."""
    decays = [optimizer._use_weight_decay(tf_variable(variable)) for variable in variables]
    return [place for place, is_decayed in enumerate(decays) if not is_decayed]


def learning_rate_variable(optimizer):
    """The ``tf.Variable`` that holds the learning rate; None if a schedule or a function gives the rate."""
    rate = getattr(optimizer, "_learning_rate", None)
    if schedule_of(optimizer) is not None or not hasattr(rate, "assign"):
        return None
    return tf_variable(rate)


def schedule_of(optimizer):
    """The ``LearningRateSchedule`` of an optimizer, or None."""
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None


def serialized_learning_rate(optimizer, config):
    """The learning rate as a config holds it, given the config of Keras's base class."""
    if IS_KERAS_3:
        return config["learning_rate"]
    return optimizer._serialize_hyperparameter(optimizer._learning_rate)


def variable_index(optimizer, variable):
    """The index of a weight among those that an optimizer trains; None if the optimizer does not train it."""
    optimizer = inner_optimizer(optimizer)
    indices = optimizer._trainable_variables_indices if IS_KERAS_3 else getattr(optimizer, "_index_dict", {})
    return indices.get(optimizer._var_key(variable))


def part_of(optimizer, variable):
    """The part of a ``MultiOptimizer`` that trains a weight, or its first; any other optimizer is itself."""
    optimizer = inner_optimizer(optimizer)
    parts = getattr(optimizer, "optimizers", [])
    training = [part for part in parts if variable_index(part, variable) is not None]
    return [*training, *parts, optimizer][0]


def constraint_of(optimizer, index, variable):
    """The constraint of a weight. Keras 3 hands optimizers the bare ``tf.Variable``, which has none."""
    return (optimizer._trainable_variables[index] if IS_KERAS_3 else variable).constraint


def add_slot(optimizer, variable, name, shape, initial_value, dtype=None):
    """A new slot of a weight, on its device, in its dtype unless given, or in float32 for bfloat16."""
    dtype = dtype or ("float32" if variable.dtype == "bfloat16" else variable.dtype)
    with optimizer._distribution_strategy.extended.colocate_vars_with(tf_variable(variable)):
        return optimizer.add_variable(
            shape=shape,
            initializer=constant(initial_value),  # Keras's own makes a second tensor of that size
            dtype=dtype,
            name=f"{getattr(variable, 'path', variable.name).replace('/', '_').replace(':', '_')}_{name}",
        )


_ADAM_SLOTS = {"_momentums": "momentum", "_velocities": "velocity", "_velocity_hats": "velocity_hat"}
# The attributes in which Keras's optimizers list their slots, one for each weight, and what a slot holds.
_OPTIMIZER_SLOTS = {
    "Adadelta": {"_accumulated_grads": "squared_gradient", "_accumulated_delta_vars": "squared_update"},
    "Adafactor": {"_v": "velocity", "_r": "row_velocity"},  # of matrices it keeps row and column means alone
    "Adagrad": {"_accumulators": "accumulator"},
    **dict.fromkeys(("Adam", "AdamW", "Lamb", "Nadam"), _ADAM_SLOTS),
    "Adamax": {"_m": "momentum", "_u": "norm"},
    "Ftrl": {"_accumulators": "accumulator", "_linears": "linear"},
    "Lion": {"_momentums": "momentum", "momentums": "momentum"},
    "Muon": {"momentums": "momentum", "adam_velocities": "velocity"},
    "RMSprop": {**_ADAM_SLOTS, "_average_gradients": "average_gradient"},
    "SGD": {"momentums": "momentum"},
    "ScheduleFreeAdamW": {"_momentums": "weight", "_velocities": "velocity"},
}
_COMMON_SLOTS = {"_accumulated_gradients": "gradient", "_model_variables_moving_average": "average"}


def keras_slots(optimizer, variable):
    """The slots that a Keras optimizer keeps for a weight: name -> ``tf.Variable``; TypeError for others."""
    # tf-keras lacks some of them, and nothing is an instance of ().
    names = [name for name in _OPTIMIZER_SLOTS if isinstance(optimizer, getattr(keras.optimizers, name, ()))]
    if not names:
        raise TypeError(
            f"tfxc does not know which variables {type(optimizer).__name__} keeps for a weight: give it a "
            "method slots_of(variable) that returns a dict, name -> tf.Variable, such as momentum, velocity."
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
