"""Changes the list of classes of a trained model."""

import itertools
import tempfile
from collections.abc import Callable, Collection
from typing import Any, Literal

import tensorflow as tf

from tfxc._keras import keras, optimizers
from tfxc._keras.layers import layers_of, scope_of_own_classes
from tfxc._keras.training import build_slots, given_metrics, is_compiled
from tfxc._keras.weights import tf_variable, weights_of
from tfxc.catalogue.class_map import ClassMap
from tfxc.catalogue.item_layers import item_layers, lookups_of_head
from tfxc.catalogue.new_rows import MEAN, NewRows
from tfxc.catalogue.spool import Spool, blocks_of, refuse_other_holders
from tfxc.class_rows import ClassRows
from tfxc.cluster.place import require_one_machine
from tfxc.data.sequences import Sequences
from tfxc.layers.adapted import copy_adapted, follow_weights
from tfxc.model.checks import refuse_consumed
from tfxc.model.classifier import ExtremeClassifier
from tfxc.optimizers.slots import AVERAGES, slots_of


def change_classes(
    model: ExtremeClassifier,
    names: Collection,
    new_rows: Literal["mean", "similar"] | Sequences | Callable[[list[str]], Any] = MEAN,
) -> ExtremeClassifier:
    """Converts a trained model to another list of class names: adds new classes and removes retired ones.

    Classes are matched by name. A class that stays keeps everything that was learnt about it, also if its id
    changes: rows of the head and of item embeddings (shared with the head or not), biases, connections, slots
    of the optimizer, counts and the cells of a sampler's index. Lookup layers get the new names. Everything
    about a retired class is removed. The steps of the optimizer and the draws of the sampler continue; in
    Keras 3 those of random layers (dropout), too.

    ``change_classes`` consumes the given model: any later use of it, of its head, or of a table of items in
    its encoder raises a ValueError. The weights move through files in the folder for temporary files
    (``TMPDIR``), which take as much space as the model; the process takes a tenth more memory than that. If
    anything fails, the given model does not change.

    Args:
        model: a built ``ExtremeClassifier`` with class names, just trained, or read from a file or a
            checkpoint. Its encoder is a functional or Sequential model.
        names: the L' names in the order of the new ids: a list, ``vocabulary.names``, an array. To keep the
            ids of most classes, use the names of ``tfxc.data.Vocabulary.merge``.
        new_rows: the rule for the vector of a new class, whose optimizer slots are new. "mean": the mean of
            all classes that stay. ``Sequences`` in which it occurs: the mean of the classes near it, scaled
            to their mean length. "similar", for names with a meaning: a weighted mean of the eight classes
            whose names share most trigrams with its own (of at most 131,072 classes, drawn at random). Or a
            function from a list of n names to class vectors [n, D], for an ``EncodedHead`` to features; other
            tables then use the mean. ``UniformSparseHead`` gives a new class new connections.

    Returns:
        A model like the given one, compiled if that was.

    Raises:
        ValueError: for names that occur twice, are not a list, or of which the model knows none, or one in
            another spelling alone, such as "7" for "7.0"; a model without class names, not built, consumed,
            over several replicas or machines; another living model that holds weights which move; two layers
            of one name, of which one changes with the classes; an encoder that makes a column of each class
            name, unless only an ``EmbeddingBag`` reads it; a head whose classes cannot change (``MACHHead``
            unless all ids stay).
        TypeError: for an optimizer of unknown slots.
        OSError: if there is no space for the files.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(
        ...     encoder, tfxc.layers.DenseHead(3), class_names=["tea", "milk", "salt"])
        >>> model.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.SoftmaxCrossentropy())
        >>> history = model.fit(tf.random.normal([8, 8]), tf.zeros([8], tf.int32), verbose=0)
        >>> model = tfxc.change_classes(model, ["milk", "tea", "rum", "gin"])
        >>> model.predict(tf.random.normal([1, 8]), verbose=0)["ids"].shape, int(model.optimizer.iterations)
        ((1, 4), 1)
    """
    _check(model)
    classes = ClassMap(model.class_names, names)
    rule = NewRows(new_rows, classes)
    optimizer = getattr(model, "optimizer", None)  # None if it is not compiled
    if optimizer is not None:
        # Building restores the slots of a checkpoint that was read before.
        build_slots(model)
    head_rows = model.head.class_rows()
    items = item_layers(model.encoder, head_rows, model.class_names, classes)
    lookups = lookups_of_head(model.head, items, model.class_names, classes)
    config = {**_changed_config(model, items, lookups, classes), "class_names": names}
    compilation = None if optimizer is None else _changed_compilation(model, classes)
    old = _variables(model)
    samplers = [part for part in layers_of(model.sampler) if hasattr(part, "class_rows")]
    class_rows = [*(item.class_rows for item in items), *(part.class_rows() for part in samplers)]
    tables, averages = _tables(model, old, [*head_rows, *itertools.chain(*class_rows)])
    kept = set(map(id, map(tf_variable, weights_of(model.encoder)))) - {id(old[at]) for at in tables}
    refuse_other_holders(model, [own for own in old if id(own) not in kept])
    with tempfile.TemporaryDirectory(prefix="change_classes_") as folder:
        spool = Spool(folder, old, kept)
        try:
            spool.free()
            with scope_of_own_classes(_parts(model)):
                changed = type(model).from_config(config)
            if not changed.built:
                raise ValueError(
                    "The encoder's output shape is unknown before it has seen data: wrap it in keras.Model("
                    "inputs, encoder(inputs)), load its weights, and change the classes of that."
                )
            if compilation is not None:
                changed.compile(**compilation)
                _exclude_from_decay(model, changed)
                build_slots(changed)
            _copy_adapted(model, changed, {id(item.layer) for item in [*items, *lookups]})
            _carry(spool, old, tables, averages, changed, classes, rule)
            changed.head.classes_changed(model.head, classes.old_ids, rule.given)
            if changed.sampler is not None:
                changed.sampler.classes_changed(changed.head, classes.added)
        except BaseException:
            spool.restore()
            raise
    spool.seal()
    model.is_consumed = True
    return changed


def _variables(model):
    """The variables of a built model and its optimizer, in a fixed order."""
    optimizer = getattr(model, "optimizer", None)
    weights = [tf_variable(weight) for weight in weights_of(model)]
    return weights + ([] if optimizer is None else optimizers.variables_of_optimizer(optimizer))


def _tables(model, variables, class_rows):
    """``ClassRows`` by place, of weights and slots; by place of an average, the place of its weight."""
    optimizer = getattr(model, "optimizer", None)
    place = {id(variable): place for place, variable in enumerate(variables)}
    tables, averages = {}, {}
    for rows in class_rows:
        of_weight = place[id(tf_variable(rows.weight))]
        tables[of_weight] = rows
        slots = {} if optimizer is None else slots_of(optimizer, rows.weight)
        for name, slot in slots.items():
            if slot.shape[:1] == rows.weight.shape[:1]:
                tables[place[id(slot)]] = ClassRows(slot, rows.row_offset)
                if name in AVERAGES:
                    averages[place[id(slot)]] = of_weight
    if optimizer is not None:
        # Other variables may be as long as a bias.
        shapes = {tuple(rows.weight.shape) for rows in class_rows if len(rows.weight.shape) > 1}
        _refuse_unknown_slots(optimizer, model.trainable_variables, shapes)
    return tables, averages


def _refuse_unknown_slots(optimizer, trained, shapes):
    """Raises ValueError if the optimizer has a matrix of one of these shapes that is not a known slot."""
    weights = [own for own in trained if tuple(own.shape) in shapes]
    known = {id(slot) for own in weights for slot in slots_of(optimizer, own).values()}
    for own in optimizers.variables_of_optimizer(optimizer):
        if tuple(own.shape) in shapes and id(own) not in known:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {own.name} of the shape of a class table, "
                f"{tuple(own.shape)}, whose rows are unknown. Give it a method slots_of(variable) that "
                "returns a dict, name -> tf.Variable, of those with a row for each row of a weight."
            )


def _check(model):
    if not isinstance(model, ExtremeClassifier):
        raise ValueError(f"model must be an ExtremeClassifier, but got {type(model).__name__}.")
    refuse_consumed(model)
    if model.class_names is None:
        raise ValueError("The model has no class names: make it with class_names=names and load its weights.")
    if model.vocabulary is not None:
        raise ValueError("The classes of a GrowingVocabulary change while it trains: train on the new names.")
    if not model.built:
        raise ValueError("The model is not built, so there is nothing to convert: train or load it first.")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "The model has several replicas: save it, load it outside the strategy's scope, change it there."
        )
    require_one_machine(model, "where classes do not change")
    model.head.share(model.encoder)  # refuses a table of another encoder


def _changed_config(model, items, lookups, classes):
    config = model.get_config()
    config["sampler"] = _without_shapes(config["sampler"])
    # Layers within the head stay built, as only their build_config may tell their shapes.
    config["head"] = {key: value for key, value in config["head"].items() if key != "build_config"}
    by_name = _by_name(lookups, layers_of(model.head))
    config["head"]["config"] = _replaced(model.head.config_for(classes.old_ids), by_name)
    config["encoder"] = _replaced(config["encoder"], _by_name(items, layers_of(model.encoder)))
    return config


def _by_name(items, layers):
    """Returns the items by name, to find them in a config; ``layers`` are all layers in it."""
    for item in items:
        name, kind = item.layer.name, type(item.layer)
        if any(own.name == name and type(own) is kind and own is not item.layer for own in layers):
            raise ValueError(
                f"Two layers {kind.__name__} are called {name!r}, so tfxc cannot tell which one changes with "
                f"the classes: rename one when you make the model, {kind.__name__}(..., name=...)."
            )
    return {item.layer.name: item for item in items}


def _without_shapes(config):
    if isinstance(config, dict):
        return {key: _without_shapes(value) for key, value in config.items() if key != "build_config"}
    return [_without_shapes(part) for part in config] if isinstance(config, list) else config


def _replaced(config, items):
    """Returns a config in which the configs of some layers are replaced, at any depth."""
    if isinstance(config, dict):
        own = config.get("config")
        item = items.get(own.get("name")) if isinstance(own, dict) else None
        if item is not None and config.get("class_name") == type(item.layer).__name__:
            return {**config, "config": item.config}
        return {key: _replaced(value, items) for key, value in config.items()}
    return [_replaced(part, items) for part in config] if isinstance(config, list | tuple) else config


def _parts(model):
    """Returns all objects in a model and its compilation whose class may be a user's own."""
    parts = [*layers_of(model.encoder), *layers_of(model.head), model.sampler]
    parts += getattr(model.sampler, "samplers", [])
    if is_compiled(model):
        own = optimizers.parts_of(model.optimizer)
        parts += [*own, *map(optimizers.schedule_of, own)]
        parts += [model.classification_loss, *given_metrics(model)]
    return parts


def _changed_compilation(model, classes):
    """Returns the arguments of ``compile``, with new metrics where they depend on the classes."""

    def changed(metric):
        if not hasattr(metric, "config_for"):
            return metric
        return type(metric).from_config(metric.config_for(classes.old_ids))

    with scope_of_own_classes(_parts(model)):
        arguments = keras.saving.deserialize_keras_object(model.get_compile_config())
    for name in ("metrics", "weighted_metrics"):
        arguments[name] = tf.nest.map_structure(changed, arguments.get(name))
    return arguments


def _exclude_from_decay(model, changed):
    """Excludes the same weights from weight decay as before, which no config tells."""
    parts = (optimizers.parts_of(own.optimizer) for own in (model, changed))
    for before, part in zip(*parts, strict=True):
        places = optimizers.places_without_decay(before, model.trainable_variables)
        if places:
            part.exclude_from_weight_decay([changed.trainable_variables[place] for place in places])


def _copy_adapted(model, changed, except_for):
    """Copies what layers have adapted to if it is neither a weight nor part of a config."""
    # Encoder and head separately: a lookup that they share becomes two.
    for before, part in ((model.encoder, changed.encoder), (model.head, changed.head)):
        for source, layer in zip(layers_of(before), layers_of(part), strict=True):
            if id(source) not in except_for:
                copy_adapted(source, layer)


def _carry(spool, old, tables, averages, changed, classes, rule):
    new = _variables(changed)
    if len(new) != len(old):
        raise ValueError(
            f"The model and optimizer have {len(old)} variables, a new copy has {len(new)}: layers "
            "were frozen, or unfrozen, since the optimizer was made. Compile the model again, with a new one."
        )
    index = {id(tf_variable(weight)) for weight in (changed.sampler.weights if changed.sampler else [])}
    for place, (source, variable) in enumerate(zip(old, new, strict=True)):
        if place in tables:
            rows = tables[place]
            spool.copy(place, variable, classes.destinations(source.shape[0], rows.row_offset))
            rule.fill(rows._replace(weight=variable))
            if place in averages:  # so that averaging does not reset a new class
                _copy_rows(new[averages[place]], variable, classes.added + rows.row_offset)
        elif source.shape == variable.shape:
            spool.copy(place, variable)
        elif id(variable) not in index:  # classes_changed rebuilds an index
            raise ValueError(
                f"{variable.name} is {source.shape} for the old classes and {variable.shape} for the new, "
                "so tfxc cannot match its rows and classes. The layer that owns it must list it in "
                "class_rows(), and return its config from config_for(old_ids)."
            )
    follow_weights(changed)


def _copy_rows(source, variable, rows):
    start = 0
    for block in blocks_of(source, rows):
        where = rows[start : start + len(block)]
        variable.scatter_update(tf.IndexedSlices(tf.cast(block, variable.dtype), where))
        start += len(block)
