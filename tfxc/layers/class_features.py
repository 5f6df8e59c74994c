"""Features of classes: as the user gives them, in variables that graphs read, and in a file."""

import ast
import functools
import os

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfxc._keras.layers import inputs_read_by
from tfxc.arguments import lists_as_tensors

_BLOCK_ROWS = 4096  # elements of a dataset that are read at once
_FILE, _STRUCTURE = "features", "structure"


class ClassFeatures:
    """Features of L classes, or none yet: what an item encoder computes class vectors from.

    They lie in variables in the memory of the host, which functions that were traced read anew. Keras does
    not see the variables: features are data, not weights.
    """

    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.variables = None  # nested as the features are

    @property
    def tensors(self):
        """The features as tensors [L, ...] in a nest of their own; None where there are none."""
        if self.variables is None:
            return None
        return tf.nest.map_structure(lambda part: part.read_value(), self.variables)

    def set(self, features):
        """Takes the features of all classes, in the place of others if there are some.

        Raises ValueError for another number of classes, shapes other than before, or NaN and infinity.
        """
        features = as_tensors(features)
        if num_rows(features) != self.num_classes:
            raise ValueError(f"Got features of {num_rows(features)} classes for {self.num_classes}.")
        _require_finite(features, "Got features")
        if self.variables is None:
            # TensorFlow's own class: no strategy's scope copies the features or puts them elsewhere.
            variable = functools.partial(ResourceVariable, trainable=False)
            with tf.device("CPU"):
                self.variables = tf.nest.map_structure(variable, features)
            return
        if _kinds(features) != _kinds(self.variables):
            raise ValueError(
                f"Got features {_kinds(features)}, but steps that were traced read {_kinds(self.variables)}. "
                "Make an EncodedHead of the new features, and give it the weights of this one."
            )
        for own, part in zip(tf.nest.flatten(self.variables), tf.nest.flatten(features), strict=True):
            own.assign(tf.cast(part, own.dtype))

    def rows(self, class_ids, item_encoder=None):
        """The features of class ids int32 [n], of which the item encoder's inputs alone are read."""
        # A gather from the variable itself would have every later whole read copy it.
        rows_of = lambda part: tf.gather(part.read_value(), class_ids)  # noqa: E731
        return tf.nest.map_structure(rows_of, inputs_read_by(item_encoder, self.variables))

    def of_other_classes(self, old_ids, given):
        """The features of other classes, as tensors; ``old_ids`` int64 [L'] are present ids, -1 if new.

        ``given`` is None, or a function of the ids of new classes to their features. Raises ValueError if new
        classes have no features, or features that are not finite.
        """
        kept = tf.constant(np.maximum(old_ids, 0), tf.int32)
        features, added = self.rows(kept), np.flatnonzero(old_ids < 0)
        if not len(added):
            return features
        if given is None:
            raise ValueError(
                "An EncodedHead computes the vectors of new classes: pass change_classes new_rows=, a "
                "function of a list of names to their features, nested as those of the head are."
            )
        of_added = as_tensors(given(added))
        if _structure(of_added) != _structure(features) or num_rows(of_added) != len(added):
            raise ValueError(
                f"new_rows was asked for the features of {len(added)} classes as arrays, nested like "
                f"{_structure(features)}, but returned {given(added)!r}."
            )
        _require_finite(of_added, "new_rows returned features")

        def with_added(part, own):
            return tf.tensor_scatter_nd_update(part, added[:, np.newaxis], tf.cast(own, part.dtype))

        return tf.nest.map_structure(with_added, features, of_added)

    def write(self, folder):
        """Writes the features, if there are any, into a folder, in TensorFlow's format for tensors."""
        if self.variables is None:
            return
        parts = {str(place): part for place, part in enumerate(tf.nest.flatten(self.tensors))}
        parts[_STRUCTURE] = tf.constant(repr(_structure(self.variables)))
        tf.raw_ops.SaveV2(
            prefix=os.path.join(folder, _FILE),
            tensor_names=list(parts),
            shape_and_slices=[""] * len(parts),
            tensors=list(parts.values()),
        )

    def read(self, folder):
        """Reads features that ``write`` has written; returns whether there are any."""
        path = os.path.join(folder, _FILE)
        if not os.path.exists(path + ".index"):
            return False
        reader = tf.train.load_checkpoint(path)
        structure = ast.literal_eval(reader.get_tensor(_STRUCTURE).decode())
        self.set(tf.nest.map_structure(lambda place: reader.get_tensor(str(place)), structure))
        return True


def as_tensors(features):
    """Features as tensors [L, ...] in the memory of the host."""
    with tf.device("CPU"):
        if isinstance(features, tf.data.Dataset):
            try:
                blocks, cause = list(features.batch(_BLOCK_ROWS)), None
            except tf.errors.InvalidArgumentError as error:  # elements of several shapes
                blocks, cause = [], error
            if not blocks:
                raise ValueError(
                    "The dataset of features needs an element for each class, all of one shape, but is empty "
                    "or its shapes differ. If it is batched, pass features.unbatch()."
                ) from cause
            return _plain(tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *blocks))
        try:
            return _plain(tf.nest.map_structure(tf.convert_to_tensor, lists_as_tensors(features)))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Features that came as {type(features).__name__} cannot be one array: "
                f"{str(error).partition(chr(10))[0]} Pass arrays of numbers or texts, with as many for each "
                "class, or for a data frame its columns: {name: frame[name].to_numpy() for name in frame}."
            ) from error


def num_rows(features):
    """The number of classes that features are of; ValueError if parts have different numbers of rows."""
    shapes = [tuple(part.shape) for part in tf.nest.flatten(features)]
    sizes = {shape[0] if shape else 0 for shape in shapes}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"The features must have one row for each class in all parts, but have {shapes}.")
    return sizes.pop()


def _require_finite(features, what):
    """Raises ValueError for floats among features that are not finite, and names a class."""
    for part in tf.nest.flatten(features):
        # A sum that is finite has finite terms, and needs no memory.
        if part.dtype.is_floating and not tf.math.is_finite(tf.reduce_sum(part)):
            bad = tf.where(~tf.math.is_finite(part))
            if len(bad):
                raise ValueError(f"{what} that are not finite, NaN or infinity in row {int(bad[0, 0])}.")


def _plain(nest):
    """A nest of Python's own dicts, lists and tuples, which ``repr`` writes as they are."""
    if isinstance(nest, dict):
        return {name: _plain(part) for name, part in nest.items()}
    if isinstance(nest, list | tuple):
        return (tuple if isinstance(nest, tuple) else list)(map(_plain, nest))
    return nest


def _structure(features):
    """The nest of the features, with numbers for the parts."""
    return tf.nest.pack_sequence_as(features, list(range(len(tf.nest.flatten(features)))))


def _kinds(features):
    """The nest of the features, with the shape and the kind of number for the parts."""
    return tf.nest.map_structure(
        lambda part: f"{'float' if part.dtype.is_floating else part.dtype.name}{part.shape.as_list()}",
        features,
    )
