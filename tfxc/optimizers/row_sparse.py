"""The base of the row-sparse optimizers: the options they take, clipping, slots, rounding."""

from collections.abc import Callable

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import Untracked
from tfxc._keras.optimizers import (
    CLIPS_SUMMED_GRADIENTS,
    add_slot,
    constraint_of,
    serialized_learning_rate,
    start_optimizer,
    steps_variable,
    variable_index,
)
from tfxc._keras.weights import is_cut, layer_and_name, tf_variable
from tfxc.arguments import number_in, seed_int
from tfxc.ops import library
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.ops.row_updates import NO_SEED, shrink_rows, sum_duplicate_rows
from tfxc.ops.table_rows import rows_dtype
from tfxc.optimizers import gradient_accumulation as accumulation

_LEAST_ROWS = 1 << 16  # a dense update of a variable with fewer rows is cheap
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_REFUSED = {
    "amsgrad": "use keras.optimizers.Adam for models without large tables",
    "loss_scale_factor": "use the mixed_bfloat16 policy, which needs no loss scaling",
    **dict.fromkeys(
        ("use_ema", "ema_momentum", "ema_overwrite_frequency"),
        "it averages every row at every step: average saved checkpoints, or the encoder's weights alone, by "
        "MultiOptimizer(keras.optimizers.Adam(use_ema=True), (LazyAdam(), head))",
    ),
}


class RowSparseOptimizer(keras.optimizers.Optimizer):
    """Base of the optimizers whose step touches only the rows with a gradient; ``LazyAdam`` has the options.

    A subclass names its slots in ``_slot_shapes`` and implements
    ``_sparse_step(gradient, variable, slots, learning_rate, seed)`` and
    ``_dense_step(gradient, variable, slots, learning_rate)``; ``slots`` are its ``tf.Variable``, in order.

    A variable of bfloat16 is updated in float32 and rounded stochastically, also by a dense gradient; its
    slots are float32. The random numbers belong to the seed, the step, the variable and the row: threads do
    not change them, and training that is resumed repeats them.
    """

    def __init__(
        self,
        learning_rate,
        name: str | None = None,
        weight_decay: float | None = None,
        seed: int = 0,
        gradient_accumulation_steps: int | None = None,
        **options,
    ) -> None:
        _check_options(type(self).__name__, options)
        if learning_rate is None or isinstance(learning_rate, int | float):
            number_in(learning_rate, "learning_rate", "[0, inf)")
        if weight_decay is not None:
            number_in(weight_decay, "weight_decay", "[0, inf)")
        name = name or type(self).__name__
        start_optimizer(self, learning_rate, name, weight_decay=weight_decay, **options)
        self.seed = seed_int(seed)
        self.gradient_accumulation_steps = accumulation.accumulation_steps(gradient_accumulation_steps)
        self._slots = Untracked({})

    # The shape of each slot by its name, as a function of the variable's shape.
    _slot_shapes: dict[str, Callable] = {}
    _initial_slot_value = 0.0

    def build(self, var_list):
        """Creates the slots of the variables, once."""
        if getattr(self, "_built", False):
            return
        for variable in var_list:
            _check_weight(variable, self.clipnorm)
        steps, self.gradient_accumulation_steps = self.gradient_accumulation_steps, None
        super().build(var_list)  # with the option, Keras would make accumulators that only a dense sum fills
        self.gradient_accumulation_steps = steps
        for name, shape_of in self._slot_shapes.items():
            start = self._initial_slot_value
            self._slots.value[name] = [add_slot(self, v, name, shape_of(v.shape), start) for v in var_list]
        if steps:
            sums = [add_slot(self, v, "gradient", v.shape, 0.0) for v in var_list]
            touched = [add_slot(self, v, "touched", v.shape[:1], 0, "uint8") for v in var_list]
            self._slots.value |= {"gradient": sums, "touched": touched}
        self._built = True

    def slots_of(self, variable) -> dict[str, tf.Variable]:
        """The slots of a weight: a dict, name -> ``tf.Variable``; empty if it is not trained."""
        index = variable_index(self, variable)
        if index is None:
            return {}
        return {name: tf_variable(slots[index]) for name, slots in self._slots.value.items()}

    def update_step(self, gradient, variable, learning_rate=None):
        """Applies one gradient; ``learning_rate`` is passed by Keras 3 only."""
        learning_rate = tf.convert_to_tensor(self.learning_rate if learning_rate is None else learning_rate)
        index, every = variable_index(self, variable), self.slots_of(variable)
        slots = [every[name] for name in self._slot_shapes]
        if decays := self.weight_decay and self._use_weight_decay(variable):
            share = tf.cast(learning_rate, tf.float64) * self.weight_decay
        if isinstance(gradient, tf.IndexedSlices):
            if (constraint := constraint_of(self, index, variable)) is not None:
                raise ValueError(
                    f"{variable.name} has the constraint {constraint}, which Keras would apply to all "
                    f"{variable.shape[0]} rows at every step: leave it out (a head can normalize its rows)."
                )
            values = tf.cast(gradient.values, rows_dtype(variable))
            gradient = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        elif variable.dtype == tf.bfloat16 or _is_table(variable):
            gradient = tf.IndexedSlices(tf.cast(gradient, tf.float32), tf.range(variable.shape[0]))
        else:
            if decays:
                variable.assign_sub(tf.cast(share, variable.dtype) * variable)
            self._dense_step(tf.cast(gradient, variable.dtype), variable, slots, learning_rate)
            return
        seed = NO_SEED
        if variable.dtype == tf.bfloat16:  # of the rounding of this variable in this step, [2]
            key = tf.constant(self.seed, tf.int64) + index * 2**32  # wraps round
            seed = tf.stack([key, tf.cast(self.iterations, tf.int64)])
        if decays:
            shrink_rows(variable, gradient, share, seed)
        self._sparse_step(gradient, variable, slots, learning_rate, seed)

    def _backend_apply_gradients(self, grads, trainable_variables):
        """Keras 3 calls this: calls that accumulate add to the slots, and the last of a group steps, too."""
        steps = self.gradient_accumulation_steps
        if not steps:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        slots = [self.slots_of(variable) for variable in trainable_variables]
        for own, gradient in zip(slots, grads, strict=True):
            accumulation.add_gradient(own, gradient)

        def update():
            means = [accumulation.take_mean(*pair, steps) for pair in zip(slots, grads, strict=True)]
            for mean, variable in zip(self._clip(means), trainable_variables, strict=True):
                self.update_step(mean, tf_variable(variable))

        tf.cond((steps_variable(self) + 1) % steps == 0, update, lambda: None)

    def _apply_weight_decay(self, variables):
        """Keras would shrink all rows here; ``update_step`` shrinks those of the gradient."""

    def _clip_gradients(self, grads):
        # Keras calls this before it sums the gradients of replicas: then the sum is clipped, below.
        return self._clip(grads) if CLIPS_SUMMED_GRADIENTS else grads

    def _all_reduce_sum_gradients(self, grads_and_vars):
        with kept_by_graph():
            summed = super()._all_reduce_sum_gradients(grads_and_vars)
        grads, variables = zip(*summed, strict=True)
        return list(zip(self._clip(grads), variables, strict=True))

    def aggregate_gradients(self, grads_and_vars):
        """tf-keras calls this to sum the gradients of replicas."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return grads_and_vars  # TensorFlow would bring gradients of remote variables here, and back
        with kept_by_graph():
            return super().aggregate_gradients(grads_and_vars)

    def _clip(self, grads):
        if not (self.clipnorm or self.clipvalue or self.global_clipnorm):
            return grads
        # The norms of several gradients are added, and norms in bfloat16 would be coarse.
        dtype = tf.float64 if any(g.dtype == tf.float64 for g in grads) else tf.float32
        grads = [_summed_in(g, dtype) for g in grads]
        if self.global_clipnorm:
            return tf.clip_by_global_norm(grads, self.global_clipnorm)[0]
        if self.clipnorm:
            return [tf.clip_by_norm(g, self.clipnorm) for g in grads]
        return [tf.clip_by_value(g, -self.clipvalue, self.clipvalue) for g in grads]

    def _deduplicate_sparse_grad(self, grads):
        # tf-keras calls this; the row updates sum duplicates themselves.
        return grads

    def get_config(self):
        config = super().get_config()
        config["learning_rate"] = serialized_learning_rate(self, config)
        kept = ("learning_rate", "name", "weight_decay", *_CLIPPING)
        own = {"seed": self.seed, accumulation.OPTION: self.gradient_accumulation_steps}
        return {**{key: config[key] for key in kept}, **own}


def _summed_in(gradient, dtype):
    """A gradient in a dtype, its rows summed if it is sparse."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.cast(gradient, dtype)
    values = tf.cast(gradient.values, dtype)
    return sum_duplicate_rows(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape))


def _is_table(variable):
    """Whether steps read single rows of it: a stock update of all rows would then copy the variable first."""
    return variable.shape.rank == 2 and variable.shape[0] >= _LEAST_ROWS and library.takes_table(variable)


def _check_weight(variable, clipnorm):
    if clipnorm and is_cut(variable):
        raise ValueError(
            f"{variable.name} holds some of the rows of a table that the strategy has cut: clipnorm "
            "would clip each piece by a norm of its own. Take global_clipnorm or clipvalue."
        )
    is_number = variable.dtype == tf.bfloat16 and not len(variable.shape)
    if variable.dtype == tf.float16 or is_number:
        why = "has no rows to round stochastically" if is_number else "loses small steps and gradients"
        raise ValueError(
            f"The weight {layer_and_name(variable)}, {tf.as_dtype(variable.dtype).name} {variable.shape}, "
            f'{why}: give its layer dtype="float32", or take the mixed_bfloat16 policy.'
        )


def _check_options(optimizer, options):
    for name in options:
        if name in _REFUSED:
            raise ValueError(f"{optimizer} does not take {name!r}: {_REFUSED[name]}.")
        if name not in _CLIPPING:
            known = ", ".join(("weight_decay", "seed", *_CLIPPING, accumulation.OPTION))
            raise ValueError(f"{optimizer} got the unknown option {name!r}; it takes {known}.")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        number_in(value, name, "(0, inf)")
    if len(given) > 1:
        raise ValueError(f"Expected at most one of {', '.join(_CLIPPING)}, but got {given}.")
