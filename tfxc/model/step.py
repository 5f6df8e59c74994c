"""A training step: queries, a draw of candidates, scores, losses."""

import functools

import tensorflow as tf

from tfxc.class_vectors import effective_query_of, vector_of_each
from tfxc.cluster.folded import folded_losses, is_folded
from tfxc.cluster.place import check_placed
from tfxc.infinity import infinity_is_meant
from tfxc.labels import labelled_queries
from tfxc.layers.class_cache import old_class_vectors
from tfxc.layers.head import Head, score_candidates
from tfxc.losses import ClassificationLoss
from tfxc.model.inputs import flatten_example_ids
from tfxc.samplers import Draw, Sampler, Step
from tfxc.scored import Scored
from tfxc.spare_classes import spare_as_empty


def head_loss(
    head: Head,
    loss: ClassificationLoss,
    query,
    labels,
    sampler: Sampler | None = None,
    sample_weight=None,
    example_ids=None,
    training: bool = False,
) -> tf.Tensor:
    """The loss of queries and their labels, over a sampler's candidates or over all classes.

    ``ExtremeClassifier`` computes the same in a training step. Call it in models of your own: in the
    ``compute_loss`` of a ``tfrs.Model`` or ``keras.Model``, in a ``train_step`` or a plain loop, beside other
    losses. Keep head and sampler in attributes of the model, so that Keras tracks them: callbacks find those
    named ``head`` and ``sampler``. Give the sampler in training only: without it the loss is the exact one.
    Build both in the scope of a ``tf.distribute`` strategy: there each replica gets its share of the mean.

    Args:
        head: one of ``tfxc.layers``; built for the width of the queries if it is not yet.
        loss: one of ``tfxc.losses``.
        query: float [B, D], or [B, T, D] for sequences.
        labels: class ids [B] or [B, P], padded with -1; for sequences [B, T] or [B, T, P], where -1 also
            masks a position. RaggedTensor and SparseTensor (ids as values) too.
        sampler: None for all classes in blocks, or a sampler of ``tfxc.samplers``.
        sample_weight: None, [B] or, for sequences, [B] or [B, T].
        example_ids: for samplers that read them, integers [B] or, for sequences, [B, T].
        training: whether an ``EncodedHead`` that encodes all classes runs its item encoder as in training,
            with dropout; with a sampler it always does.

    Returns:
        A float32 scalar; with the loss's reduction "none", the losses of the examples [N].

    Raises:
        ValueError: for a head, a loss or a sampler of another kind, or that do not fit together; for queries
            or labels of another shape, labels that are not integers, or a dict of weights.
        tf.errors.InvalidArgumentError: for an id outside [-1, L).

    Example:
        >>> head, sampler = tfxc.layers.DenseHead(1000), tfxc.samplers.Uniform(20)
        >>> loss = tfxc.losses.SoftmaxCrossentropy()
        >>> query, labels = tf.random.normal([8, 16]), tf.range(8)
        >>> with tf.GradientTape() as tape:
        ...     value = head_loss(head, loss, query, labels, sampler=sampler)
        >>> value.shape, len(tape.gradient(value, head.trainable_variables))
        (TensorShape([]), 1)

    Reference:
        Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", 2015.
    """
    check_kinds(head, sampler)
    check_loss(head, loss)
    query = tf.convert_to_tensor(query)
    if query.shape.rank not in (2, 3, None):
        raise ValueError(f"query must be [B, D] or, for sequences, [B, T, D], but has shape {query.shape}.")
    build_parts(head, sampler, query.shape[-1])
    query, labels, sample_weight, where = labelled_queries(query, labels, head.num_classes, sample_weight)
    if example_ids is not None:
        example_ids = flatten_example_ids(example_ids, where)
    losses = example_losses(head, loss, query, labels, sampler, example_ids, training)
    return loss.share(loss.reduce(losses, sample_weight))


def check_kinds(head, sampler):
    """Raises ValueError unless head and sampler (or None) are of tfxc and fit together."""
    if not isinstance(head, Head):
        raise ValueError(f"head must be one of tfxc.layers, as DenseHead(num_classes), but got {head!r}.")
    if not isinstance(sampler, Sampler | None):
        raise ValueError(f"sampler must be None or one of tfxc.samplers, as MIDX(100), but got {sampler!r}.")
    if sampler is not None and sampler.built and sampler.num_classes != head.num_classes:
        raise ValueError(
            f"The sampler is built for {sampler.num_classes} classes, but the head has {head.num_classes}: "
            "give each model a sampler of its own."
        )
    head.check(sampler=sampler)


def check_loss(head, loss):
    """Raises ValueError unless the loss is one of ``tfxc.losses`` that the head can use."""
    if not isinstance(loss, ClassificationLoss):
        raise ValueError(
            f"loss must be one of tfxc.losses (they know about sampled classes), but got {loss!r}: "
            "take SoftmaxCrossentropy() for one label, BinaryCrossentropy() for several."
        )
    head.check(loss=loss)


def require_sampler(loss, sampler):
    if loss.needs_sampler and sampler is None:
        raise ValueError(
            f"{type(loss).__name__} weighs by what a sampler draws, but the model has none: give "
            "ExtremeClassifier a sampler, such as tfxc.samplers.MIDX(100), or take SoftmaxCrossentropy."
        )


def build_parts(head, sampler, query_dim):
    """Builds a head and its sampler (or None) for queries of a width; ValueError if they have another."""
    check_placed(head, sampler)
    if head.built:
        head.require_width(tf.TensorSpec((None, query_dim)))
    else:
        head.build((None, query_dim))
        head.query_dim = query_dim  # a user's own build may not set it
    if sampler is not None and not sampler.built:
        sampler.build((head.num_classes, head.effective_dim))


def example_losses(head, loss, query, labels, sampler, example_ids=None, training=False):
    """Losses [N] of queries [N, D] and labels [N, P], distinct in their rows and padded with -1."""
    if sampler is not None or training:
        head.observe(query)
    if sampler is None:
        return head.losses(query, labels, loss, training)

    if is_folded(head, loss, sampler):
        return folded_losses(head, loss, query, labels, sampler)

    def score(ids):
        with old_class_vectors():
            return tf.stop_gradient(head.score(query, ids))

    def class_vectors(ids):
        return tf.stop_gradient(vector_of_each(head, ids))

    effective = effective_query_of(head, query)
    step = Step(effective, labels, example_ids, score, class_vectors, query, head.approximate)
    with infinity_is_meant():  # a count of a class that is never drawn, a score of no class
        draw = sampler.sample(step)
    if not (isinstance(draw, Draw) and labels.shape.is_compatible_with(draw.label_log_expected_count.shape)):
        raise ValueError(
            f"{type(sampler).__name__}.sample must return a tfxc.samplers.Draw with a log expected count for "
            f"each of the labels {labels.shape}, but returned {draw}."
        )
    draw = draw._replace(ids=spare_as_empty(head, draw.ids))

    @functools.cache
    def one_by_one():
        positives, *candidates = score_candidates(head, query, labels, draw.ids, draw.log_expected_count)
        return Scored(positives, draw.label_log_expected_count), *candidates

    def scored():
        positives, negatives, which = one_by_one()
        return positives, negatives.without(which >= 0)

    sampler.learn(step, draw, scored)
    is_label = labels >= 0
    if one_by_one.cache_info().currsize or loss.over_candidates is None:
        positives, negatives, which = one_by_one()
        return loss.sampled(positives, negatives, is_label, which, draw.label_slots)
    # Nothing needs the scores of candidates one by one, so the head may sum them its own way.
    given = labels, draw.ids, draw.log_expected_count
    positives, folded = head.candidates(query, *given, loss.over_candidates)
    positives = Scored(positives, draw.label_log_expected_count)
    return loss.with_candidates(positives, folded, is_label, draw.label_slots)
