"""What layers have adapted to, which is neither a weight nor part of a config."""

from tfxc._keras import keras

LOOKUPS = keras.layers.StringLookup, keras.layers.IntegerLookup


def copy_adapted(source, layer):
    """Gives a layer the vocabulary, or the boundaries, that another of its kind has adapted to.

    Example:
        >>> source, layer = keras.layers.StringLookup(), keras.layers.StringLookup()
        >>> source.adapt(["tea", "milk", "tea"])
        >>> copy_adapted(source, layer)
        >>> layer.get_vocabulary()[1] == "tea"
        True
    """
    if isinstance(layer, LOOKUPS):
        names = source.get_vocabulary()
        weights = getattr(source, "idf_weights_const", None)
        layer.set_vocabulary(names, None if weights is None else weights[: len(names)])
    elif isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = source.bin_boundaries
