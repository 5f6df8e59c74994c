"""A callback that surrounds a call of ``fit`` and may change its arguments."""

import contextlib
from typing import Any

from tfxc._keras import keras


class FitCallback(keras.callbacks.Callback):
    """A Keras callback that also runs before ``ExtremeClassifier.fit`` starts and after it has ended.

    ``fit`` enters the ``during_fit`` of each such callback, in the order of the callbacks, around Keras's own
    ``fit``, and leaves them in reverse order, also when training fails. ``BackupAndRestore`` and
    ``HardNegativeMining`` are such callbacks. Other models call the hooks of Keras alone.

    Example:
        >>> class Shortened(FitCallback):
        ...     '''Trains on the first rows only, and tells when the training has ended.'''
        ...
        ...     @contextlib.contextmanager
        ...     def during_fit(self, model, arguments):
        ...         arguments["x"], arguments["y"] = arguments["x"][:8], arguments["y"][:8]
        ...         try:
        ...             yield
        ...         finally:
        ...             print("stopped at step", int(model.optimizer.iterations.numpy()))
        >>> encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        >>> model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(50))
        >>> model.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.SoftmaxCrossentropy())
        >>> x, y = np.zeros([16, 4], np.float32), np.arange(16)
        >>> history = model.fit(x, y, batch_size=4, callbacks=[Shortened()], verbose=0)
        stopped at step 2
    """

    def during_fit(
        self, model: keras.Model, arguments: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which ``fit`` runs; by default one that does nothing.

        The model is compiled, and built unless only its first batch tells the width of its encoder's output.
        ``arguments`` are those of ``fit`` by name, ``callbacks`` as a list. The context may change them when
        it is entered: Keras gets what the dict holds then.
        """
        return contextlib.nullcontext()
