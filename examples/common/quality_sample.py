"""The quality of a model within an epoch, on a small part of the validation set."""

import tensorflow as tf

# Few enough that ten measurements cost little beside an epoch, enough for smooth curves.
_NUM_TARGETS = 2048


def spread_batches(dataset):
    """Batches spread over a dataset, with about ``_NUM_TARGETS`` targets if all are like the first batch."""
    _, labels = next(iter(dataset))
    num_batches = -(-_NUM_TARGETS // int(tf.math.count_nonzero(labels >= 0)))
    return list(dataset.shard(max(1, len(dataset) // num_batches), 0).take(num_batches))


class QualitySample:
    """A ranking metric over a fixed sample of the validation targets, spread over all of them.

    ``evaluate`` within ``fit`` would reset the metrics of training; this does not.

    Args:
        model: an ``ExtremeClassifier``.
        dataset: validation batches, each with as many targets as the first.
        metric: of ``tfxc.metrics``.
    """

    def __init__(self, model, dataset, metric):
        self.metric = metric
        self.name = f"{metric.name} of the sample"
        self.batches = spread_batches(dataset)
        self.num_targets = sum(int(tf.math.count_nonzero(labels >= 0)) for _, labels in self.batches)

        @tf.function(autograph=False, reduce_retracing=True)
        def best(x, y):
            query, labels, _ = model.examples(x, y)
            exclude = x.get("exclude") if isinstance(x, dict) else None
            ids = model.head.top_k(query, tf.constant(metric.k), exclude).ids  # a tensor may be too large
            return labels, tf.pad(ids, [[0, 0], [0, metric.k - tf.shape(ids)[1]]], constant_values=-1)

        self._best = best

    def measure(self):
        self.metric.reset_state()
        for x, y in self.batches:
            self.metric.update_state(*self._best(x, y))
        return float(self.metric.result())
