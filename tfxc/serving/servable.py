"""What a SavedModel is written of: the function that serves, and all that it reads."""

import contextlib
import json
import os
import tempfile
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.saved_model.save_context import save_context

from tfxc.cluster.exported import add_values
from tfxc.infinity import infinity_is_meant
from tfxc.serving.class_names import ClassIds, ClassNames, write_names
from tfxc.serving.exported_folder import EXTRA, RECORD_FILE, exported_folder, named_if_unwritten
from tfxc.serving.record import with_weights
from tfxc.serving.signature import serving_function, with_defaults


class Servable(NamedTuple):
    """The parts of an export, whose arguments are as of ``ExtremeClassifier.export``."""

    encode: Any  # a tf.function of the encoder's inputs, dense and by their names, to queries [B, D]
    head: Any  # ranks them, and gives the index their effective queries
    k: int
    index: Any
    strings: Any
    attributes: Any
    class_names: Any  # None or the L names
    weights: list  # the variables that may be read; those that are not stay out of the file
    tables: list  # what else the encoder reads, such as lookup tables
    record: dict  # as of record_of

    @property
    def takes_names(self):
        """Whether requests hold names; strings=() takes those of exclude and allow alone."""
        return self.strings not in (False, None)

    def module(self, names_file):
        """A module of the function ``serve`` and all that it reads; names to look up go to a file, too."""
        module = tf.Module()
        module.encode = self.encode
        if self.class_names is not None:
            module.names = ClassNames(self.class_names)
        if self.takes_names:
            module.class_ids = ClassIds(self.class_names, names_file)
        module.serve = serving_function(module, self.head, self.k, self.index, self.strings, self.attributes)
        # Only what serve reads is kept. With an index that is no table of the head, unless the encoder shares
        # it. An update reads all of the index.
        of_index = [] if self.index is None else self.index.stored
        module.kept = variables_read(module.serve, self.weights + of_index, of_index)
        module.tables = self.tables
        return module

    def write(self, path, elsewhere=()):
        """Writes a SavedModel, which takes its place when it is whole, and returns the function ``serve``.

        ``elsewhere`` is what ``tfxc.cluster.exported.on_one_machine`` returns.
        """
        with traced(), exported_folder(path) as aside, tempfile.TemporaryDirectory() as scratch:
            with tf.device(None):  # a coordinator's default names a machine of its cluster
                module = self.module(os.path.join(scratch, "names.txt"))
                signatures = {"serving_default": module.serve, "with_defaults": with_defaults(module.serve)}
                with named_if_unwritten(path):
                    tf.saved_model.save(module, aside, signatures=signatures)
            with named_if_unwritten(path):
                if elsewhere:
                    add_values(aside, module.kept, elsewhere)
                if self.class_names is not None:
                    extra = os.path.join(aside, EXTRA)
                    os.makedirs(extra, exist_ok=True)
                    write_names(self.class_names, extra)
                    record = with_weights(self.record, module.kept, self.head, self.k, self.index)
                    with open(os.path.join(extra, RECORD_FILE), "w", encoding="utf-8") as file:
                        json.dump(record, file)
        return module.serve


@contextlib.contextmanager
def traced():
    """Has TensorFlow trace functions, also where it runs them eagerly, and without ``enable_check_numerics``.

    A file holds graphs, and no checks of a user's debugging: -inf is the score of no class.
    """
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        with infinity_is_meant():
            yield
    finally:
        tf.config.run_functions_eagerly(eagerly)


def variables_read(function, weights, others=()):
    """The variables that a function reads: ``weights``, and those that no list holds; and ``others``."""
    with save_context(tf.saved_model.SaveOptions()):  # TensorFlow saves this trace, else it would trace again
        graph = function.get_concrete_function().graph
    captured = {id(tensor) for tensor, _ in graph.captures} | {id(weight.handle) for weight in others}
    weights = [weight for weight in weights if id(weight.handle) in captured]
    unlisted = captured - {id(weight.handle) for weight in weights}
    return weights + [variable for variable in graph.variables if id(variable.handle) in unlisted]
