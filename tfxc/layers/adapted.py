"""The state that layers have adapted to data: neither a weight nor part of a config."""

from tfxc._keras import keras
from tfxc._keras.layers import layers_of

LOOKUPS = keras.layers.StringLookup, keras.layers.IntegerLookup


def copy_adapted(source, layer):
    """Gives a layer the vocabulary, or the boundaries, to which another of its kind has adapted."""
    if isinstance(layer, LOOKUPS):
        names = source.get_vocabulary()
        weights = getattr(source, "idf_weights_const", None)
        layer.set_vocabulary(names, None if weights is None else weights[: len(names)])
    elif isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = source.bin_boundaries


def follow_weights(model):
    """Has a model compute by its present weights, where something other than Keras has loaded them.

    A ``Normalization`` computes by copies of its weights, which functions that were traced hold.
    """
    layers = [layer for layer in layers_of(model) if isinstance(layer, keras.layers.Normalization)]
    for layer in layers:
        layer.finalize_state()
    if layers:
        model.train_function = model.test_function = model.predict_function = None
        model._ranking = None  # of an ExtremeClassifier
