"""A page about a trained model: how well it ranks, for which classes, and how sure it may be."""

import numpy as np

from tfxc.arguments import by_class, positive_int
from tfxc.atomic_write import atomic_write
from tfxc.model.classifier import ExtremeClassifier
from tfxc.report.measurements import measure
from tfxc.report.page import page_of
from tfxc.report.plots import require_matplotlib
from tfxc.require import clean_errors


def report(
    model: ExtremeClassifier, data, path, counts=None, k: int | None = None, num_named: int = 10
) -> dict[str, float]:
    """Evaluates a model on data and writes an HTML page to show around: one file, which loads nothing else.

    The page shows the loss and ranking metrics, catalogue coverage, novelty and popularity; recall, and the
    share of the recommendations, by popularity decile; whether the probability of the best class is the share
    of hits (calibration); the classes that are recommended too often and too rarely, by name; and how near
    the sampler's draws are to the softmax. The data are read once, batch by batch; sample weights make no
    difference.

    Args:
        model: compiled and built, trained or loaded.
        data: batches ``(inputs, labels)``, such as a ``tf.data.Dataset``; or one tuple ``(x, y)`` of arrays.
        path: of the file. An earlier one is replaced when the new one is whole.
        counts: [L], how often each class was a label in training; by default in ``data``.
        k: how many classes are recommended for an example, at least 1; by default the model's own.
        num_named: how many classes a table of recommended classes names, at least 1.

    Returns:
        The figures at the top of the page, by name.

    Raises:
        ValueError: for a model that is not an ``ExtremeClassifier``, not compiled or not built; for data
            without an example that has a label, or without end; if no class is ranked; for counts that are
            not [L], not finite or below 0; for another k.
        ImportError: where matplotlib, which draws the plots, is not installed.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(1000), k=5)
        >>> model.compile("sgd", tfxc.losses.SoftmaxCrossentropy())
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
        >>> figures = report(model, (tf.random.normal([32, 8]), tf.range(32)), path)
        >>> list(figures)[:3]
        ['loss', 'recall_at_5', 'ndcg_at_5']

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", 2017; Abdollahpouri, Burke, Mobasher,
        "Managing Popularity Bias in Recommender Systems with Personalized Re-ranking", 2019.
    """
    require_matplotlib()
    if not isinstance(model, ExtremeClassifier):
        raise ValueError(f"model must be a tfxc.ExtremeClassifier, but got {model!r}.")
    num_classes = model.head.num_classes
    if counts is not None:
        counts = by_class(counts, "counts")
        if counts.shape != (num_classes,) or not (np.isfinite(counts) & (counts >= 0)).all():
            raise ValueError(
                f"counts must be a number of at least 0 for each of the {num_classes} classes, but are "
                f"{counts} of shape {counts.shape}: np.bincount(labels, minlength={num_classes})."
            )
    k = min(positive_int(model.k if k is None else k, "k"), num_classes)
    num_named = positive_int(num_named, "num_named")
    # The file is opened first: a folder that is not there is told before the model ranks.
    with atomic_write(path) as aside, open(aside, "w", encoding="utf-8") as file, clean_errors():
        measured = measure(model, data, k)
        figures = measured.figures(counts)
        file.write(page_of(model, measured, figures, counts, num_named))
    return figures
