"""What a classifier does with a batch: trains on it, evaluates it, ranks for it."""

import warnings
from typing import Any

import tensorflow as tf

from tfxc._keras import unpack_x_y_sample_weight
from tfxc._keras.layers import Untracked
from tfxc._keras.training import (
    given_metrics,
    metrics_not_compiled,
    refuse_batch_on_replicas,
    updated_metrics,
)
from tfxc.callbacks.sampler_refresh import warn_without_refresh
from tfxc.data.growing_vocabulary import NEW_CLASSES
from tfxc.ids import PADDING
from tfxc.labels import as_array, labelled_queries, weights_as_array
from tfxc.metrics.ties import mostly_tied, warned_of_ties
from tfxc.model import checks
from tfxc.model.fit import clean_ranking
from tfxc.model.growing import begin_anew
from tfxc.model.inputs import as_tensor, first_input, flatten_reserved, split_inputs, with_matrices
from tfxc.model.step import example_losses, require_sampler
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.require import clean_errors


class BatchMixin:
    """What Keras asks of a model for each batch. To stand before ``keras.Model`` among the bases."""

    def make_train_function(self, force=False):
        """Keras calls this before it trains. The step is traced again if the model has another sampler."""
        checks.refuse_consumed(self)
        require_sampler(self.classification_loss, self.sampler)
        if self.sampler is not self._trained_with.value:
            self._trained_with, force = Untracked(self.sampler), True
        return super().make_train_function(force)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, *args, **kwargs):
        """As Keras's ``train_on_batch``; ``class_weight`` is refused."""
        checks.refuse_class_weight(class_weight)
        refuse_batch_on_replicas(self, "train")
        warn_without_refresh(self.sampler)
        x = with_matrices(as_tensor, x)
        with clean_errors():
            return super().train_on_batch(
                x, as_array(y), weights_as_array(sample_weight), None, *args, **kwargs
            )

    @clean_ranking()
    def predict_on_batch(self, x):
        refuse_batch_on_replicas(self, "predict")
        self._freshen(x)
        return super().predict_on_batch(with_matrices(as_tensor, x))

    @clean_errors()
    def test_on_batch(self, x, y=None, sample_weight=None, *args, **kwargs):
        x = with_matrices(as_tensor, x)
        self._freshen(x)
        return super().test_on_batch(x, as_array(y), weights_as_array(sample_weight), *args, **kwargs)

    def _examples(self, x, y, sample_weight, training):
        """Queries [N, D], labels [N, P], weights [N] or None, and the inputs under the reserved keys."""
        if y is None:
            raise ValueError("ExtremeClassifier needs labels: fit(x, y) with integer class ids.")
        inputs, reserved = split_inputs(x, self.encoder)
        # Moving averages change before the loss of the batch is known.
        if training and getattr(self.encoder, "non_trainable_weights", ()):
            inputs = checks.require_finite_inputs(inputs, self.optimizer)
        of_batch, num_classes = self._encoded(inputs, training), self.head.num_classes
        query, labels, sample_weight, where = labelled_queries(of_batch, y, num_classes, sample_weight)
        return query, labels, sample_weight, flatten_reserved(reserved, of_batch, where, num_classes)

    def examples(self, x, y) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Queries [N, D], labels int32 [N, P] padded with -1, example ids [N] or None; without dropout."""
        query, labels, _, reserved = self._examples(x, y, None, training=False)
        return query, labels, reserved.get("example_ids")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The training loss of a batch, over the sampler's candidates or, without a sampler, all classes.

        Terms that a subclass adds count in training only: ``evaluate`` gives the loss of ``test_step``.
        """
        query, labels, sample_weight, reserved = self._examples(x, y, sample_weight, training)
        if training:
            query = checks.require_finite(query, "query", self.optimizer)
        example_ids, loss = reserved.get("example_ids"), self.classification_loss
        losses = example_losses(self.head, loss, query, labels, self.sampler, example_ids, training)
        return loss.reduce(losses, sample_weight)

    @kept_by_graph()
    def train_step(self, data):
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        examples = first_input(x)
        # At the end of data of unknown length Keras begins a step without data, which must not draw either.
        given = tf.nest.flatten(examples, expand_composites=True)[:1]
        if isinstance(x, dict) and NEW_CLASSES in x:
            begin_anew(self, x[NEW_CLASSES])
        with tf.control_dependencies(given), tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, sample_weight=sample_weight, training=True)
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            extras = [tf.cast(tf.reduce_sum(extra), loss.dtype) / replicas for extra in self.losses]
            # With reduction "none" the gradient is that of the sum; a penalty still counts once.
            total = tf.add_n([tf.reduce_sum(self.classification_loss.share(loss)), *extras])
        self._track(loss, examples)
        variables = self.trainable_variables
        if not variables:
            warnings.warn(
                "The model has no trainable weights, so nothing is trained: set trainable = True on layers "
                "that are to train, and compile again.",
                stacklevel=2,
            )
            return self.training_logs()
        gradients = tape.gradient(total, variables)
        with tf.control_dependencies(checks.require_finite_step(total, gradients, variables, self)):
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self.training_logs()

    def training_logs(self) -> dict[str, Any]:
        """The loss and the metrics of layers; ranking metrics are computed in evaluations only."""
        logs = {}
        for metric in metrics_not_compiled(self):
            result = metric.result()
            logs.update(result if isinstance(result, dict) else {metric.name: result})
        return logs

    def test_step(self, data):
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        query, labels, sample_weight, reserved = self._examples(x, y, sample_weight, training=False)
        loss, exclude = self.classification_loss, reserved.get("exclude")
        num_ranked = min(max(self._num_ranked, 2), self.head.num_classes)  # one has no ties
        losses, (scores, ids) = self.head.losses_and_best(query, labels, loss, num_ranked, exclude)
        if given_metrics(self):
            self._share_tied.value.update_state(tf.cast(mostly_tied(scores, ids), tf.float32))
        # A metric may rank more classes than there are: the rest are empty slots.
        ids = tf.pad(ids, [[0, 0], [0, max(self._num_ranked - num_ranked, 0)]], constant_values=PADDING)
        self._track(loss.reduce(losses, sample_weight), query)
        return updated_metrics(self, x, labels, ids, sample_weight)

    def _warned_of_ties(self):
        return warned_of_ties(self._share_tied.value)

    def _track(self, value, examples):
        """Adds the loss of a batch, or a replica's share of it, to the mean, weighted by its examples."""
        value = self.classification_loss.across_replicas(value)
        self.loss_tracker.update_state(value, tf.shape(examples)[0])

    def predict_step(self, data):
        x, _, _ = unpack_x_y_sample_weight(data)
        return self._best(x)  # by class vectors of when predict began, though a thread may train
