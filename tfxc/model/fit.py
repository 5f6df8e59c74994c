"""What surrounds Keras's own ``fit``: its arguments, what must be ready, its callbacks, its errors."""

import contextlib
import inspect

import tensorflow as tf

from tfxc._keras import refuse_keras_3, training
from tfxc.callbacks.sampler_refresh import AUTO, with_refresh
from tfxc.cluster.place import check_data
from tfxc.fit_callback import FitCallback
from tfxc.infinity import infinity_is_meant
from tfxc.labels import as_array, weights_as_array
from tfxc.mining.hard_negative_mining import warn_without_mining
from tfxc.model.checks import refuse_class_weight, refuse_consumed, refuse_empty, warn_of_padding
from tfxc.model.fresh_cache import with_fresh_cache
from tfxc.model.growing import Growth
from tfxc.model.inputs import plain_inputs
from tfxc.require import clean_errors
from tfxc.step_clock import EPOCH


def bound_arguments(method, *args, **kwargs):
    """The arguments of Keras's ``fit``, ``evaluate`` or ``predict`` by name, labels as arrays."""
    arguments = inspect.signature(method).bind(*args, **kwargs).arguments
    arguments.update(arguments.pop("kwargs", {}))  # Keras's own options of evaluate
    arguments["x"] = plain_inputs(arguments.get("x"))
    refuse_empty(arguments["x"], "x")
    if "y" in arguments:
        arguments["y"] = as_array(arguments["y"])
    if "sample_weight" in arguments:
        arguments["sample_weight"] = weights_as_array(arguments["sample_weight"])
    held_out = arguments.get("validation_data")
    refuse_empty(held_out, "validation_data")
    if isinstance(held_out, list | tuple) and len(held_out) > 1:
        x, labels, *weights = held_out
        arguments["validation_data"] = (plain_inputs(x), as_array(labels), *map(weights_as_array, weights))
    return arguments


def require_ready(model, arguments):
    """Builds what a training needs, or raises ValueError; callbacks among the arguments become a list."""
    refuse_consumed(model)
    if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
        refuse_keras_3("MultiWorkerMirroredStrategy")  # its fit fails in the first step, for any model
    refuse_class_weight(arguments.get("class_weight"))
    warn_of_padding(model.encoder, arguments.get("y"))
    if isinstance(arguments.get("x"), tf.data.Dataset):
        arguments.setdefault("shuffle", False)  # Keras warns that its default has no effect on a data set
    arguments["callbacks"] = training.list_of_callbacks(arguments.get("callbacks"))
    if not training.is_compiled(model):
        raise ValueError("The model has no optimizer and no loss yet: call compile(...) before fit.")
    training.forget_validation_data(model)
    model._build_on(arguments.get("x"))
    if model.built:  # slots that are made while the first step is traced would have it traced twice
        with model.distribute_strategy.scope():
            model._build_parts(model.head.query_dim)
            training.build_slots(model)
        model.head.check(optimizer=model.optimizer)
    training.refuse_on_replicas(model)
    training.refuse_callbacks_that_keep_the_lowest(model, arguments["callbacks"])
    warn_without_mining(model.sampler, arguments["callbacks"])
    if training.steps_are_remote(model):
        check_data(arguments.get("x"))


def with_own_callbacks(model, callbacks):
    is_remote = training.steps_are_remote(model)  # then Keras refuses callbacks that look at batches
    callbacks = with_refresh(callbacks, model.sampler, model.head, EPOCH if is_remote else AUTO)
    callbacks = with_fresh_cache(callbacks, model.head)
    growth = [] if model.vocabulary is None else [Growth()]  # the last, to change the data that others gave
    return callbacks if is_remote else [FitPosition(), *callbacks, *growth]


@contextlib.contextmanager
def joined_by_callbacks(model, arguments):
    with clean_errors(), contextlib.ExitStack() as stack:
        for callback in arguments["callbacks"]:
            if isinstance(callback, FitCallback):
                context = callback.during_fit(model, arguments)
                if not isinstance(context, contextlib.AbstractContextManager):
                    raise ValueError(
                        f"{type(callback).__name__}.during_fit must return a context, but returned "
                        f"{context!r}: write @contextlib.contextmanager above it, and yield in it once."
                    )
                stack.enter_context(context)
        yield


class FitPosition(training.LogFreeCallback, FitCallback):
    """Follows a training. An error that stops it names batch and epoch, from 1 as in the progress bar."""

    def __init__(self):
        super().__init__()
        self._epoch, self._step = 1, "the beginning"

    def __str__(self):
        step = self._step
        if not isinstance(step, str):
            first, last = step + 1, step + training.steps_per_execution(self.model)
            step = f"batch {first}" if first == last else f"one of the batches {first} to {last}"
        return f"{step} of epoch {self._epoch}"

    def during_fit(self, model, arguments):
        return clean_errors(self)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._step = epoch + 1, "the beginning"

    def on_train_batch_begin(self, batch, logs=None):
        self._step = int(batch)

    def on_test_begin(self, logs=None):
        self._step = "the validation"


@contextlib.contextmanager
def clean_ranking():
    """An error begins with what is wrong, and scores of no class, and means of no labels, are meant."""
    with clean_errors(), infinity_is_meant(in_graphs=False):
        yield
