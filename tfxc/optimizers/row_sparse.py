"""What the row-sparse optimizers share: which options they take, clipping, slots, both Keras."""

import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras, tf_variable
from tfxc.ops.row_updates import sum_duplicate_rows

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_AVERAGING = "it averages every row at every step: average saved checkpoints instead"
_REFUSED = {
    "weight_decay": "it shrinks every row at every step: add a penalty on the rows of the batch to the loss",
    "amsgrad": "use keras.optimizers.Adam for models without large tables",
    "use_ema": _AVERAGING,
    "ema_momentum": _AVERAGING,
    "ema_overwrite_frequency": _AVERAGING,
    "loss_scale_factor": "use the mixed_bfloat16 policy, which needs no loss scaling",
    "gradient_accumulation_steps": "its accumulator is a dense copy of the table: use a larger batch",
}


class RowSparseOptimizer(keras.optimizers.Optimizer):
    """Base of the optimizers whose step touches only the rows with a gradient.

    A subclass creates its slots in ``_build_slots`` and implements
    ``_sparse_step(gradient, variable, index, learning_rate)`` and ``_dense_step`` with the
    same arguments; ``index`` is the variable's position among those optimized.

    Args:
        learning_rate: Float, ``LearningRateSchedule`` or (Keras 3) callable.
        name: Name of the optimizer.
        **options: At most one of ``clipnorm`` (L2 norm of each variable's gradient),
            ``global_clipnorm`` (of all gradients together) and ``clipvalue`` (each entry). The
            gradients of a row that occurs more than once are summed first; rows without a
            gradient count as zero.

    Raises:
        ValueError: An option that would touch every row of every table, or an unknown one.
    """

    def __init__(self, learning_rate, name=None, **options):
        _check_options(type(self).__name__, options)
        name = name or type(self).__name__
        if IS_KERAS_3:
            super().__init__(learning_rate=learning_rate, name=name, **options)
        else:
            super().__init__(name=name, weight_decay=None, jit_compile=False, **options)
            self._learning_rate = self._build_learning_rate(learning_rate)

    def build(self, var_list):
        """Creates the slots of the variables, once."""
        if getattr(self, "_built", False):
            return
        super().build(var_list)
        self._build_slots(var_list)
        self._built = True

    def _build_slots(self, var_list):
        """Creates the slots; without any, nothing to do."""

    def _add_slots(self, var_list, name, shape_of=lambda variable: variable.shape, initial_value=0.0):
        """One slot a variable, placed beside it."""
        return [self._add_slot(variable, name, shape_of(variable), initial_value) for variable in var_list]

    def _add_slot(self, variable, name, shape, initial_value):
        if not IS_KERAS_3:
            initial_value = tf.fill(shape, tf.cast(initial_value, variable.dtype))
            return self.add_variable_from_reference(variable, name, initial_value=initial_value)
        with self._distribution_strategy.extended.colocate_vars_with(tf_variable(variable)):
            return self.add_variable(
                shape=shape,
                initializer=keras.initializers.Constant(initial_value),
                dtype=variable.dtype,
                name=f"{getattr(variable, 'path', variable.name).replace('/', '_').replace(':', '_')}_{name}",
            )

    def update_step(self, gradient, variable, learning_rate=None):
        """Applies one gradient; ``learning_rate`` is passed by Keras 3 only."""
        learning_rate = tf.convert_to_tensor(self.learning_rate if learning_rate is None else learning_rate)
        if IS_KERAS_3:
            index = self._get_variable_index(variable)
        else:
            index = self._index_dict[self._var_key(variable)]
        if isinstance(gradient, tf.IndexedSlices):
            self._refuse_constraint(self._trainable_variables[index] if IS_KERAS_3 else variable)
            values = tf.cast(gradient.values, variable.dtype)
            gradient = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
            self._sparse_step(gradient, variable, index, learning_rate)
        else:
            self._dense_step(tf.cast(gradient, variable.dtype), variable, index, learning_rate)

    def _refuse_constraint(self, variable):
        if variable.constraint is not None:
            raise ValueError(
                f"{variable.name} has the constraint {variable.constraint}, which Keras would apply to all "
                f"{variable.shape[0]} rows at every step. Remove it; a head can normalize its rows itself."
            )

    def _clip_gradients(self, grads):
        # tf-keras calls this after the replicas' gradients are summed, Keras 3 before: see below.
        return grads if IS_KERAS_3 else self._clip(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        grads, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
        return list(zip(self._clip(grads), variables, strict=True))

    def _clip(self, grads):
        if not (self.clipnorm or self.clipvalue or self.global_clipnorm):
            return grads
        grads = [sum_duplicate_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
        if self.global_clipnorm:
            return tf.clip_by_global_norm(grads, self.global_clipnorm)[0]
        if self.clipnorm:
            return [tf.clip_by_norm(g, self.clipnorm) for g in grads]
        return [tf.clip_by_value(g, -self.clipvalue, self.clipvalue) for g in grads]

    def _deduplicate_sparse_grad(self, grads):
        # tf-keras calls this; the row updates sum duplicates themselves.
        return grads

    def get_config(self):
        """The arguments of the constructor."""
        config = super().get_config()
        if not IS_KERAS_3:
            config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return {key: config[key] for key in ("learning_rate", "name", *_CLIPPING)}


def _check_options(optimizer, options):
    for name in options:
        if name in _REFUSED:
            raise ValueError(f"{optimizer} does not take {name!r}: {_REFUSED[name]}.")
        if name not in _CLIPPING:
            raise ValueError(f"{optimizer} got the unknown option {name!r}; it takes {', '.join(_CLIPPING)}.")
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1 or any(value <= 0 for value in given.values()):
        raise ValueError(f"Expected at most one of {', '.join(_CLIPPING)}, above 0; got {given}.")
