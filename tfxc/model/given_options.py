"""What a classifier takes of Keras's options, and what it refuses with what to do instead."""

import warnings

from tfxc._keras import keras
from tfxc._keras.optimizers import scales_loss
from tfxc.metrics import CoverageAtK, RankingMetric


def compile_options(options):
    """Keras's further options of ``compile``, without those that have no meaning here.

    Args:
        options: dict.

    Raises:
        ValueError: for ``loss_weights``.

    Example:
        >>> compile_options({"loss_weights": None, "run_eagerly": True})
        {'run_eagerly': True}
    """
    options = dict(options)
    if options.pop("loss_weights", None) is not None:
        raise ValueError(
            "loss_weights is not supported: the model has one loss. Weigh examples by "
            "fit(..., sample_weight=weights); add up several losses by tfxc.head_loss, in a model "
            "of your own."
        )
    if options.get("jit_compile") is True:
        options["jit_compile"] = False
        warnings.warn(
            "jit_compile=True has no effect: XLA cannot call the compiled ops of heads and samplers.",
            stacklevel=3,
        )
    return options


def ranking_metrics(given, name):
    """The metrics that ``compile`` was given: a list, of one alone or None, too.

    Args:
        given: the argument.
        name: that of the argument, for the error.

    Raises:
        ValueError: for a dict, or metrics that do not take ranked ids.

    Example:
        >>> [metric.k for metric in ranking_metrics(tfxc.metrics.NDCGAtK(10), "metrics")]
        [10]
    """
    if isinstance(given, dict):
        raise ValueError(
            f"{name} must be a list, [NDCGAtK(10)], but got {given!r}: the one output is the best ids."
        )
    metrics = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
    unfit = [metric for metric in metrics if not isinstance(metric, RankingMetric | CoverageAtK)]
    if unfit:
        raise ValueError(
            f"{name} must be of tfxc.metrics (they take ranked ids), but got {unfit[0]!r}. Use "
            "tfxc.metrics.RecallAtK(10), or PrecisionAtK(1), which of one label is the accuracy."
        )
    return metrics


def refuse_other_classes(metrics, num_classes):
    """Raises ValueError for a metric that was made for another number of classes than the head's.

    Example:
        >>> refuse_other_classes([tfxc.metrics.CoverageAtK(10, num_classes=50)], 40)
        Traceback (most recent call last):
        ...
        ValueError: coverage_at_10 is made for 50 classes, but the head has 40: give it what belongs to these.
    """
    for metric in metrics:
        if getattr(metric, "num_classes", num_classes) != num_classes:
            raise ValueError(
                f"{metric.name} is made for {metric.num_classes} classes, but the head has {num_classes}: "
                "give it what belongs to these."
            )


def refuse_optimizer(optimizer):
    """Raises ValueError for an optimizer that scales the loss, or is of ``tf.keras.optimizers.legacy``.

    Example:
        >>> refuse_optimizer(tfxc.optimizers.LazyAdam(1e-3))
    """
    if scales_loss(optimizer):
        raise ValueError(
            "The optimizer scales the loss, as the mixed_float16 policy has it, which is not supported: use "
            "the mixed_bfloat16 policy instead."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = type(optimizer)
        raise ValueError(
            "The optimizer must be one of tfxc.optimizers, such as LazyAdam(1e-3), or of keras.optimizers, "
            f"but got {kind.__name__} of {kind.__module__}."
        )


def refuse_class_weight(class_weight):
    """Raises ValueError where ``fit`` or ``train_on_batch`` was given class weights.

    Example:
        >>> refuse_class_weight(None)
    """
    if class_weight is not None:  # of several labels Keras would take the place of the largest for the class
        raise ValueError(
            "class_weight is not supported with class-id labels of this many classes: pass "
            "sample_weight=weights[labels] instead."
        )
