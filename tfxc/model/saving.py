"""Where Keras writes a model that it saves, so that a write that is cut off leaves the earlier file whole."""

import contextlib
import os

from tfxc._keras import SAVES_TO_FOLDERS
from tfxc.atomic_write import atomic_write
from tfxc.model.on_servers import is_on_servers


def written_aside(filepath, overwrite=True, **kwargs):
    """A context that gives the path Keras is to write to: aside, if it writes one file on this machine.

    Args:
        filepath, overwrite, kwargs: what ``save`` or ``save_weights`` of a Keras model was given.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "model.keras")
        >>> with written_aside(path) as aside:
        ...     _ = pathlib.Path(aside).write_text("whole")
        >>> path.read_text()
        'whole'
    """
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


@contextlib.contextmanager
def with_what_differs():
    """Adds to what Keras says of weights that do not fit a model what users have changed mostly."""
    try:
        yield
    except ValueError as error:
        if "expected" not in str(error):
            raise
        raise ValueError(
            f"{error} The file is of a model of other parts. Of another sampler, or if the encoder alone is "
            "wanted: load_weights(..., skip_mismatch=True). Of other classes: load the whole model and call "
            "tfxc.change_classes(model, names)."
        ) from error


def refuse_what_does_not_load(model, filepath, save_format=None):
    """For ``save``: raises ValueError for a file that Keras would write, but not load again.

    That is a whole model as HDF5 or, by tf-keras, in a folder, or any in the shards of parameter servers.
    """
    refuse_shards(model, filepath, save_format or "keras")
    name = os.fspath(filepath)
    if _is_hdf5(filepath, save_format):
        raise ValueError(
            f"{name!r} would be a file of HDF5, which keeps too little of a model to load it: "
            'save to "model.keras", or the weights alone by save_weights("model.weights.h5").'
        )
    if SAVES_TO_FOLDERS and not name.endswith(".keras") and save_format in (None, "tf"):
        raise ValueError(
            f"{name!r} would be a folder in TensorFlow's format, from which a model of tfxc does not load: "
            'save to "model.keras"; to serve it call model.export.'
        )


def refuse_weights_that_do_not_load(model, filepath, save_format=None):
    """For ``save_weights``, as ``refuse_what_does_not_load``: tf-keras's older HDF5 has no bfloat16."""
    refuse_shards(model, filepath, save_format)
    name = os.fspath(filepath)
    is_older = (_is_hdf5(name, save_format) or name.endswith(".keras")) and not name.endswith(".weights.h5")
    if is_older and any(weight.dtype == "bfloat16" for weight in model.weights):
        raise ValueError(
            f"{name!r} would be a file of HDF5 from which no weight of bfloat16 loads: "
            'save_weights("model.weights.h5") writes one that does.'
        )


def refuse_shards(model, filepath, save_format=None):
    """Raises ValueError for a file of Keras's own format of a model whose tables lie in shards.

    It would load into as many shards alone, and never into a model on one machine.
    """
    own_format = os.fspath(filepath).endswith(".keras") or save_format == "keras"
    if (own_format or _is_hdf5(filepath, save_format)) and is_on_servers(model):
        raise ValueError(
            f"{os.fspath(filepath)!r} would hold the shards of parameter servers and load into nothing else. "
            "Keep the model by tfxc.cluster.Checkpoint(model, folder).save(epoch), which one machine reads, "
            "too; to serve it call model.export."
        )


def _is_hdf5(filepath, save_format):
    return os.fspath(filepath).endswith((".h5", ".hdf5")) or save_format in ("h5", "hdf5")
