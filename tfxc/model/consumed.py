"""A model whose weights another model has taken over: nothing can be done with what is left of it."""

_USES = (
    *("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"),
    *("call", "rank", "queries", "examples"),
    *("save", "save_weights", "load_weights", "export", "export_item_encoder"),
    *("compile", "get_weights", "set_weights"),
    "_trackable_children",  # tf.train.Checkpoint asks for them
)


def consume(model):
    """Makes each use of a model raise a ValueError from here on.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(3))
        >>> consume(model)
        >>> model.save("model.keras")
        Traceback (most recent call last):
        ...
        ValueError: change_classes consumed this model; use what it returned: model = ...
    """

    def refuse(*args, **kwargs):
        refuse_consumed(model)

    model.is_consumed = True
    for name in _USES:
        setattr(model, name, refuse)


def refuse_consumed(model):
    """Raises ValueError for a model that ``change_classes`` has consumed.

    Example:
        >>> refuse_consumed(keras.Sequential())  # this one is not
    """
    if getattr(model, "is_consumed", False):
        raise ValueError(
            "change_classes consumed this model; use what it returned: "
            "model = tfxc.change_classes(model, ...)."
        )
