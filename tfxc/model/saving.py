"""How Keras saves a classifier and loads it again."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from tfxc._keras import SAVES_TO_FOLDERS, keras
from tfxc._keras.layers import Untracked
from tfxc._keras.optimizers import variables_of_optimizer
from tfxc._keras.training import build_slots, is_compiled
from tfxc._keras.weights import how_weights_are_made, make_weights, tf_variable, unreadable_weight, weights_of
from tfxc.atomic_write import atomic_write
from tfxc.cluster.place import require_one_machine
from tfxc.data.growing_vocabulary import GrowingVocabulary
from tfxc.data.names import Names
from tfxc.data.warn import warn
from tfxc.layers.adapted import follow_weights
from tfxc.layers.class_cache import expire_class_vectors
from tfxc.model.checks import refuse_consumed
from tfxc.model.fresh_cache import expire_averaged
from tfxc.model.growing import require_growing
from tfxc.model.memory import warn_of_large_save
from tfxc.serving.class_names import names_array, read_names, write_names
from tfxc.spare_classes import spare_from

_VOCABULARY = "growing_vocabulary.json"


class SavingMixin:
    """What Keras asks of a model that it saves or loads. To stand before ``keras.Model`` among the bases."""

    def get_config(self):
        shared = self.head.shared_layers(self.encoder)
        parts = {"encoder": self.encoder, "head": self.head, "sampler": self.sampler}
        parts = {name: keras.saving.serialize_keras_object(part) for name, part in parts.items()}
        growing = {} if self.vocabulary is None else {"growing": self.vocabulary.get_config()}
        shared = {"shared_layers": shared} if shared else {}
        return {"name": self.name, "k": self.k, **parts, **shared, **growing}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        shared, growing = config.pop("shared_layers", None), config.pop("growing", None)
        if growing:
            config["class_names"] = GrowingVocabulary(**growing)
        for name in ("encoder", "head", "sampler"):
            config[name] = keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
        if shared:
            config["head"] = config["head"].share(config["encoder"], shared)
        return cls(**config)

    def get_build_config(self):
        """What Keras keeps of a model whose encoder does not tell its width before it is called."""
        made = how_weights_are_made(self.encoder, self._built_on.value)
        return {"query_dim": self.head.query_dim, **made} if self.built else None

    def build_from_config(self, config):
        self._built_on = Untracked(config.get("inputs"))
        make_weights(self.encoder, config)
        if self.encoder.built:
            self._build_parts(config["query_dim"])

    def _name_classes(self, class_names):
        """Takes the names over; raises ValueError for any that the model cannot have."""
        self._names = checked_names(class_names, self.head.num_classes)
        if self.vocabulary is not None:
            require_growing(self)
            spare_from(self.head, self.vocabulary.num_given)

    @property
    def class_names(self) -> Sequence[str] | Any:
        """The raw names of the classes in id order, or None. No config holds them: they may be millions."""
        return self._names.value if self.vocabulary is None else self.vocabulary.names

    @property
    def vocabulary(self) -> GrowingVocabulary | None:
        """The vocabulary whose names come and go while the model trains, or None where they are fixed."""
        names = self._names.value
        return names if isinstance(names, GrowingVocabulary) else None

    def save_assets(self, folder):
        """Keras calls this when it saves a model: writes the class names."""
        if self.vocabulary is not None:
            self.vocabulary.save(os.path.join(folder, _VOCABULARY))
        elif self.class_names is not None:
            write_names(self.class_names, folder)

    def load_assets(self, folder):
        """Keras calls this when it loads a model: reads the class names."""
        names = read_names(folder)
        if self.vocabulary is not None:
            self.vocabulary.restore(GrowingVocabulary.load(os.path.join(folder, _VOCABULARY)).state())
        elif names is not None:
            self._names = Untracked(names)

    def get_compile_config(self):
        """What Keras keeps of ``compile``; a built ``MultiOptimizer`` tells which part trains a weight."""
        if self.built and is_compiled(self):
            build_slots(self)
        config = super().get_compile_config()
        if config:  # the optimizer as it is: a name, which compile takes, too, tells no learning rate
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            build_slots(self)

    def save(self, filepath, overwrite=True, **kwargs):
        """As Keras's ``save``. A file is written aside and renamed: a kill leaves an earlier one whole.

        It warns first if that takes more than 4 GB of memory. ValueError for a file that could not be loaded.
        """
        refuse_consumed(self)
        refuse_unloadable(self, filepath, kwargs.get("save_format"), whole=True)
        warn_of_large_save(self)
        expire_averaged(self)
        with written_aside(filepath, overwrite, **kwargs) as path:
            super().save(path, overwrite=overwrite, **kwargs)

    def save_weights(self, filepath, overwrite=True, **kwargs):
        """As Keras's ``save_weights``, written aside like ``save``."""
        refuse_consumed(self)
        refuse_unloadable(self, filepath, kwargs.get("save_format"), whole=False)
        expire_averaged(self)
        with written_aside(filepath, overwrite, **kwargs) as path:
            super().save_weights(path, overwrite=overwrite, **kwargs)

    def load_weights(self, filepath, *args, **kwargs):
        """As Keras's ``load_weights``. Class vectors are computed anew from the head's features."""
        refuse_consumed(self)
        try:
            status = super().load_weights(filepath, *args, **kwargs)
        except ValueError as error:
            if "expected" not in str(error):
                raise
            raise ValueError(
                f"{error} The file is of a model with other parts. If the sampler differs, or for the "
                "encoder alone: load_weights(..., skip_mismatch=True). If the classes differ: load the whole "
                "model and call tfxc.change_classes(model, names)."
            ) from error
        expire_class_vectors(self.head)
        follow_weights(self)
        if self.vocabulary is not None and not len(self.vocabulary):
            warn(
                "The weights are loaded, but the rows have no names, which only model.save keeps with them: "
                "make the model with class_names=GrowingVocabulary.load(path), of vocabulary.save(path)."
            )
        return status

    def _state(self):
        """The variables of a file of Orbax: a dict, the name of a group -> list of ``tf.Variable``."""
        if self.built and is_compiled(self):
            build_slots(self)
        weights = weights_of(self)
        return {
            "trainable_variables": [tf_variable(own) for own in weights if own.trainable],
            "non_trainable_variables": [tf_variable(own) for own in weights if not own.trainable],
            "optimizer_variables": variables_of_optimizer(self.optimizer) if is_compiled(self) else [],
        }

    def get_state_tree(self, value_format="backend_tensor"):
        """Keras 3 calls this when it writes a file of Orbax. A variable goes by its place in a group.

        In a loaded model inner layers may have other paths, and Keras passes over what it does not find.
        """
        refuse_consumed(self)
        value_of = (lambda own: own.numpy()) if value_format == "numpy_array" else (lambda own: own)
        return {
            group: {str(place): value_of(own) for place, own in enumerate(variables)}
            for group, variables in self._state().items()
            if variables
        }

    def set_state_tree(self, state_tree):
        """Keras 3 calls this when it has read a file of Orbax; ValueError for one of other variables."""
        for group, variables in self._state().items():
            values = state_tree.get(group, {})
            if len(values) != len(variables) and (values or group != "optimizer_variables"):
                raise ValueError(
                    f"The file holds {len(values)} {group}, but the model {len(variables)}: load it into a "
                    "model made alike, called on one batch and compiled."
                )
            for place, value in values.items():
                variables[int(place)].assign(value)
        expire_class_vectors(self.head)
        follow_weights(self)

    @property
    def weights(self):
        refuse_consumed(self)
        return super().weights

    def _trackable_children(self, *args, **kwargs):
        refuse_consumed(self)
        return super()._trackable_children(*args, **kwargs)


def checked_names(class_names, num_classes):
    """The names of L classes as a model holds them: Keras would walk through ten million strings."""
    if class_names is None:
        return Untracked(None)
    if isinstance(class_names, GrowingVocabulary):
        if class_names.capacity != num_classes:
            differ = f"The vocabulary has {class_names.capacity} rows, but the head {num_classes} classes"
            raise ValueError(f"{differ}: make the head with vocabulary.capacity.")
        return Untracked(class_names)
    array = names_array(class_names, "class_names")
    if len(array) != num_classes:
        raise ValueError(f"Got {len(array)} class_names for a head of {num_classes} classes.")
    return Untracked(class_names if isinstance(class_names, Names) else array.to_pylist())


def written_aside(filepath, overwrite=True, **kwargs):
    """A context of the path for Keras to write to: aside, if it writes one file on this machine."""
    name = os.fspath(filepath)
    in_place = (
        not name.endswith((".keras", ".h5"))
        or "://" in name
        or os.path.isdir(name)
        or kwargs.get("zipped") is False
        or kwargs.get("max_shard_size") is not None
        or kwargs.get("save_format") == "tf"
        or (not overwrite and os.path.exists(name))  # Keras asks
    )
    return contextlib.nullcontext(filepath) if in_place else atomic_write(name)


def refuse_unloadable(model, filepath, save_format, whole):
    """Raises ValueError for a file that ``save`` (``whole``) or ``save_weights`` writes, but none reads."""
    name = os.fspath(filepath)
    is_keras = name.endswith(".keras")
    is_hdf5 = name.endswith((".h5", ".hdf5")) or save_format in ("h5", "hdf5")
    own_format = is_keras or is_hdf5 or save_format == "keras" or (whole and save_format is None)
    if own_format:
        require_one_machine(model, f"and {name!r} would load into nothing else")
    is_folder = SAVES_TO_FOLDERS and not is_keras and save_format in (None, "tf")
    if whole and (is_hdf5 or is_folder):
        kind = "file of HDF5" if is_hdf5 else "folder in TensorFlow's format"
        raise ValueError(
            f"{name!r} would be a {kind}, which keeps too little of a model to load it: save to "
            '"model.keras", or the weights alone by save_weights("model.weights.h5"); to serve it, export.'
        )
    if own_format and (weight := unreadable_weight(model)) is not None:
        raise ValueError(
            f"tf-keras would read {weight.name!r}, of bfloat16, from no file {name!r}: save by a "
            "tf.train.Checkpoint, or let tfxc.layers or tfxc.encoders make its table."
        )
    is_older = (is_hdf5 or is_keras) and not name.endswith(".weights.h5")
    if not whole and is_older and any(weight.dtype == "bfloat16" for weight in model.weights):
        raise ValueError(
            f"{name!r} would be a file of HDF5 from which no weight of bfloat16 loads: "
            'save_weights("model.weights.h5") writes one that does.'
        )
