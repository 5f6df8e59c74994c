"""The signature of a SavedModel: its inputs by name, their defaults, and the function that serves them."""

import inspect
import keyword
import re
import warnings

import tensorflow as tf

from tfxc._keras.layers import is_declared_as
from tfxc.arguments import positive_int, require_count
from tfxc.layers.dense_head import tied_row_offset
from tfxc.layers.mach_head import num_probes_of
from tfxc.ops.library import stock_ops
from tfxc.search.candidates import ranked_best

_K = "k"
_EXCLUDE = "exclude"
_ALLOW = "allow"
_NUM_PROBES = "num_probes"
_OPTIONS = {_K, _EXCLUDE, _ALLOW, _NUM_PROBES}
_UNFIT = re.compile(r"[^A-Za-z0-9_]")  # what a SavedModel does not take in the name of an input


def query_function(model, attributes):
    """The function of an encoder's inputs to queries [B, D], of a model that is exported with attributes."""
    wanted = () if attributes is None else attributes.defaults()
    specs, structure = encoder_inputs(model.encoder, _OPTIONS.union(wanted))

    def encode(*inputs):
        with stock_ops():
            return model.queries(as_declared(structure, inputs))

    return named_function(encode, specs)


def serving_function(module, head, k, index, strings, attributes):
    """The function of all inputs, those with a default last; see ``ExtremeClassifier.export``.

    The ``tf.Module`` is what is exported, with ``encode``, as ``query_function`` makes it, and with ``names``
    and ``class_ids`` where these are served. What ranks, of the index and the attributes, is put into it.
    """
    wanted = {} if attributes is None else attributes.defaults()
    specs = list(module.encode.input_signature)
    names = [spec.name for spec in specs]
    ids_of = getattr(module, "class_ids", None)
    histories = {} if ids_of is None else _histories(specs, strings)
    for place, name in enumerate(names):
        if name in histories:
            specs[place] = tf.TensorSpec([None, None], tf.string, name)
    row_offset = tied_row_offset(head) or 1
    ids_dtype = tf.int32 if ids_of is None else tf.string
    # Tensors as defaults become defaults of the signature, which TensorFlow Serving fills in.
    none = tf.constant([], ids_dtype, shape=[1, 0])
    k = _default_count(k, _K, head.num_classes)
    defaults = {_K: k, _EXCLUDE: none, _ALLOW: none}
    if index is None:
        ranked, num_probes = head, num_probes_of(head)
    else:
        ranked, num_probes = index.for_serving(attributes), index.num_probes
        module.columns = ranked.columns
    module.attributes = attributes if index is None else ranked.attributes
    if num_probes is not None:
        defaults[_NUM_PROBES] = _default_count(num_probes, _NUM_PROBES, tf.int32.max)
    shapes = {_K: [], _EXCLUDE: [None, None], _ALLOW: [None, None], _NUM_PROBES: []}
    defaults |= wanted
    shapes |= dict.fromkeys(wanted, [None, None])
    specs += [tf.TensorSpec(shapes[name], value.dtype, name) for name, value in defaults.items()]

    def serve(*args):
        # Where TensorFlow runs functions eagerly, nobody else fills in the defaults.
        args += tuple(defaults.values())[len(args) - len(specs) + len(defaults) :]
        inputs, options = list(args[: len(names)]), dict(zip(defaults, args[len(names) :], strict=True))
        exclude, allow = options[_EXCLUDE], options[_ALLOW]
        if ids_of is not None:
            exclude, allow = ids_of.of(exclude), ids_of.of(allow)
        for place, name in enumerate(names):
            if name in histories:
                ids = ids_of.histories(inputs[place], histories[name].shape[1], row_offset)
                inputs[place] = tf.cast(ids, histories[name].dtype)
        query = module.encode(*inputs)
        with stock_ops():
            options |= {_EXCLUDE: exclude, _ALLOW: allow}
            if index is None:
                scores, ids = ranked.top_k(query, **options, attributes=attributes)
            else:
                scores, ids = ranked_best(head, ranked, query, **options)
        out = {"ids": ids, "scores": scores}
        return out | ({"names": module.names.of(ids)} if hasattr(module, "names") else {})

    return named_function(serve, specs, defaults)


def with_defaults(serve):
    """A function of the encoder's inputs alone: only these have a row for each example."""
    parameters = inspect.signature(serve.python_function).parameters
    empty = inspect.Parameter.empty
    specs = [spec for spec in serve.input_signature if parameters[spec.name].default is empty]
    return named_function(lambda *inputs: serve(*inputs), specs)


def named_function(function, specs, defaults=None):
    """A ``tf.function`` of positional arguments that have the names of their ``tf.TensorSpec``.

    ``defaults`` is None, or a dict, name -> tensor, for the last of them.
    """
    given, kind = defaults or {}, inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [(spec.name, given.get(spec.name, inspect.Parameter.empty)) for spec in specs]
    parameters = [inspect.Parameter(name, kind, default=default) for name, default in named]
    function.__signature__ = inspect.Signature(parameters)
    return tf.function(function, input_signature=specs, autograph=False)


def _default_count(value, name, most):
    """A count of Python, NumPy or TensorFlow as int32. Raises ValueError where ``predict`` would, too."""
    require_count(value, name)
    return tf.constant(min(positive_int(int(value), name), most), tf.int32)


def _histories(specs, strings):
    """The inputs that are histories of class names, by name."""
    integers = [spec for spec in specs if spec.dtype in (tf.int32, tf.int64)]
    could_be = {spec.name: spec for spec in integers if spec.shape.rank == 2}
    named = could_be if strings is True else (strings,) if isinstance(strings, str) else strings
    if strings is True and len(could_be) > 1:
        raise ValueError(
            f"The inputs {list(could_be)} could all be histories of class names: name those that are, as "
            f"strings=({next(iter(could_be))!r},), or strings=() for none."
        )
    if strings is True and any(spec.shape[1] == 1 for spec in could_be.values()):
        name = next(iter(could_be))
        raise ValueError(
            f"The input {name!r} of one integer may be an id of another kind: export with strings=(), or, if "
            f"it is a history of class names, with strings=({name!r},)."
        )
    unfit = [name for name in named if name not in could_be]
    if unfit:
        raise ValueError(
            f"strings={strings!r} names no input of integers [B, T]: those inputs are {list(could_be)}."
        )
    lengths = [could_be[name].shape[1] for name in named]
    for spec in specs:
        is_other = spec.name not in named and spec.shape.rank >= 2
        if is_other and any(length != 1 and length == spec.shape[1] for length in lengths):
            raise ValueError(
                f"The input {spec.name!r} {spec.shape} goes with the history position by position, but names "
                "that are no class are left out of that alone: export with strings=False."
            )
    return {name: could_be[name] for name in named}


def encoder_inputs(encoder, options=()):
    """Names, specs (of any batch size) and structure of the encoder's inputs.

    Warns of a name that holds other characters than an argument may, and gives a safe one in its place.
    Raises ValueError if the inputs are not known, or cannot be the arguments of a served function beside its
    ``options``, the names of the other inputs.
    """
    inputs = getattr(encoder, "inputs", None)
    structure = getattr(encoder, "input", inputs[0] if inputs else None)  # Keras 3's Sequential has no input
    if structure is None:
        raise ValueError(
            "The encoder's inputs are not known: export needs a functional or Sequential encoder that "
            "starts with keras.Input(...). Wrap a subclassed one: keras.Model(inputs, encoder(inputs))."
        )
    is_dict = isinstance(structure, dict)
    nested = [name for name, part in structure.items() if tf.nest.is_nested(part)] if is_dict else []
    if nested:
        raise ValueError(
            f"Encoder inputs {nested} hold several inputs each, but a served function takes each by a name: "
            "build the encoder of a dict without others in it, keras.Model({name: input, ...}, query)."
        )
    tensors = tf.nest.flatten(structure)
    given = sorted(structure) if is_dict else [t.name.split(":")[0] for t in tensors]
    keys = [_argument(name) for name in given]
    folded = [key.lower() for key in keys]  # a SavedModel does not tell user from User
    if {name.lower() for name in options} & set(folded):
        raise ValueError(
            f"Encoder inputs {given} clash with the signature's own inputs {sorted(options)}: rename."
        )
    reserved, pairs = {"self", *keyword.kwlist}, list(zip(given, keys, strict=True))
    unfit = [name for name, key in pairs if key in reserved or folded.count(key.lower()) > 1]
    if unfit:
        raise ValueError(
            f"Encoder inputs {unfit} cannot be arguments of a served function: a name is no keyword, and "
            'differs from others by more than case and signs. Rename them, keras.Input(..., name="user_id").'
        )
    renamed = {name: key for name, key in pairs if name != key}
    if renamed:
        warnings.warn(
            "A SavedModel takes ASCII letters, digits and underscores in the name of an input, a letter "
            f"first. Requests give these encoder inputs by other names: {renamed}.",
            stacklevel=2,
        )
    declared = list(zip(keys, tensors, strict=True))
    ragged = [key for key, tensor in declared if is_declared_as(tensor, "ragged")]
    if ragged:  # rows come padded, and the encoder would read the padding as items
        raise ValueError(
            f"Encoder inputs {ragged} are ragged, but a served function takes dense ones: build the encoder "
            "with a padded input, keras.Input((None,)), and mask_zero=True in the Embedding that reads it."
        )
    return [tf.TensorSpec([None, *own.shape[1:]], own.dtype, key) for key, own in declared], structure


def _argument(name):
    """The name of an input with underscores for all that a SavedModel does not take there."""
    safe = _UNFIT.sub("_", name)
    return safe if safe[:1].isalpha() else f"input_{safe.lstrip('_')}"


def as_declared(structure, inputs):
    """Dense inputs as the encoder takes them: those that are declared sparse as sparse tensors."""

    def declared(own, given):
        return tf.sparse.from_dense(given) if is_declared_as(own, "sparse") else given

    return tf.nest.map_structure(declared, structure, tf.nest.pack_sequence_as(structure, inputs))
