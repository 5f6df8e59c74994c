"""Numbers training examples, so that a sampler can keep something for each example."""

import numpy as np
import tensorflow as tf

from tfxc.arguments import lists_as_tensors
from tfxc.data.batching import in_any_order

_NAME = "example_ids"


def with_example_ids(data):
    """Adds an input "example_ids": the number of each example, from 0.

    ``ExtremeClassifier`` passes it to samplers that keep something for each example (``HardNegatives``), and
    not to the encoder. Ids must stay the same over the epochs, so number a ``tf.data`` pipeline before it is
    shuffled. ``classification_dataset(example_ids=True)`` numbers its own points.

    Args:
        data: inputs as for ``fit``, an array [N, ...] or a dict of arrays; or a ``tf.data.Dataset`` of single
            examples ``(x, y)`` or ``(x, y, sample_weight)``, not yet shuffled, repeated or batched.

    Returns:
        A dict of arrays, or the dataset with a dict as x. An input without a name is called "inputs".

    Raises:
        ValueError: for arrays of different lengths, inputs that already have ids, or a dataset that is
            shuffled, repeated, not deterministic, or of x alone.

    Example:
        >>> with_example_ids(np.zeros([3, 2]))["example_ids"].tolist()
        [0, 1, 2]
        >>> examples = tf.data.Dataset.from_tensor_slices((tf.zeros([3, 2]), [7, 8, 9]))
        >>> x, y = next(iter(with_example_ids(examples).shuffle(3, seed=0).batch(3)))
        >>> bool(tf.reduce_all(y == tf.cast(x["example_ids"], tf.int32) + 7))
        True
    """
    if isinstance(data, tf.data.Dataset):
        _refuse_shuffled(data)
        if not isinstance(data.element_spec, tuple):
            raise ValueError(f"Examples must be (x, y) or (x, y, sample_weight), not {data.element_spec}.")
        return data.enumerate().map(
            lambda number, example: (_numbered(example[0], number), *example[1:]), tf.data.AUTOTUNE
        )
    data = lists_as_tensors(data)
    shapes = [tuple(getattr(part, "shape", ())) for part in tf.nest.flatten(data)]
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        raise ValueError(f"All inputs must be arrays of one length N, but have the shapes {shapes}.")
    return _numbered(data, np.arange(shapes[0][0]))


def _numbered(inputs, number):
    inputs = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    if _NAME in inputs:
        raise ValueError(f"The inputs already have {_NAME!r}: number them once.")
    return {**inputs, _NAME: number}


def _refuse_shuffled(dataset):
    steps = [dataset]
    while steps:
        step = steps.pop()
        if hasattr(step, "epoch_order"):
            raise ValueError(
                "A shuffled pipeline of tfxc.data has another order in each epoch, so examples would get "
                "other ids: make it with seed=None, and shuffle what with_example_ids returns."
            )
        if any(word in type(step).__name__ for word in ("Shuffle", "Repeat")):
            raise ValueError(
                "After shuffle or repeat, an example would get another id in each epoch: call "
                "with_example_ids first."
            )
        if in_any_order(step):
            raise ValueError(
                "With deterministic=False, examples come in another order in each epoch and would get other "
                "ids: remove it before with_example_ids."
            )
        steps.extend(step._inputs())
