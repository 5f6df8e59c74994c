"""One optimizer for some layers, another for the rest."""

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked
from tfxc._keras.optimizers import learning_rate_variable, scales_loss, start_optimizer, variable_index
from tfxc._keras.weights import layer_and_name, tf_variable
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.optimizers.slots import slots_of


@register
class MultiOptimizer(keras.optimizers.Optimizer):
    """Trains chosen layers by optimizers of their own: Adam for the encoder, gradient descent for the head.

    Each optimizer keeps its own slots, clipping and learning rate or schedule. ``learning_rate`` is that of
    the default. Rates that are all numbers keep their ratio: when the default's is set (by
    ``ReduceLROnPlateau``, say), the others follow, and one of them that was set alone is reset.

    Args:
        default: a Keras optimizer, for all weights that no other optimizer takes.
        *others: pairs of an optimizer and a layer or list of layers. Layers are compared by identity, since
            names need not be unique; a table belongs to the layer that created it.
        name: Name of the optimizer.

    Raises:
        ValueError: There is no pair, or an optimizer is none of Keras, a ``MultiOptimizer`` or scales the
            loss; when built, if a layer owns no trainable weight of the model, two optimizers claim the same
            weight, or a head shares a table that no pair names.

    Example:
        >>> encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        >>> head = tfxc.layers.DenseHead(100)
        >>> optimizer = MultiOptimizer(
        ...     tfxc.optimizers.LazyAdam(1e-3), (tfxc.optimizers.LazySGD(0.1), head))
        >>> model = tfxc.ExtremeClassifier(encoder, head, k=5)
        >>> model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy())

    Reference:
        Mehta et al., "ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers", 2024
        (Adam for the encoder, stochastic gradient descent for the classifiers).
    """

    def __init__(
        self,
        default: keras.optimizers.Optimizer,
        *others: tuple[keras.optimizers.Optimizer, keras.layers.Layer | Sequence[keras.layers.Layer]] | list,
        name: str = "multi_optimizer",
    ) -> None:
        if not others or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in others):
            raise ValueError(f"Expected pairs (optimizer, layers) after the default, but got {others!r}.")
        optimizers = [default, *(pair[0] for pair in others)]
        for optimizer in optimizers:
            if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(optimizer, MultiOptimizer):
                raise ValueError(
                    "A MultiOptimizer takes plain Keras optimizers, such as tfxc.optimizers.LazyAdam(), but "
                    f"got {optimizer!r} (the optimizers and layers of a MultiOptimizer go in as pairs)."
                )
            if scales_loss(optimizer):
                raise ValueError(
                    f"{type(optimizer).__name__} scales the loss, which a MultiOptimizer does not support: "
                    "leave the factor out; in half precision take the mixed_bfloat16 policy."
                )
        start_optimizer(self, None, name)
        self._num_optimizers = len(optimizers)
        for i, optimizer in enumerate(optimizers):
            setattr(self, f"optimizer_{i}", optimizer)
        layers = [pair[1] if isinstance(pair[1], list | tuple) else [pair[1]] for pair in others]
        for layer in sum(layers, []):
            if not isinstance(layer, keras.layers.Layer):
                raise ValueError(f"{layer!r} is no layer: give pairs (optimizer, layer or list of layers).")
        self._layers = Untracked(layers)  # a saved optimizer does not hold the model
        self._owners: Any = None  # the number of each weight's optimizer
        self._names = None  # of the weights
        self._ratios = _ratios(self.optimizers)

    @property
    def optimizers(self) -> list[keras.optimizers.Optimizer]:
        """The default and the others."""
        return [getattr(self, f"optimizer_{i}") for i in range(self._num_optimizers)]

    @property
    def learning_rate(self):
        """The default's learning rate."""
        return self.optimizers[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        if self._ratios is None:
            raise TypeError(
                "Where one of the rates follows a schedule or starts at 0, set the rate of each optimizer."
            )
        self.optimizers[0].learning_rate = value
        self._let_follow()

    def _let_follow(self):
        if self._ratios is not None:
            for optimizer, ratio in zip(self.optimizers[1:], self._ratios[1:], strict=True):
                rate = tf.convert_to_tensor(self.learning_rate) * ratio
                learning_rate_variable(optimizer).assign(rate)

    def optimizer_of(self, variable) -> keras.optimizers.Optimizer:
        """The optimizer that trains a weight; ValueError if it was missing, or frozen, at ``build``."""
        number = variable_index(self, variable)
        if number is None:
            raise ValueError(
                f"The weight {layer_and_name(variable)} was not trained when this MultiOptimizer was built: "
                "compile with a new MultiOptimizer after you unfreeze a layer."
            )
        return self.optimizers[self._owners[number]]

    def slots_of(self, variable) -> dict[str, tf.Variable]:
        """The slots of a weight in the optimizer that trains it: a dict, name -> ``tf.Variable``."""
        if variable_index(self, variable) is None:
            return {}
        return slots_of(self.optimizer_of(variable), variable)

    def build(self, variables):
        """Assigns each weight to its optimizer, and creates the slots of each optimizer, once."""
        if getattr(self, "_dealt", False):
            return
        super().build(variables)
        variables = list(variables)
        self._order = Untracked(variables)
        self._owners = self._find_owners(variables) if self._owners is None else self._kept_owners(variables)
        self._names = [layer_and_name(variable) for variable in variables]
        for i, optimizer in enumerate(self.optimizers):
            optimizer.build([v for v, owner in zip(variables, self._owners, strict=True) if owner == i])
        self._dealt = True

    def _kept_owners(self, variables):
        """The saved owner of each variable, where some of the saved weights are frozen."""
        if len(variables) == len(self._owners):
            return self._owners
        kept = dict(zip(self._names or [], self._owners, strict=False))
        names = [layer_and_name(variable) for variable in variables]
        if len(kept) != len(self._owners) or not kept.keys() >= set(names):
            raise ValueError(
                f"This MultiOptimizer was saved with {len(self._owners)} trained weights, whose names do not "
                f"tell which are the {len(names)} of this model: compile with a new MultiOptimizer."
            )
        return [kept[name] for name in names]

    def _find_owners(self, variables):
        if not all(self._layers.value):
            raise ValueError(
                "An optimizer has no layers, as in the config of a MultiOptimizer not yet built: build anew."
            )
        owners = {id(variable): 0 for variable in variables}
        for i, layers in enumerate(self._layers.value, 1):
            for layer in layers:
                own = [id(v) for v in layer.trainable_variables if id(v) in owners]
                if not own:
                    raise ValueError(
                        f"Layer {layer.name!r} owns no trainable weight of the model, so no optimizer can "
                        "train it. A tied head trains with the embedding that holds its table: name that."
                    )
                if any(owners[v] not in (0, i) for v in own):
                    raise ValueError(
                        f"Two optimizers claim weights of layer {layer.name!r}: name each layer in one pair."
                    )
                owners.update(dict.fromkeys(own, i))
        for layer in sum(self._layers.value, []):
            for rows in getattr(layer, "class_rows", list)():
                if owners.get(id(rows.weight)) == 0:  # the default's, as it belongs to another layer
                    raise ValueError(
                        f"Layer {layer.name!r} shares {layer_and_name(rows.weight)}, which the default would "
                        "train: name the layer that holds it, too, as in (optimizer, [head, embedding])."
                    )
        return [owners[id(variable)] for variable in variables]

    def apply_gradients(self, grads_and_vars, **options):
        """One step of every optimizer on its own weights."""
        pairs = list(grads_and_vars)
        self.build([variable for _, variable in pairs])
        self._let_follow()  # callbacks of tf-keras set the variable of the default's rate
        has_none = all(gradient is None for gradient, _ in pairs)  # then an optimizer raises the error
        for optimizer in self.optimizers:
            own = [pair for pair in pairs if self.optimizer_of(pair[1]) is optimizer]
            if has_none or any(gradient is not None for gradient, _ in own):
                with kept_by_graph():
                    optimizer.apply_gradients(own, **options)
            elif own:
                names = [layer_and_name(variable) for _, variable in own]
                warnings.warn(f"No gradient of the loss reaches {names}: they do not train.", stacklevel=2)
        return tf_variable(self.iterations).assign_add(1)

    def apply(self, grads, trainable_variables=None):
        """As ``apply_gradients``, with the arguments of Keras 3."""
        variables = self._order.value if trainable_variables is None else trainable_variables
        self.apply_gradients(zip(grads, variables, strict=True))

    def finalize_variable_values(self, var_list):
        """At the end of training, optimizers with ``use_ema`` write their averages into the weights."""
        for optimizer in self.optimizers:
            own = [variable for variable in var_list if self.optimizer_of(variable) is optimizer]
            optimizer.finalize_variable_values(own)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes weights from weight decay, whichever optimizer trains them; call it before ``build``."""
        for optimizer in self.optimizers:
            optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def get_config(self):
        """The optimizers and, once built, the optimizer of each weight; a config holds no layers."""
        optimizers = [keras.optimizers.serialize(optimizer) for optimizer in self.optimizers]
        kept = {"owners": self._owners, "names": self._names, "ratios": self._ratios}
        kept = {name: own and list(own) for name, own in kept.items()}
        return {"name": self.name, "optimizers": optimizers, **kept}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Needs no layers if the saved optimizer was built; else the result cannot be built."""
        first, *others = (
            keras.optimizers.deserialize(own, custom_objects=custom_objects) for own in config["optimizers"]
        )
        optimizer = cls(first, *((other, []) for other in others), name=config["name"])
        optimizer._owners, optimizer._names = config["owners"], config["names"]
        # The saved rates may lack one that was set and had not reached the others.
        optimizer._ratios = config["ratios"]
        return optimizer


def _ratios(optimizers):
    """Learning rates relative to the first; None if one follows a schedule, or the first is 0."""
    if any(learning_rate_variable(optimizer) is None for optimizer in optimizers):
        return None
    rates = [float(tf.convert_to_tensor(optimizer.learning_rate)) for optimizer in optimizers]
    return [rate / rates[0] for rate in rates] if rates[0] else None
