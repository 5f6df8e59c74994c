"""What a classifier refuses: options of Keras that mean nothing here, and numbers that are not finite."""

import warnings

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import is_of_strategy, scales_loss
from tfxc._keras.weights import layer_and_name
from tfxc.data.sequences import Sequences
from tfxc.data.splits import Split
from tfxc.data.warn import warn
from tfxc.layers import MACHHead, UniformSparseHead
from tfxc.layers.head import Head
from tfxc.losses import GBCE, BinaryCrossentropy, SoftmaxAtK, SquaredHinge
from tfxc.metrics import CoverageAtK, RankingMetric
from tfxc.require import require
from tfxc.samplers import (
    DNS,
    LSH,
    MIDX,
    RFF,
    HardNegatives,
    InBatch,
    LogUniform,
    SearchedHardNegatives,
    Softmax,
    Sphere,
)

_POOR_OF_SKETCHES = LSH | SearchedHardNegatives | Sphere  # for a sparse head: they see its projections
# Draws for losses of each class on its own; the hinge is flat where a class is beyond its margin.
_POOR = {
    BinaryCrossentropy: DNS | LSH | RFF | SearchedHardNegatives | Sphere,
    GBCE: DNS | LSH | RFF | Sphere | HardNegatives | LogUniform,
    SoftmaxAtK: RFF | Sphere,
    SquaredHinge: LSH | RFF | SearchedHardNegatives | Sphere | MIDX | Softmax,
}
_SKIPPED = "and the step was skipped: the weights are those from before it."
_ABOUT_VALUES = "If the batch holds no NaN or infinity, lower the learning rate or set clipnorm=1.0."
_ABOUT_GRADIENTS = (
    "The loss is finite: look for a function whose slope is not, such as sqrt(x), log(x) or the length of a "
    "vector at 0, and add a small number there."
)


def refuse_consumed(model):
    """Raises ValueError for a model whose weights ``change_classes`` has given to another."""
    if getattr(model, "is_consumed", False):
        returned = "model = tfxc.change_classes(model, ...)"
        raise ValueError(f"change_classes consumed this model; use what it returned: {returned}.")


def compile_options(options):
    """Keras's further options of ``compile``, a dict, without those that have no meaning here."""
    options = dict(options)
    if options.pop("loss_weights", None) is not None:
        raise ValueError(
            "loss_weights is not supported: the model has one loss. Weigh examples by sample_weight=weights "
            "of fit; add up several losses by tfxc.head_loss, in a model of your own."
        )
    if options.get("jit_compile") is True:
        options["jit_compile"] = False
        warnings.warn(
            "jit_compile=True has no effect: XLA cannot call the compiled ops of heads and samplers.",
            stacklevel=3,
        )
    return options


def warn_of_poor_draws(head, loss, sampler):
    """Warns of draws that are worth less than cheaper ones, with this loss or on this head."""
    poor = _POOR.get(type(loss), RFF)
    if getattr(loss, "estimator", None) == "partition":
        poor |= DNS | Sphere
    is_sparse = isinstance(head, UniformSparseHead)
    if is_sparse:
        poor |= _POOR_OF_SKETCHES
    draws_from_batch = isinstance(sampler, InBatch) and sampler.num_negatives is not None
    if isinstance(sampler, poor) or draws_from_batch:
        adaptive = "" if isinstance(loss, SquaredHinge) else "MIDX, "
        warn(
            f"{type(sampler).__name__} with {type(loss).__name__}: where this was measured, on a "
            f"{'sparse' if is_sparse else 'dense'} head, the model ranked no better than one of Unigram "
            f"draws, which cost less, and mostly far below. Take {adaptive}Unigram(counts=...) or InBatch()."
        )


def warn_of_biases(head, loss, sampler):
    """Warns where a loss of each class on its own would first have to push every class down."""
    starts_at_0 = isinstance(getattr(head, "bias_initializer", None), keras.initializers.Zeros)
    if not starts_at_0 or not isinstance(loss, BinaryCrossentropy | SquaredHinge):
        return
    if np.any(getattr(head, "bias", 0)):  # of a model that has trained
        return
    if isinstance(loss, GBCE) and sampler is not None:  # all draws weigh one: few classes are pushed
        return
    is_mach = isinstance(head, MACHHead)
    outputs, use = ("num_buckets", "") if is_mach else ("num_classes", "use_bias=True and ")
    start, found = f"np.log(labels_per_query / {outputs})", 47
    if isinstance(loss, SquaredHinge):
        start, found = "-1.0", 57
    warn(
        f"{type(loss).__name__} asks of each class whether it applies, and nearly none does, but the biases "
        f"of the {type(head).__name__} do not start there: where this was measured, P@1 after six epochs was "
        f"{found} instead of 78 %. Give the head {use}bias_initializer=keras.initializers.Constant({start})."
    )


def ranking_metrics(given, name, num_classes):
    """``metrics`` or ``weighted_metrics`` of ``compile``, as the name says, as a list of fitting metrics."""
    if isinstance(given, dict):
        raise ValueError(
            f"{name} must be a list, [NDCGAtK(10)], but got {given!r}: the one output is the best ids."
        )
    metrics = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
    for metric in metrics:
        if not isinstance(metric, RankingMetric | CoverageAtK):
            raise ValueError(
                f"{name} must be of tfxc.metrics, which take ranked ids, but got {metric!r}. Use "
                "RecallAtK(10), or PrecisionAtK(1), which is the accuracy of examples with one label."
            )
        if metric.name == "loss":
            raise ValueError(f"{name} hold a metric called 'loss', which would hide the loss: rename it.")
        if metric.num_classes not in (num_classes, None):
            raise ValueError(
                f"{metric.name} is made for {metric.num_classes} classes, but the head has {num_classes}: "
                f"make the metric for {num_classes} classes."
            )
    return metrics


def refuse_optimizer(optimizer, strategy):
    """Raises ValueError for an optimizer that scales the loss, is a legacy one, or of another strategy."""
    if scales_loss(optimizer):
        raise ValueError(
            "The optimizer scales the loss, as under the mixed_float16 policy: use the mixed_bfloat16 policy."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = type(optimizer)
        raise ValueError(
            "The optimizer must be one of tfxc.optimizers, such as LazyAdam(1e-3), or of keras.optimizers, "
            f"but got {kind.__name__} of {kind.__module__}."
        )
    if not is_of_strategy(optimizer, strategy):
        raise ValueError(
            f"The optimizer was not made in the scope of the model's {type(strategy).__name__}: make the "
            "model, its layers and the optimizer, and call compile, in one `with strategy.scope():`."
        )


def refuse_class_weight(class_weight):
    if class_weight is not None:  # Keras would take the position of the largest label for the class
        raise ValueError("class_weight is not supported: pass sample_weight=weights[labels] instead.")


def refuse_empty(data, name):
    """Raises ValueError for arrays without a row or of different lengths, no batch, or mere sequences."""
    if isinstance(data, Sequences | Split):
        raise ValueError(
            f"{name} must hold batches, but is {type(data).__name__} of tfxc.data: make them by "
            "sequence_training_dataset(sequences, ...) for fit, by sequence_evaluation_dataset for evaluate."
        )
    if data is None:
        is_empty = name == "x"  # Keras would train on nothing
    elif isinstance(data, tf.data.Dataset):
        is_empty = tf.get_static_value(data.cardinality()) == 0
    else:
        shapes = [tuple(part.shape) for part in tf.nest.flatten(data) if hasattr(part, "shape")]
        is_empty = any(shape[:1] == (0,) for shape in shapes)
        parts = data.items() if isinstance(data, dict) else ()
        sizes = {key: part.shape[0] for key, part in parts if len(getattr(part, "shape", ()))}
        if len(set(sizes.values()) - {None}) > 1:  # Keras 3 fails at its message
            raise ValueError(f"{name} must have as many rows in all of its parts, but has {sizes}.")
    if is_empty:
        raise ValueError(f"{name} holds no example: check what selects them, and pass at least one.")


def warn_of_padding(encoder, labels):
    """Warns of an array of labels [B, P] whose rows repeat class 0, as where they are padded with it."""
    if not isinstance(labels, np.ndarray) or labels.ndim != 2 or labels.dtype.kind not in "iu":
        return
    try:
        is_of_positions = len(encoder.output_shape) != 2
    except (AttributeError, RuntimeError):  # not known before its first call
        return
    if not is_of_positions and labels.max(initial=0) > 1:  # rows of a matrix of 0 and 1 are refused
        share = np.mean(np.count_nonzero(labels == 0, axis=1) > 1)
        if share > 0.1:
            warn(
                f"{share:.0%} of the rows of labels hold class 0 several times, as if padded with 0, which "
                "would train it as their label: pad with -1, keras.utils.pad_sequences(labels, value=-1)."
            )


def require_finite_inputs(inputs, optimizer):
    """Inputs of an encoder, behind the check of ``require_finite`` of all floats among them."""

    def checked(part):
        if not isinstance(part, tf.Tensor) or not part.dtype.is_floating or not part.shape.rank:
            return part
        sums = _sum(part, list(range(1, part.shape.rank)))
        with tf.control_dependencies([require_finite(sums, "input", optimizer)]):
            return tf.identity(part)

    return tf.nest.map_structure(checked, inputs)


def require_finite(values, what, optimizer):
    """Returns floats, a scalar, [N] or [N, D], behind a check that all of them are finite.

    Else an InvalidArgumentError names the step, by the optimizer, ``what`` they are, the value and its row.
    """
    # A sum is finite only if all of its terms are, and costs next to nothing beside the step.
    sums = values if values.shape.rank < 2 else _sum(values, -1)
    sums = tf.pad(tf.reshape(sums, [-1]), [[0, 1]])  # so that there is one to read in an empty batch
    row = tf.argmin(tf.cast(tf.math.is_finite(sums), tf.int32))
    where = ["at row", row, "of the batch"] if values.shape.rank else []
    told = [f"The {what} of training step", _step(optimizer), "is", sums[row], *where]
    told += [f"{_SKIPPED} {_ABOUT_VALUES}"]
    with tf.control_dependencies(require(tf.reduce_all(tf.math.is_finite(sums)), *told)):
        return tf.identity(values)


def require_finite_step(loss, gradients, variables, model):
    """What to wait for, by ``tf.control_dependencies``, to be certain that the loss and gradients are finite.

    It checks the gradients of the encoder and of layers within the head, which may compute anything. What a
    head computes with its own weights is as finite as the gradient of the queries, from which the encoder's
    gradients come; checking each row of the head's, too, would take a tenth of a step.
    """
    # A head may wrap another one, whose rows are not to travel for this either.
    layers = [model.encoder, *(own for own in layers_of(model.head)[1:] if not isinstance(own, Head))]
    watched = {id(weight) for layer in layers for weight in getattr(layer, "trainable_weights", ())}
    names, sums = ["The loss of"], [tf.cast(loss, tf.float32)]
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None and id(variable) in watched:
            names.append(f"The gradient of {layer_and_name(variable).removesuffix(':0')} in")
            sums.append(tf.cast(_sum(getattr(gradient, "values", gradient)), tf.float32))
    sums = tf.stack(sums)
    is_finite = tf.math.is_finite(sums)
    first = tf.argmin(tf.cast(is_finite, tf.int32))
    advice = tf.gather([_ABOUT_VALUES, _ABOUT_GRADIENTS], tf.minimum(first, 1))
    told = [tf.gather(names, first), "training step", _step(model.optimizer), "is", sums[first]]
    return require(tf.reduce_all(is_finite), *told, _SKIPPED, advice)


def _sum(values, axis=None):
    """A sum, which of float16 could be infinite though each term is finite: it is taken in float32."""
    return tf.reduce_sum(tf.cast(values, tf.float32) if values.dtype == tf.float16 else values, axis)


def _step(optimizer):
    return tf.cast(optimizer.iterations, tf.int64) + 1
