"""A model whose classes get other names while it trains: its data, and rows that begin anew."""

import contextlib
import gc
import weakref

import tensorflow as tf

from tfxc._keras.layers import embeddings_of, is_embedding, layers_of
from tfxc._keras.training import LogFreeCallback, steps_are_remote
from tfxc._keras.weights import tf_variable
from tfxc.block_initializer import some_rows
from tfxc.class_rows import AS_BUILT, BY_MEAN, ClassRows
from tfxc.fit_callback import FitCallback
from tfxc.layers import DenseHead
from tfxc.layers.dense_head import tied_row_offset
from tfxc.optimizers.slots import AVERAGES, slots_of
from tfxc.samplers.class_counts import RunningCounts

_NUM_FRESH = 256


class Growth(LogFreeCallback, FitCallback):
    """Turns the names in the data of ``fit`` into rows of the model's vocabulary, and keeps its state."""

    @contextlib.contextmanager
    def during_fit(self, model, arguments):
        vocabulary = model.vocabulary
        _require_own(model)
        _require_names(arguments)
        arguments["x"] = vocabulary.grown(arguments["x"])
        held_out = arguments.get("validation_data")
        if isinstance(held_out, tf.data.Dataset):
            arguments["validation_data"] = vocabulary.encoded(held_out)
        try:
            yield
        finally:
            vocabulary.follow()

    def on_train_batch_end(self, batch, logs=None):
        self.model.vocabulary.follow()

    def state_to_keep(self):
        return self.model.vocabulary.state()

    def restore_state(self, state):
        self.model.vocabulary.restore(state)


def require_growing(model):
    """Raises ValueError for a model whose classes cannot get other names while it trains."""
    if model.distribute_strategy.num_replicas_in_sync > 1 or steps_are_remote(model):
        raise ValueError("A GrowingVocabulary trains on one device: make the model outside of a strategy.")
    if not isinstance(model.head, DenseHead):
        kind = type(model.head).__name__
        raise ValueError(f"A GrowingVocabulary needs a tfxc.layers.DenseHead, but the head is of {kind}.")
    if not model.built:
        raise ValueError("A GrowingVocabulary needs a built model: begin the encoder with a keras.Input.")
    num_classes = model.head.num_classes
    short = [own.name for own in embeddings_of(model.encoder) if own.embeddings.shape[0] == num_classes]
    if short or tied_row_offset(model.head) == 0:
        raise ValueError(
            f"The inputs hold a name's id + 1, and 0 for padding, so tables of names need {num_classes + 1} "
            f"rows, and a tied head row_offset=1: {short or 'the head'} would read the rows of other names. "
            "Give a table of anything else another number of rows."
        )
    given = [part for part in layers_of(model.sampler) if getattr(part, "counts", None) is not None]
    if given:
        raise ValueError(
            f"{type(given[0]).__name__} has counts of classes, but which names the classes of a "
            "GrowingVocabulary will have is not known: leave out counts, and it counts while it trains."
        )


def _require_own(model):
    """Raises ValueError where another living model was trained with the vocabulary."""
    vocabulary = model.vocabulary
    if vocabulary.owner() not in (None, model):
        gc.collect()  # it may be a model that nobody holds any more, as where a cell of a notebook runs again
    if vocabulary.owner() not in (None, model):
        raise ValueError("This GrowingVocabulary belongs to another model: make one for each model.")
    vocabulary.owner = weakref.ref(model)


def _require_names(arguments):
    given = arguments.get("x")
    if not isinstance(given, tf.data.Dataset):
        kind = "an array" if tf.is_tensor(given) else type(given).__name__  # texts are tensors by now
        raise ValueError(
            f"With a GrowingVocabulary fit takes a tf.data.Dataset of batches of names, but got {kind}: "
            "make one, for example by tf.data.Dataset.from_generator."
        )
    for callback in arguments["callbacks"]:
        if getattr(callback, "restore_best_weights", False):
            name = f"{type(callback).__name__}(restore_best_weights=True)"
            raise ValueError(f"{name} would put back rows of names that have gone since: leave it out.")


def begin_anew(model, rows):
    """Has class ids [R], which get other names with this step, begin anew.

    A spare row stays as it was built. Another becomes one such as a random initializer built the table of.
    (From the mean of all rows, new names would rank alike for long.) Biases, and tables built of given
    vectors, get the mean of rows all over the table. Slots of the optimizer and counts become 0.
    """
    vocabulary = model.vocabulary
    if vocabulary is None:
        raise ValueError("The batch names new classes: give the model its GrowingVocabulary as class_names.")
    used = tf.boolean_mask(rows, rows < vocabulary.num_given)
    vocabulary.num_given.assign(tf.reduce_max(tf.concat([vocabulary.num_given[tf.newaxis], rows + 1], 0)))
    with tf.control_dependencies([rows]):  # at the end of data Keras begins a step without data
        vocabulary.num_batches.assign_add(1)
    initializers = _initializers(model)
    for table in _tables(model):
        weight, places = tf_variable(table.weight), used + table.row_offset
        built = some_rows(initializers.get(id(weight)), weight.shape, _NUM_FRESH)
        if built is None:
            spread = tf.range(_NUM_FRESH, dtype=tf.int64) * model.head.num_classes // _NUM_FRESH
            sample = tf.gather(weight, spread + table.row_offset)
            fresh = tf.reduce_mean(tf.cast(sample, tf.float32), 0)
        else:
            fresh = tf.gather(built, used % _NUM_FRESH)
        _fill(weight, places, fresh)
        for name, slot in slots_of(model.optimizer, table.weight).items():
            if slot.shape[:1] == weight.shape[:1]:
                _fill(slot, places, fresh if name in AVERAGES else tf.zeros(slot.shape[1:]))
    for part in layers_of(model.sampler):
        if isinstance(part, RunningCounts):
            part.forget(used)


def _fill(variable, places, value):
    shape = tf.concat([tf.shape(places), variable.shape[1:]], 0)
    rows = tf.broadcast_to(tf.cast(value, variable.dtype), shape)
    variable.scatter_update(tf.IndexedSlices(rows, places))


def _tables(model):
    """The ``ClassRows`` of all tables with a row for each class: the head's, and the encoder's of names."""
    tables = model.head.class_rows()
    for layer in layers_of(model.encoder):
        if hasattr(layer, "class_rows"):
            tables += [own for own in layer.class_rows() if own.filled != AS_BUILT]
        elif is_embedding(layer) and layer.embeddings.shape[0] == model.head.num_classes + 1:
            tables.append(ClassRows(layer.embeddings, 1, BY_MEAN))
    return list({id(tf_variable(own.weight)): own for own in reversed(tables)}.values())


def _initializers(model):
    """The initializers of tables of class vectors and of embeddings, by the ids of their variables."""
    layers = embeddings_of(model.encoder)
    made = [(own.embeddings, getattr(own, "embeddings_initializer", None)) for own in layers]
    if model.head.tied_to is None:
        made.append((model.head.table, model.head.embeddings_initializer))
    return {id(tf_variable(weight)): initializer for weight, initializer in made}
