"""A model whose weights another one has taken over: nothing can be done with what is left of it."""

_USES = (
    *("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"),
    *("call", "rank", "queries", "examples"),
    *("save", "save_weights", "load_weights", "export", "export_item_encoder"),
    *("compile", "get_weights", "set_weights"),
    "_trackable_children",  # tf.train.Checkpoint asks for them
)


def use_up(model):
    """Has each use of a model raise a ValueError from here on.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(3))
        >>> use_up(model)
        >>> model.save("model.keras")
        Traceback (most recent call last):
        ...
        ValueError: This model was used up by change_classes; use what it returned: model = ...
    """

    def refuse(*args, **kwargs):
        refuse_used_up(model)

    model.is_used_up = True
    for name in _USES:
        setattr(model, name, refuse)


def refuse_used_up(model):
    """Raises ValueError for a model that is used up.

    Example:
        >>> refuse_used_up(keras.Sequential())  # this one is not
    """
    if getattr(model, "is_used_up", False):
        raise ValueError(
            "This model was used up by change_classes; use what it returned: "
            "model = tfxc.change_classes(model, ...)."
        )
