"""Losses of one's own: what they override is computed, by whatever way a head has."""

import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.losses import GBCE, BinaryCrossentropy, SoftmaxAtK, SoftmaxCrossentropy, SquaredHinge

LABELS = tf.constant([[3], [1], [7]])


class Tenth:
    """To be mixed in: negatives weigh a tenth."""

    def term(self, logits):
        return 0.1 * super().term(logits)

    def logit_gradient(self, reduced, logits):
        return 0.1 * super().logit_gradient(reduced, logits)


class Light(Tenth, SquaredHinge):
    pass


class Cubic(BinaryCrossentropy):
    """A negative loses the cube."""

    def term(self, logits):
        return super().term(logits) ** 3

    def logit_gradient(self, reduced, logits):
        return 3 * super().term(logits) ** 2 * super().logit_gradient(reduced, logits)


class Sharp(SoftmaxCrossentropy):
    """The log-sum-exp is of twice the logits."""

    def update(self, state, logits):
        return super().update(state, 2 * logits)

    def logit_gradient(self, reduced, logits):
        return 2 * super().logit_gradient(reduced, 2 * logits)


def queries():
    return np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


@pytest.mark.parametrize("loss", [Cubic(), Light(), Sharp()], ids=lambda loss: type(loss).__name__)
def test_what_is_overridden_of_the_sum_over_classes_is_computed(loss):
    head, query = DenseHead(20), queries()
    head.build((None, 5))
    with tf.GradientTape(persistent=True) as tape:
        streamed = tfxc.head_loss(head, loss, query, LABELS)
        plain = loss(LABELS, head(query))
    np.testing.assert_allclose(streamed, plain, rtol=1e-5)
    got, want = (tape.gradient(value, head.table_variable) for value in (streamed, plain))
    np.testing.assert_allclose(got, tf.convert_to_tensor(want), rtol=1e-4, atol=1e-6)
    evaluated, _ = head.losses_and_best(query, LABELS, loss, 3)
    np.testing.assert_allclose(loss.reduce(evaluated), plain, rtol=1e-5)


def test_a_sparse_head_refuses_to_stream_what_is_overridden():
    head = UniformSparseHead(20, 3, seed=0)
    with pytest.raises(ValueError, match="cannot stream Light over all classes"):
        tfxc.head_loss(head, Light(), queries(), LABELS)
    evaluated, _ = head.losses_and_best(queries(), LABELS, Light(), 3)
    np.testing.assert_allclose(Light().reduce(evaluated), Light()(LABELS, head(queries())), rtol=1e-5)


def test_a_filter_by_probability_is_for_a_softmax():
    class Filtered(BinaryCrossentropy):
        filter_below = 0.1

    for loss in (Sharp(filter_below=0.1), Filtered()):
        with pytest.raises(ValueError, match=f"filter_below=0.1.*{type(loss).__name__} sums something else"):
            tfxc.head_loss(DenseHead(20), loss, queries(), LABELS)


def test_what_a_class_says_of_its_methods_does_not_hold_for_others():
    class Mean(BinaryCrossentropy):
        def fold_candidates(self, negatives, hits):
            return super().fold_candidates(negatives, hits) / tf.cast(tf.shape(hits)[1], tf.float32)

    class Said(Mean):
        reduction_over_classes = "sum"
        merge_of_candidates = "sum"

        def term(self, logits):
            return tf.nn.softplus(logits)

    said = {
        loss: (loss.reduction_over_classes, loss.merge_of_candidates, loss.log_sum_of_candidates)
        for loss in (Cubic, Light, Sharp(), Mean, Said, BinaryCrossentropy, SquaredHinge, GBCE, SoftmaxAtK)
    }
    assert list(said.values()) == [
        (None, "sum", None),
        (None, "sum", None),
        (None, "logsumexp", "all"),
        ("softplus", None, None),
        ("sum", "sum", None),
        ("softplus", "sum", None),
        ("squared_hinge", "sum", None),
        ("softplus", None, None),
        ("logsumexp", None, None),
    ]


def test_logits_whose_number_of_classes_a_graph_does_not_know():
    loss, logits = SoftmaxCrossentropy(), queries()
    for labels, spec in (([4, 0, 2], [None]), ([[4, 1], [0, -1], [2, 3]], [None, None])):
        signature = [tf.TensorSpec(spec, tf.int32), tf.TensorSpec([None, None])]
        in_graph = tf.function(loss, input_signature=signature)
        np.testing.assert_allclose(in_graph(labels, logits), loss(labels, logits), rtol=1e-6)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside \[0, L\)"):
            in_graph(np.add(labels, 1), logits)
    with pytest.raises(tf.errors.InvalidArgumentError, match="like one-hot or multi-hot rows"):
        in_graph(np.eye(5, dtype=np.int32)[:3], logits)
    assert np.isfinite(in_graph([[1, 0], [0, -1], [1, -1]], logits[:, :2]))


@pytest.mark.parametrize("form", [lambda loss: loss[:, tf.newaxis], tf.reduce_sum], ids=["column", "scalar"])
@pytest.mark.parametrize("sampler", [None, tfxc.samplers.Uniform(4, seed=1)], ids=["exact", "sampled"])
def test_what_is_no_loss_for_each_example_is_refused(form, sampler):
    class Own(SquaredHinge):
        def combine(self, *given):
            return form(super().combine(*given))

        def sampled(self, *given):
            return form(super().sampled(*given))

    head = DenseHead(9)
    with pytest.raises(ValueError, match="Own must give a loss for each example, .N., but gave"):
        tfxc.head_loss(head, Own(), tf.ones([3, 4]), LABELS, sampler=sampler, sample_weight=tf.ones([3]))


def test_a_method_that_is_missing_is_named():
    class Own(tfxc.losses.ClassificationLoss):
        pass

    given = [tf.ones([3, 4])] * 4
    needed = {"initial": 1, "update": 2, "finish": 1, "logit_gradient": 2, "combine": 3, "with_candidates": 3}
    for method, num in needed.items():
        with pytest.raises(NotImplementedError, match=f"Own does not define {method}"):
            getattr(Own(), method)(*given[:num])
    with pytest.raises(NotImplementedError, match="Own defines neither sampled.* nor fold_candidates"):
        Own().sampled(*given)


def test_what_a_model_ranks_is_no_logits():
    best = {"ids": tf.constant([[1, 2]]), "scores": tf.constant([[1.0, 0.5]])}
    with pytest.raises(
        ValueError, match=r"takes the logits of all classes, .* tfxc.head_loss\(model.head, loss"
    ):
        SoftmaxCrossentropy()(tf.constant([1]), best)
