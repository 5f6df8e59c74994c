"""The memory that a model needs, known before training begins."""

import warnings
from typing import NamedTuple

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import variables_of_optimizer
from tfxc._keras.training import build_slots, is_compiled
from tfxc._keras.weights import tf_variable, tf_variables, variables_of
from tfxc.arguments import positive_int
from tfxc.layers.dense_head import DenseHead, tied_row_offset
from tfxc.layers.embedding_bag import EmbeddingBag
from tfxc.layers.mach_head import MACHHead
from tfxc.layers.uniform_sparse_head import UniformSparseHead
from tfxc.model.checks import refuse_consumed
from tfxc.samplers import InBatch, Mixture

# While Keras writes a model it holds it three times: the model, a copy of its weights, and the file.
_COPIES_OF_A_SAVE = 3
_LARGE_SAVE = 4 << 30


class MemoryReport(NamedTuple):
    """The bytes of a model, from ``memory_report``; ``print`` shows them in MB.

    Args:
        encoder: the encoder's weights, also tables that it shares with the head.
        tables: the head's trainable weights that are not the encoder's.
        indices: everything else that head and sampler keep, also the features of an ``EncodedHead``.
        slots: the optimizer's variables.
        step: an estimate of what a training step adds: gradients, and the class vectors of its candidates.
        save: an estimate of what ``model.save`` needs while it writes, the model itself included.
    """

    encoder: int
    tables: int
    indices: int
    slots: int
    step: int
    save: int

    @property
    def peak(self) -> int:
        """All memory in the middle of a training step. TensorFlow itself takes some 700 MB more."""
        return self.encoder + self.tables + self.indices + self.slots + self.step

    def __str__(self):
        titles = "encoder", "class tables", "indices and connections", "optimizer"
        titles += "a training step adds, about", "sum of these, about", "model.save, about"
        rows = zip(titles, (*self[:-1], self.peak, self.save), strict=True)
        return "\n".join(f"{title:<30}{number / 2**20:>12,.1f} MB" for title, number in rows)


def memory_report(model: keras.Model, batch_size: int = 32, num_labels: int = 1) -> MemoryReport:
    """The memory of a model: tables, indices, optimizer, and an estimate of what a training step adds.

    If a compiled model has not trained yet, the optimizer's slots are made here. A step that scores all
    classes has one or two gradients as large as the tables. A step with a sampler has a row for each
    candidate: ``batch_size · (num_labels + S)``, or ``batch_size · num_labels + S`` if queries share the
    candidates. What the encoder computes in between is left out.

    Args:
        model: a built ``ExtremeClassifier``.
        batch_size: queries in a step; for sequences, positions with a label.
        num_labels: labels of a query.

    Raises:
        ValueError: for what is no ``ExtremeClassifier`` that is built, and for numbers below 1.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(1000))
        >>> model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy())
        >>> report = tfxc.memory_report(model)
        >>> report.tables, report.encoder
        (64000, 576)
    """
    positive_int(batch_size, "batch_size")
    positive_int(num_labels, "num_labels")
    if not hasattr(model, "head"):
        raise ValueError(f"memory_report takes an ExtremeClassifier, but got {type(model).__name__}.")
    refuse_consumed(model)
    if not model.built:
        raise ValueError("memory_report needs a built model: call it on data, or give its encoder an Input.")
    of_encoder = set(map(id, variables_of(model.encoder)))
    tables = _size(own for own in model.head.trainable_weights if id(tf_variable(own)) not in of_encoder)
    encoder = _size(model.encoder.weights)
    if is_compiled(model):
        build_slots(model)
    of_sampler = [] if model.sampler is None else model.sampler.weights
    weights = [*model.encoder.weights, *model.head.weights, *of_sampler]
    kept, slots = _size(weights) + _size_of_features(model.head), _slots(model)
    step = _gradients_of_classes(model, batch_size, num_labels) + _gradients_of_encoder(model.encoder)
    save = _COPIES_OF_A_SAVE * (kept + slots)
    return MemoryReport(encoder, tables, kept - encoder - tables, slots, step, save)


def warn_of_large_save(model):
    """Warns before Keras writes a model that needs 4 GB for it, and names what needs less."""
    needed = _COPIES_OF_A_SAVE * (_size(model.weights) + _size_of_features(model.head) + _slots(model))
    if needed > _LARGE_SAVE:
        warnings.warn(
            f"Saving this model takes about {needed / 2**30:.1f} GB of memory, the model itself included. "
            "tf.train.Checkpoint(model=model).write(path) takes next to nothing beyond the model.",
            stacklevel=3,
        )


def _size(weights, least=1):
    """Bytes, of at least so many a number: gradients of bfloat16 are float32. A variable counts once."""
    variables = {id(own): own for own in map(tf_variable, weights) if hasattr(own, "shape")}
    return sum(own.shape.num_elements() * max(least, own.dtype.size) for own in variables.values())


def _size_of_features(head):
    """Bytes of the features of an ``EncodedHead``, which are no weights."""

    def size(tensor):  # a text has its own bytes, and 24 beside them
        if tensor.dtype != tf.string:
            return tensor.shape.num_elements() * tensor.dtype.size
        return int(tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64) + 24))

    features = getattr(head, "features", None)
    return 0 if features is None else sum(map(size, tf.nest.flatten(features)))


def _pieces(weight):
    """The variables into which a strategy has cut a weight, or the weight."""
    variables = tf_variables(weight)
    return variables if len(variables) > 1 else [weight]


def _slots(model):
    return _size(variables_of_optimizer(model.optimizer)) if is_compiled(model) else 0


def _gradients_of_classes(model, batch_size, num_labels):
    sampler = model.sampler
    # A head does not list a table that it shares with the encoder among its own.
    tables = [rows.weight for rows in model.head.class_rows() if _pieces(rows.weight)[0].trainable]
    listed = [piece for table in tables for piece in _pieces(table)]
    trained = [*model.head.trainable_weights, *listed]
    if sampler is None:
        # These heads make one gradient of the whole; elsewhere the share of the labels makes a second.
        head = getattr(model.head, "head", model.head)  # of a wrapper
        is_one = isinstance(head, DenseHead | UniformSparseHead | MACHHead) and tied_row_offset(head) is None
        num_buckets = head.num_repetitions * head.num_buckets if isinstance(head, MACHHead) else 0
        # MACH has logits and log-probabilities of its buckets, and the gradients of both.
        return _size(trained, least=4) * (1 if is_one else 2) + 4 * 4 * batch_size * num_buckets
    num_drawn, shared = _draws(sampler, batch_size, num_labels)
    rows = batch_size * num_labels + num_drawn * (1 if shared else batch_size)
    of_classes = {id(weight) for weight in listed}
    whole = [weight for weight in model.head.trainable_weights if id(weight) not in of_classes]
    a_row = sum(_size([weight], least=4) // max(1, weight.shape[0]) for weight in tables)
    return min(rows * a_row + _size(whole, least=4), _size(trained, least=4))


def _draws(sampler, batch_size, num_labels):
    """How many candidates a sampler draws, and whether all queries share them."""
    if isinstance(sampler, Mixture):  # draws are shared only if all of its parts share theirs
        parts = [_draws(part, batch_size, num_labels) for part in sampler.samplers]
        return sum(number for number, _ in parts), all(shared for _, shared in parts)
    number = batch_size * num_labels if sampler.num_negatives is None else sampler.num_negatives
    return number, sampler.shared or isinstance(sampler, InBatch)


def _gradients_of_encoder(encoder):
    """Bytes of dense gradients; those of embedding tables have only a row for each id of a batch."""
    lookups = [own for own in layers_of(encoder) if isinstance(own, (keras.layers.Embedding, EmbeddingBag))]
    rows = {id(weight) for layer in lookups for weight in layer.weights}
    return _size([weight for weight in encoder.trainable_weights if id(weight) not in rows])
