import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from memory_checks import all_shapes

from tfxc._keras import keras
from tfxc.layers import DenseHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.metrics import CoverageAtK, NDCGAtK, PrecisionAtK, RankingMetric, RecallAtK, relevance
from tfxc.metrics.ranking_metric import num_positives, ranked_ids, unique_positives


def test_unique_positives():
    labels = unique_positives([[3, 1, 3, -1], [-1, -1, -1, -1], [2, 2, 2, 2], [0, 7, 5, 7]])
    assert labels.dtype == tf.int64
    kept = [[int(i) for i in row if i >= 0] for row in labels.numpy()]
    assert kept == [[1, 3], [], [2], [0, 5, 7]]
    assert (np.diff(labels.numpy(), axis=1) >= 0).all()
    assert num_positives(labels).numpy().tolist() == [2, 1, 1, 3]
    assert unique_positives(tf.zeros([2, 0], tf.int32)).numpy().tolist() == [[-1], [-1]]


def test_relevance_by_hand():
    labels = unique_positives([[3, 1, 3], [-1, -1, -1], [2, 0, -1]])
    ids = tf.constant([[1, 4, 3, 1], [-1, 0, 1, 2], [-1, 0, -1, 0]], tf.int64)
    assert relevance(ids, labels).numpy().tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.traced
@pytest.mark.parametrize("k", [1, 2, 60])
def test_relevance_of_many_ids_holds_no_table_of_all_pairs(k):
    random = np.random.default_rng(0)
    labels = unique_positives(random.integers(-1, 30, [7, 5]))
    ids = random.integers(-1, 30, [7, k])  # with repeats, of which the first counts
    want = [
        [float(id >= 0 and id in own and id not in row[:i]) for i, id in enumerate(row)]
        for row, own in zip(ids.tolist(), labels.numpy().tolist(), strict=True)
    ]
    compiled = tf.function(relevance).get_concrete_function(tf.constant(ids), labels)
    np.testing.assert_array_equal(compiled(tf.constant(ids), labels), want)
    known = [shape for shape in all_shapes(compiled) if shape.is_fully_defined()]
    assert max(shape.num_elements() for shape in known) <= 7 * max(k, 6)


def value_of(metric, *batch, **options):
    """The result of a metric after one batch."""
    metric.update_state(*batch, **options)
    return float(metric.result())


def test_scores_are_ranked():
    scores, nan, inf = tf.constant([[0.1, 3.0, -1.0], [2.0, 1.0, 5.0]]), float("nan"), float("inf")
    assert ranked_ids(scores, 2).numpy().tolist() == [[1, 0], [2, 0]]
    assert ranked_ids(scores, 9).numpy().tolist() == [[1, 0, 2], [2, 0, 1]]
    assert ranked_ids(tf.constant([[5.0]]), 1).numpy().tolist() == [[0]]
    scores = tf.constant([[nan, nan, nan], [-inf, 1.0, nan], [inf, nan, 0.0]])
    assert ranked_ids(scores, 3).numpy().tolist() == [[-1, -1, -1], [1, -1, -1], [0, 2, -1]]


@pytest.mark.parametrize(
    ("k", "labels", "ranked"),
    [
        *(
            (2, np.array([[3, 1]], dtype), np.array([[1, 2]], dtype))
            for dtype in ("int8", "int32", "int64", "uint8", "uint32")
        ),
        (1, [1, 0], tf.constant([[0.0, 1.0], [0.0, 1.0]], tf.float16)),
        (2, [4, 5], {"ids": np.array([[4, 1], [2, 3]]), "scores": np.array([[2.0, 1.0]] * 2)}),
        (1, np.int32([2**24 + 1] * 2), np.int32([[2**24], [2**24 + 1]])),  # float32 rounds it to 2**24
    ],
)
def test_every_form_of_ids_and_scores(k, labels, ranked):
    assert value_of(RecallAtK(k), labels, ranked) == 0.5


@pytest.mark.parametrize(
    "scores", [[1 - 1e-9, 1 - 1e-12, 0.5], [7e8 + 1, 7e8 + 2, 7e8], [-1e39, -5e38, -1e40], [1e39, 1e40, 1e38]]
)
def test_scores_that_float64_alone_tells_apart(scores):
    assert ranked_ids(tf.constant([scores], tf.float64), 2).numpy().tolist() == [[1, 0]]
    assert value_of(PrecisionAtK(1), [1, 2], np.array([scores, [-np.inf, np.nan, -1e39]])) == 1.0


def test_examples_without_positives_are_skipped():
    metric = RecallAtK(1)
    assert value_of(metric, [[1], [-1]], [[1], [0]], sample_weight=[2.0, 100.0]) == 1.0
    metric.reset_state()
    assert value_of(metric, [[-1], [-1]], [[1], [0]]) == 0.0
    metric.update_state(np.zeros([0, 1], np.int32), np.zeros([0, 5], np.int32))
    assert value_of(metric, np.zeros([2, 0], np.int32), np.zeros([2, 5], np.int32)) == 0.0


def test_examples_without_positives_count_0_over_all():
    for metric in (PrecisionAtK(1, average="all"), RecallAtK(1, "all"), NDCGAtK(1, average="all")):
        found = value_of(metric, [[1], [-1], [2]], [[1], [0], [2]])
        assert found == pytest.approx(2 / 3), metric.name
        metric.reset_state()
        assert value_of(metric, [[1], [-1]], [[1], [0]], sample_weight=[1.0, 3.0]) == 0.25, metric.name
    with pytest.raises(ValueError, match="average must be one of .'labelled', 'all'., but got 'some'"):
        PrecisionAtK(1, average="some")


def test_positions_without_a_label_are_masked_in_either_average():
    for average in ("labelled", "all"):
        assert value_of(PrecisionAtK(1, average), [[1, -1], [-1, 2]], [[[1], [0]], [[0], [3]]]) == 0.5


@pytest.mark.parametrize("shape", [[3], [3, 1]])
def test_weights(shape):
    weights = np.reshape([1.0, 3.0, 0.0], shape)
    found = value_of(PrecisionAtK(1), [[1], [2], [3]], [[1], [0], [3]], sample_weight=weights)
    assert found == 0.25


@pytest.mark.parametrize(
    ("y_true", "y_pred", "message"),
    [
        ([1.0], [[1]], "y_true is float32"),
        ([[[1]]], [[1]], r"y_true is int32 of shape \(1, 1, 1\)"),
        ([1], [1], r"y_pred is int32 of shape \(1,\)"),
        ([1], [[True]], "y_pred is bool"),
        ([1, 2], [[1, 2, 3]], "2 labels for 1 predictions"),
        ([1], [[1, 2]], "needs at least 3 ranked ids.*k=3 or more"),
    ],
)
def test_bad_input(y_true, y_pred, message):
    with pytest.raises(ValueError, match=message):
        PrecisionAtK(3).update_state(y_true, y_pred)


@pytest.mark.parametrize("average", ["labelled", "all"])
def test_the_value_of_each_example(average):
    metric = RecallAtK(2, average=average)
    labels, ids = [[4, 5], [-1, -1], [7, -1]], [[4, 9, 5], [1, 2, 3], [1, 7, 2]]
    values = metric.values(labels, ids).numpy()
    np.testing.assert_array_equal(values, [0.5, np.nan if average == "labelled" else 0.0, 1.0])
    assert float(metric.result()) == 0  # it has counted none
    metric.update_state(labels, ids)
    np.testing.assert_allclose(metric.result(), np.nanmean(values))


def test_rows_of_zeros_and_ones_are_refused_beside_ranked_ids():
    metric = PrecisionAtK(1)
    assert metric.values([[0, 1], [1, -1]], [[1], [1]]).numpy().tolist() == [1, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="all 0 or 1, like one-hot or multi-hot rows"):
        metric.values([[0, 1, 1], [1, 0, 0]], [[1], [1]])


@pytest.mark.traced
@pytest.mark.parametrize("size", long_after(1, None, 4))
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (tf.constant([[0, 0, 0, 1], [1, 0, 0, 0]]), "all 0 or 1, like one-hot or multi-hot rows"),
        (tf.constant([3, 4]), r"label id is outside.* \[4\] \[at flat position\]"),
        (tf.constant([[3, -1], [0, -2]]), r"label id is outside.* \[-2\] \[at flat position\]"),
        (tf.ragged.constant([[7], []]), r"label id is outside.* \[7\] \[at flat position\]"),
    ],
)
def test_labels_that_the_losses_refuse_are_refused_beside_scores(labels, message, size):
    metric, loss = PrecisionAtK(1), SoftmaxCrossentropy()
    signature = tf.type_spec_from_value(labels), tf.TensorSpec([None, size])

    def traced(call):
        def run(labels, scores):
            call(labels, scores)  # tf-keras gives an operation back

        return tf.function(run, signature)

    for call in (metric.update_state, loss):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            traced(call)(labels, tf.ones([2, 4]))


def test_labels_of_0_and_1_alone_are_ids_where_no_row_is_a_class_each():
    scores = tf.constant([[0.1, 0.9, 0.0]] * 3)
    for labels, want in (
        ([1, 0, 1], 2 / 3),  # as many examples as classes
        ([[1], [0], [1]], 2 / 3),
        ([[1, 0], [0, -1], [1, 1]], 2 / 3),
        ([[1, 0, -1], [0, -1, -1], [0, 1, -1]], 2 / 3),
        (tf.ragged.constant([[1], [], [0, 1]]), 1.0),
        (tf.SparseTensor([[0, 0], [1, 1]], [1, 1], [3, 2]), 1.0),
        (tf.zeros([3, 0], tf.int32), 0.0),
    ):
        assert value_of(PrecisionAtK(1), labels, scores) == pytest.approx(want)
    metric, two = PrecisionAtK(1), tf.constant([[0.1, 0.9]] * 2)
    assert value_of(metric, [[1, 0], [0, 1]], two) == 1.0  # too few classes to tell
    # Ranked ids do not tell L.
    assert value_of(metric, [[1, 0, 1], [7, 1, 1]], tf.constant([[5, 4, 3]] * 2)) == 0.5


@pytest.mark.traced
def test_weights_of_another_length():
    metric = PrecisionAtK(1)
    with pytest.raises(ValueError, match="sample_weight must hold a number for each.*are 3 instead of 2"):
        metric.update_state([1, 2], [[1], [2]], sample_weight=[1.0, 1.0, 1.0])

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def update(weights):
        metric.update_state([1, 2], [[1], [2]], sample_weight=weights)

    with pytest.raises(tf.errors.InvalidArgumentError, match="sample_weight must hold a number for each"):
        update([1.0])


@pytest.mark.traced
def test_too_few_ids_are_found_in_a_graph():
    metric = PrecisionAtK(3)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)])
    def update(labels, ids):
        metric.update_state(labels, ids)

    update([1], [[1, 2, 3]])
    assert float(metric.result()) == pytest.approx(1 / 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="k=3 or more"):
        update([1], [[1, 2]])


def test_what_is_missing_or_no_count_is_told():
    for k in (0, -1, 1.5):
        with pytest.raises(ValueError, match="k must be an integer of at least 1"):
            PrecisionAtK(k)
    with pytest.raises(NotImplementedError, match="RankingMetric must define per_example"):
        RankingMetric(1).per_example(None, None)


@pytest.mark.parametrize(
    "value",
    [lambda ids: ids, tf.reduce_sum, lambda ids: None, np.asarray],
    ids=["table", "scalar", "none", "array"],
)
def test_what_is_no_value_for_each_example_is_refused(value):
    class Own(RankingMetric):
        def per_example(self, labels, ids):
            return value(ids)

    with pytest.raises(ValueError, match="Own.per_example must return a value for each example, .N., but"):
        Own(2).update_state([4, 5], [[4, 5], [4, 5]])


@pytest.mark.both_keras
@pytest.mark.parametrize("weighted", [False, True])
def test_inside_compile_and_evaluate(weighted):
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=[23, 4]).astype("float32"), rng.integers(0, 9, 23)
    weights = rng.random(23)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(9)])
    metric = {"weighted_metrics" if weighted else "metrics": [NDCGAtK(3)]}
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **metric)
    got = model.evaluate(x, labels, 5, sample_weight=weights, return_dict=True, verbose=0)["ndcg_at_3"]
    alone = value_of(NDCGAtK(3), labels, model.predict(x, verbose=0), weights if weighted else None)
    assert got == pytest.approx(alone, abs=1e-6)


@pytest.mark.long
@pytest.mark.both_keras
@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_ragged_and_sparse_labels_of_a_model_of_ones_own(form):
    x = np.random.default_rng(0).normal(size=[8, 4]).astype("float32")
    ragged = tf.ragged.constant([[3], [1, 7]] * 4)
    model = keras.Sequential([keras.Input([4]), DenseHead(9)])
    model.compile("sgd", SoftmaxCrossentropy(), metrics=[NDCGAtK(3), CoverageAtK(3, 9)])
    want = model.evaluate(x, ragged.to_tensor(-1), 4, verbose=0)
    labels = {"ragged": ragged, "sparse": ragged.to_sparse()}[form]
    np.testing.assert_allclose(model.evaluate(x, labels, 4, verbose=0), want, rtol=1e-6)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("in_graph", long_after(1, True, False))
def test_labels_of_sequences_that_end_before_the_last_position(in_graph):
    ragged = tf.ragged.constant([[3], [1, 7], []])
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(9), [3, 5, 1]), axis=2)
    scores = np.random.default_rng(1).normal(size=[3, 5, 9]).astype(np.float32)
    dense = np.full([3, 5], -1)
    dense[:, :2] = ragged.to_tensor(-1)
    for labels in (ragged, ragged.to_sparse(), tf.expand_dims(ragged, 2)):
        for predicted in (ids, scores):
            for metric, alone in ((NDCGAtK(4), NDCGAtK(4)), (CoverageAtK(4, 9), CoverageAtK(4, 9))):

                def update(labels, predicted, metric=metric):
                    metric.update_state(labels, predicted)  # tf-keras gives an operation back

                (tf.function(update) if in_graph else update)(labels, tf.constant(predicted))
                assert float(metric.result()) == pytest.approx(value_of(alone, dense, predicted))
    with pytest.raises(ValueError, match="a label for each of their positions.* are 2 instead of 1"):
        NDCGAtK(4).update_state(ragged, ids[:, :1])
