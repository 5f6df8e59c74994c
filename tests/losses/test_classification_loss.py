import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.losses import GBCE, BinaryCrossentropy, SoftmaxAtK, SoftmaxCrossentropy, SquaredHinge, sum_of
from tfxc.losses.reductions import LOGSUMEXP, squared_hinge

LABELS = tf.constant([[3], [1], [7]])


class Light(SquaredHinge):
    over_classes = sum_of(
        lambda logits: 0.1 * squared_hinge(logits), lambda logits: 0.2 * tf.nn.relu(1.0 + logits)
    )


class Cubic(BinaryCrossentropy):
    over_classes = sum_of(
        lambda logits: tf.nn.softplus(logits) ** 3,
        lambda logits: 3 * tf.nn.softplus(logits) ** 2 * tf.sigmoid(logits),
    )


class Sharp(SoftmaxCrossentropy):
    over_classes = LOGSUMEXP._replace(
        update=lambda state, logits: LOGSUMEXP.update(state, 2 * logits),
        gradient=lambda reduced, logits: 2 * LOGSUMEXP.gradient(reduced, 2 * logits),
        kernel=None,
    )


def queries():
    return np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


@pytest.mark.parametrize("loss", [Cubic(), Light(), Sharp()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("make", [DenseHead, lambda size: UniformSparseHead(size, 3, seed=0)])
def test_another_sum_over_classes_is_computed(loss, make):
    head, query = make(20), queries()
    head.build((None, 5))
    with tf.GradientTape(persistent=True) as tape:
        streamed = tfxc.head_loss(head, loss, query, LABELS)
        plain = loss(LABELS, head(query))
    np.testing.assert_allclose(streamed, plain, rtol=1e-5)
    weights = tf_variable(head.trainable_weights[0])
    got, want = (tf.convert_to_tensor(tape.gradient(value, weights)) for value in (streamed, plain))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    evaluated, _ = head.losses_and_best(query, LABELS, loss, 3)
    np.testing.assert_allclose(loss.reduce(evaluated), plain, rtol=1e-5)


def test_a_filter_by_probability_is_for_a_softmax():
    class Filtered(BinaryCrossentropy):
        filter_below = 0.1

    for loss in (Sharp(filter_below=0.1), Filtered()):
        with pytest.raises(ValueError, match=f"filter_below=0.1.*{type(loss).__name__} sums something else"):
            tfxc.head_loss(DenseHead(20), loss, queries(), LABELS)


@pytest.mark.parametrize("base", [BinaryCrossentropy, SoftmaxCrossentropy])
def test_scores_of_all_candidates_are_not_passed_over(base):
    with pytest.raises(TypeError, match="Own defines sampled.* would not call it.*over_candidates = None"):
        type("Own", (base,), {"sampled": base.sampled})
    type("Own", (base,), {"sampled": base.sampled, "over_candidates": None})
    for loss in GBCE(), SoftmaxAtK(), SoftmaxCrossentropy(decoupled=True):
        type("Own", (type(loss),), {"over_candidates": None, "sampled": type(loss).sampled})
        assert loss.over_candidates is None


def test_a_function_in_place_of_a_reduction_is_told():
    for name, kind in (("over_classes", "Reduction"), ("over_candidates", "CandidateReduction")):
        with pytest.raises(TypeError, match=rf"Own.{name} is a function: make a tfxc.losses.{kind} "):
            type("Own", (SquaredHinge,), {name: lambda given: given})


def test_the_name_is_that_of_the_class():
    kinds = BinaryCrossentropy, GBCE, SoftmaxAtK, SoftmaxCrossentropy, SquaredHinge
    names = ["binary_crossentropy", "gbce", "softmax_at_k", "softmax_crossentropy", "squared_hinge"]
    assert [kind().name for kind in kinds] == names and Light(name="own").name == "own"


@pytest.mark.traced
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


@pytest.mark.parametrize("form", [lambda loss: loss[:, tf.newaxis], tf.reduce_sum, lambda loss: None])
@pytest.mark.parametrize("sampler", [None, tfxc.samplers.Uniform(4, seed=1)], ids=["exact", "sampled"])
def test_what_is_no_loss_for_each_example_is_refused(form, sampler):
    class Own(SquaredHinge):
        def combine(self, *given):
            return form(super().combine(*given))

        def with_candidates(self, *given):
            return form(super().with_candidates(*given))

    head = DenseHead(9)
    with pytest.raises(ValueError, match="Own must give a loss for each example, .N., but gave"):
        tfxc.head_loss(head, Own(), tf.ones([3, 4]), LABELS, sampler=sampler, sample_weight=tf.ones([3]))


def test_a_method_that_is_missing_is_named():
    class Own(tfxc.losses.ClassificationLoss):
        pass

    given = [tf.ones([3, 4])] * 4
    for method in "combine", "with_candidates":
        with pytest.raises(NotImplementedError, match=f"Own does not define {method}"):
            getattr(Own(), method)(*given[:3])
    with pytest.raises(NotImplementedError, match="Own defines neither sampled nor over_candidates"):
        Own().sampled(*given)
    with pytest.raises(NotImplementedError, match=r"Own does not define over_classes, .*Reduction"):
        Own()(tf.constant([1]), tf.ones([1, 4]))


def test_what_a_model_ranks_is_no_logits():
    best = {"ids": tf.constant([[1, 2]]), "scores": tf.constant([[1.0, 0.5]])}
    with pytest.raises(ValueError, match=r"the logits of all classes, .* tfxc.head_loss\(model.head, loss"):
        SoftmaxCrossentropy()(tf.constant([1]), best)
