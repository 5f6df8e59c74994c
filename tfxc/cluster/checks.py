"""What works with a model on parameter servers; anything else is refused before it begins."""

import tensorflow as tf

from tfxc.cluster.placement import is_on_servers
from tfxc.data.batching import EpochOrder


def check_data(data):
    """Raises ValueError for a shuffled pipeline of ``tfxc.data``: a worker runs none of its Python."""
    steps = [data] if isinstance(data, tf.data.Dataset) else []
    while steps:
        step = steps.pop()
        if isinstance(getattr(step, "epoch_order", None), EpochOrder):
            raise ValueError(
                "A shuffled pipeline of tfxc.data asks Python for its order, which the workers of a cluster "
                "do not run. Make it with seed=None and shuffle it by TensorFlow: "
                "dataset.unbatch().shuffle(100_000).repeat().batch(128)."
            )
        steps.extend(step._inputs())


def require_one_machine(model, why):
    """Raises ValueError for a model whose tables lie on parameter servers; ``why`` ends the error."""
    if is_on_servers(model):
        raise ValueError(
            f"The model's tables lie on parameter servers, {why}. A tfxc.cluster.Checkpoint keeps them, and "
            "restores them also into a model that is built outside of the strategy's scope; to serve "
            "the model call model.export."
        )
