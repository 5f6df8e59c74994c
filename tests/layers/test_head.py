from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from head_checks import (
    EVERY_CONFIGURATION,
    check_top_k,
    gradient_error,
    make_head,
    numpy_logits,
    queries,
    variables_of,
)
from long_cases import long_after
from sampler_checks import built

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.class_vectors import blocks
from tfxc.layers import DenseHead, EncodedHead, Head, MACHHead, UniformSparseHead
from tfxc.layers.head import block_size, class_biases, score_candidates
from tfxc.losses import LOGSUMEXP_OF_CANDIDATES, BinaryCrossentropy, SoftmaxCrossentropy, SquaredHinge
from tfxc.samplers import MIDX
from tfxc.scored import MASKED_LOGIT
from tfxc.search import InvertedIndex


def tied_head(num_classes):
    layer = make_head("plain", num_classes, 2)
    layer.table_variable.assign(np.random.default_rng(0).integers(2, size=(num_classes, 2)))
    return layer


@EVERY_CONFIGURATION
@pytest.mark.parametrize(("num_classes", "num_queries"), [(1, 1), (13, 1), (50, 3), (29, 9)])
def test_top_k_equals_ranking_all_logits(tiny_blocks, name, num_classes, num_queries):
    layer, query = make_head(name, num_classes, 5), queries(num_queries, 5)
    logits = numpy_logits(layer, query)
    for k in {1, min(4, num_classes), num_classes}:
        check_top_k(layer, query, logits, k)


@pytest.mark.traced
def test_a_head_that_is_not_built_and_a_k_of_none_are_refused():
    query = queries(3, 4)
    with pytest.raises(ValueError, match="no class vectors yet: call a model with it"):
        DenseHead(9).top_k(query, 2)
    layer = make_head("plain", 9, 4)
    for k in (0, -1, 10):
        with pytest.raises(ValueError, match=rf"k must be an integer in \[1, 9\], but got {k}"):
            layer.top_k(query, k)
    with pytest.raises(ValueError, match="k must be an int or an integer scalar tensor, but got 2.5"):
        layer.top_k(query, 2.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="k must be at least 1, but is"):
        tf.function(lambda k: layer.top_k(query, k).ids)(tf.constant(0))


@EVERY_CONFIGURATION
@pytest.mark.parametrize("width", [3, 5])
def test_queries_of_another_width_are_refused(name, width):
    layer, query = make_head(name, 9, 4), queries(3, width)
    ids = tf.zeros([3, 1], tf.int32)
    for ask in (layer, lambda query: layer.top_k(query, 2), lambda query: layer.score(query, ids)):
        message = rf"was built for queries \[N, 4\], but query has shape \(3, {width}\)"
        with pytest.raises(ValueError, match=message):
            ask(query)


@pytest.mark.traced
@EVERY_CONFIGURATION
def test_a_graph_need_not_know_the_width_of_queries(name):
    layer, query = make_head(name, 9, 4), queries(3, 4)
    asks = [lambda x: layer.top_k(x, 2)]
    asks += [lambda x, ids=ids: layer.score(x, tf.constant(ids)) for ids in ([[1], [8], [0]], [2, 7])]
    # The last writes its logits in place, which has no gradient in a graph.
    for ask in [*asks, layer] if name != "tied bfloat16" else asks:
        graph = tf.function(ask, input_signature=[tf.TensorSpec([None, None])], autograph=False)
        for found, want in zip(tf.nest.flatten(graph(query)), tf.nest.flatten(ask(query)), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [DenseHead, lambda num: UniformSparseHead(num, 3)])
@pytest.mark.parametrize("ids", [[[4, -1], [0, 11]], [3, 3, -1]], ids=["own", "shared"])
def test_ids_to_score_come_as_lists_and_in_any_integer_type(make, ids):
    layer, query = built(make(12), None, 5), queries(2, 5)
    want = layer.score(query, tf.constant(ids))
    for given in (ids, np.array(ids), tf.constant(ids, tf.int64)):
        np.testing.assert_array_equal(layer.score(query, given), want)
    with pytest.raises(ValueError, match="A class id must be an integer"):
        layer.score(query, np.array(ids, np.float32))


@pytest.mark.parametrize("k", [1, 7, 41])
def test_equal_scores_go_to_the_lower_id(tiny_blocks, k):
    layer, query = tied_head(41), tf.constant([[1.0, 2.0], [1.0, 1.0], [0.0, 0.0]])
    _, want = tf.math.top_k(layer(query), k)
    np.testing.assert_array_equal(layer.top_k(query, k)[1], want)


def test_blocks_of_the_normal_size():
    layer, query = make_head("bias", 20_011, 4), queries(3, 4)
    check_top_k(layer, query, numpy_logits(layer, query), 12)
    sizes = [int(block_size(tf.constant(num), 8192)) for num in (0, 1, 1000, 1_000_000)]
    assert sizes == [8192, 8192, 4194, 256]


@pytest.mark.parametrize("allow", [[[4, 9, 4, -1]], [[4, 9, 4, -1], [0, 11, -1, 2], [-1, -1, -1, -1]]])
def test_only_allowed_classes_are_ranked(allow):
    layer = DenseHead(12)
    query = tf.random.stateless_normal([3, 5], [1, 2])
    logits = layer(query).numpy()
    exclude = [[9], [-1], [3]]
    scores, ids = layer.top_k(query, 3, exclude, allow)
    for row, (own, out) in enumerate(zip(np.broadcast_to(allow, (3, 4)), exclude, strict=True)):
        want = sorted(set(own) - set(out) - {-1}, key=lambda i: -logits[row, i])[:3]
        assert ids[row].numpy().tolist() == want + [-1] * (3 - len(want))
        np.testing.assert_allclose(scores[row, : len(want)], logits[row, want], rtol=1e-5)
    everything = layer.top_k(query, 3, allow=np.zeros((1, 0), np.int32)).ids
    np.testing.assert_array_equal(everything, layer.top_k(query, 3).ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match="allowed class id is outside"):
        layer.top_k(query, 3, allow=[[12]])


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("name", ["exclude", "allow"])
def test_class_ids_may_be_ragged_and_another_number_of_rows_is_named(name):
    layer, query = make_head("bias", 12, 5), queries(2, 5)
    ragged = tf.ragged.constant([[3, 7, 1], [4]])
    own = layer.top_k(query, 2, **{name: ragged}).ids
    np.testing.assert_array_equal(own, layer.top_k(query, 2, **{name: [[3, 7, 1], [4, -1, -1]]}).ids)
    ranked = tf.function(lambda ids: layer.top_k(query, 2, **{name: ids}).ids)
    np.testing.assert_array_equal(ranked(ragged), own)
    of_any_size = tf.function(ranked.python_function, input_signature=[tf.TensorSpec([None, 1], tf.int32)])
    for top_k in (ranked.python_function, of_any_size):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name} must have a row for each query"):
            top_k(tf.constant([[1], [2], [3]]))


def test_excluded_classes(tiny_blocks):
    layer, query = make_head("all", 12, 5), queries(3, 5)
    exclude = np.array([[3, -1, 3, 7], [-1, -1, -1, -1], [0, 11, 5, 4]])
    logits = numpy_logits(layer, query)
    for row, ids in enumerate(exclude):
        logits[row, ids[ids >= 0]] = -np.inf
    scores, ids = layer.top_k(query, 10, exclude)  # int64, as NumPy makes them
    want = np.argsort(-logits, axis=1, kind="stable")[:, :10]
    left = np.isfinite(np.take_along_axis(logits, want, 1))
    np.testing.assert_array_equal(ids, np.where(left, want, -1))
    assert left.sum(1).tolist() == [10, 10, 8] and np.isneginf(scores.numpy()[~left]).all()
    scores, ids = layer.top_k(query, 2, [range(12)])
    assert ids.numpy().tolist() == [[-1, -1]] * 3 and np.isneginf(scores).all()


@pytest.mark.parametrize("make", [DenseHead, lambda num: UniformSparseHead(num, 3)])
def test_one_row_of_exclude_is_for_all_queries(make, path):
    layer, query = built(make(12), None, 5), queries(3, 5)
    want = layer.top_k(query, 4, [[3, 7, 0]] * 3).ids.numpy()
    np.testing.assert_array_equal(layer.top_k(query, np.int64(4), [[3, 7, 0]]).ids, want)
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclude must have a row .* the rows are 2"):
        layer.top_k(query, 4, [[3], [7]])


@pytest.mark.traced
def test_k_as_a_tensor(tiny_blocks):
    layer, query = make_head("plain", 9, 3), queries(2, 3)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def top(k):
        return layer.top_k(query, k)

    _, want = tf.math.top_k(layer(query), 9)
    for k in (1, 4, 9):
        np.testing.assert_array_equal(top(k)[1], want[:, :k])
    np.testing.assert_array_equal(top(50)[1], want)  # clamped to L
    for k in (2**31, 2**32 + 1):
        np.testing.assert_array_equal(layer.top_k(query, tf.constant(k, tf.int64))[1], want)


def test_no_query_and_what_cannot_be_ranked(tiny_blocks):
    head, query = make_head("plain", 9, 3), queries(2, 3)
    scores, ids = head.top_k(tf.zeros([0, 3]), 2)
    assert scores.shape == ids.shape == (0, 2)
    for bad in (-2, 9):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"excluded class id is outside \[0, 9\)"):
            head.top_k(query, 2, [[1, 2], [3, bad]])
    with pytest.raises(ValueError, match="has no num_probes"):
        head.top_k(query, 2, num_probes=1)
    with pytest.raises(ValueError, match=r"shape \(3, 2, 3\): model.queries\(x\) returns the queries"):
        head.top_k(tf.zeros([3, 2, 3]), 2)
    with pytest.raises(ValueError, match=r"query must be \[N, D\], but has shape \(3,\): pass one row"):
        head.top_k(tf.zeros([3]), 2)


@EVERY_CONFIGURATION
def test_scan_sees_every_class_once_in_order(tiny_blocks, name):
    layer, query = make_head(name, 17, 4), queries(3, 4)

    def fold(carry, logits, start):
        total, largest, seen = carry
        in_order = tf.where(tf.equal(seen, start), start + tf.shape(logits)[1], -1)
        return total + tf.reduce_sum(logits, 1), tf.maximum(largest, tf.reduce_max(logits, 1)), in_order

    total, largest, seen = layer.scan(query, fold, (tf.zeros([3]), tf.fill([3], -1e9), tf.constant(0)))
    logits = numpy_logits(layer, query)
    np.testing.assert_allclose(total, logits.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(largest, logits.max(1), rtol=1e-4)
    assert int(seen) == 17


@pytest.mark.parametrize("bad", [0, -3, 2.0, None])
def test_number_of_classes_is_checked(bad):
    with pytest.raises(ValueError, match=r"num_classes must be an integer in \[1, 2147483647\]"):
        DenseHead(bad)


HEADS = {
    "dense": lambda: DenseHead(300, use_bias=True),
    "normalized": lambda: DenseHead(300, normalize=True),
    "sparse": lambda: UniformSparseHead(300, 4, seed=0),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_class_that_has_diverged_hides_no_other(name, path):
    head, query = built(HEADS[name](), None, 5), queries(6, 5)
    weight = tf_variable(head.trainable_variables[0])
    scores, ids = head.top_k(query, 300)
    weight.scatter_nd_update([[7]], tf.fill([1, weight.shape[1]], float("nan")))
    want = np.array([[i for i in row if i != 7][:20] for row in ids.numpy()])
    _, beside = head.losses_and_best(query, tf.zeros([6, 1], tf.int32), SquaredHinge(), 20)
    for best in (head.top_k(query, 20), beside):
        np.testing.assert_array_equal(best.ids, want)
    everything = head.top_k(query, 300).ids.numpy()
    assert 7 not in everything and everything[:, -1].tolist() == [-1] * 6


@pytest.mark.parametrize("make", [*HEADS.values(), lambda: PlainHead(300)])
@pytest.mark.parametrize("ids", [[3, -1, 5, -1, 3], [-1, -1], [[4, -1], [-1, 9]], [[-1], [-1]]])
def test_empty_slots_touch_no_class_that_is_not_scored(make, path, ids):
    head, query = built(make(), None, 5), queries(2, 5)
    filled = {i for i in np.ravel(ids) if i >= 0}
    with tf.GradientTape() as tape:
        scores = head.score(query, tf.constant(ids, tf.int32))
    assert (scores.numpy() != 0).tolist() == (np.broadcast_to(ids, scores.shape) >= 0).tolist()
    for gradient in tape.gradient(scores, [tf_variable(v) for v in head.trainable_variables]):
        assert isinstance(gradient, tf.IndexedSlices)
        assert set(gradient.indices.numpy()) == filled


OFFSETS = np.float32([[0.5, -np.inf, 0.0, 1.0], [-np.inf, 0.0, 0.0, -2.0]])


def check_log_sum(head, tolerance=1e-5):
    query, labels = queries(2, 5), tf.constant([[7, -1], [3, 9]])
    ids = tf.constant([[4, 8, -1, 4], [5, 9, 4, 6]])
    is_dense, found = isinstance(head, DenseHead), []
    variables = variables_of(head) if is_dense else [tf_variable(own) for own in head.trainable_variables]

    def one_by_one():
        scores = tf.where(ids < 0, -np.inf, head.score(query, ids) + OFFSETS)
        return head.score(query, labels), tf.reduce_logsumexp(scores, 1, keepdims=True)

    given = query, labels, ids, -tf.constant(OFFSETS), LOGSUMEXP_OF_CANDIDATES
    for summed in (lambda: head.candidates(*given), one_by_one):
        with tf.GradientTape() as tape:
            logits, log_sum = summed()
            of_labels = tf.reduce_sum(tf.where(labels >= 0, logits, 0.0))
            total = of_labels + tf.reduce_sum(log_sum)
        found.append([of_labels, log_sum, *tape.gradient(total, variables)])
    for gradient in found[0][2:]:
        if isinstance(gradient, tf.IndexedSlices):
            first = head.row_offset if is_dense and gradient.values.shape.rank == 2 else 0
            assert set((gradient.indices.numpy() - first).tolist()) <= {3, 4, 6, 7, 9}
    for parts in zip(*found, strict=True):
        parts = (tf.cast(tf.convert_to_tensor(part), tf.float32) for part in parts)
        np.testing.assert_allclose(*parts, rtol=tolerance, atol=tolerance)


@EVERY_CONFIGURATION
def test_candidates_of_a_dense_head_are_summed_up_as_scored(name, path):
    check_log_sum(make_head(name, 13, 5), gradient_error(name))


def test_candidates_of_other_heads_are_summed_up_as_scored():
    for head in UniformSparseHead(13, 4, seed=0), PlainHead(13):
        check_log_sum(built(head, None, 5))


@pytest.mark.parametrize("shared", [False, True])
def test_an_empty_slot_is_masked_and_no_hit(shared):
    """However a draw says so: by id -1, or by a count that is infinite for some queries."""
    head, query, labels = make_head("plain", 13, 5), queries(2, 5), tf.constant([[7, -1], [3, 9]])
    ids = tf.constant([4, -1, 7]) if shared else tf.constant([[4, -1, 7], [9, 3, -1]])
    count = tf.constant([[0.5, 0.0, np.inf], [np.inf, 0.0, -1.0]])
    positives, candidates, which = score_candidates(head, query, labels, ids, count)
    empty = (ids.numpy() < 0) | np.isinf(count)
    np.testing.assert_allclose(positives, head.score(query, labels), rtol=1e-6)
    want = np.where(empty, MASKED_LOGIT, head.score(query, ids))
    np.testing.assert_allclose(candidates.logits, want, rtol=1e-6)
    np.testing.assert_array_equal(candidates.log_expected_count, np.where(empty, 0, count))
    assert which.numpy().tolist() == [[-1, -1, -1], [-1, -1, -1] if shared else [-1, 0, -1]]


def test_empty_slots_touch_no_bias_that_is_not_scored():
    bias = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        biases = class_biases(bias, tf.constant([[2, -1], [-1, 1]]))
    assert biases.numpy().tolist() == [[3.0, 0.0], [0.0, 2.0]]
    gradient = tape.gradient(biases, bias)
    assert 0 not in gradient.indices and tf.convert_to_tensor(gradient).numpy().tolist() == [0.0, 1.0, 1.0]


class PlainHead(Head):
    def build(self, input_shape):
        self.dim = input_shape[-1]
        self.effective_dim = self.dim + 1
        self.table = self.add_weight(shape=(self.num_classes, self.dim), name="table")
        self.bias = self.add_weight(shape=(self.num_classes,), name="bias")
        self.built = True

    def effective_query(self, query):
        return tf.pad(tf.cast(query, tf.float32), [[0, 0], [0, 1]], constant_values=1.0)

    def class_vectors_of(self, class_ids):
        bias = tf.gather(tf_variable(self.bias), class_ids)[:, tf.newaxis]
        return tf.concat([tf.gather(tf_variable(self.table), class_ids), bias], 1)


@pytest.fixture
def twins(tiny_blocks):
    dense, plain = make_head("bias", 29, 5), PlainHead(29)
    plain.max_block_size = 8
    plain.build((None, 5))
    tf_variable(plain.table).assign(tf_variable(dense.table))
    tf_variable(plain.bias).assign(tf_variable(dense.bias))
    return plain, dense, tf.constant(queries(4, 5), tf.float32)


LABELS = tf.constant([[3, -1], [28, 0], [-1, -1], [7, 8]])
LOSSES = [
    SoftmaxCrossentropy(),
    SquaredHinge(),
    SoftmaxCrossentropy(label_smoothing=0.2, name="smoothed"),
    SoftmaxCrossentropy(decoupled=True),
    BinaryCrossentropy(),
]


@pytest.mark.traced
@pytest.mark.parametrize("loss", long_after(1, *LOSSES), ids=lambda loss: loss.name)
@pytest.mark.parametrize("traced", long_after(1, True, False))
def test_two_functions_make_a_head(twins, loss, traced):
    plain, dense, query = twins

    def gradients(head):
        with tf.GradientTape() as tape:
            tape.watch(query)
            losses = head.losses(query, LABELS, loss)
            total = tf.reduce_sum(losses * tf.constant([1.0, 2.0, 3.0, 4.0]))
        variables = tf_variable(head.table), tf_variable(head.bias)
        found = tape.gradient(total, [query, *variables])
        return [losses, *(tf.convert_to_tensor(part) for part in found)]

    run = tf.function(gradients) if traced else gradients
    for one, other in zip(run(plain), run(dense), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda vectors: vectors[:-1], "(28, 6)"),
        (lambda vectors: vectors[:, 1:], "(29, 5)"),
        (lambda vectors: vectors[:, tf.newaxis], "(29, 1, 6)"),
    ],
)
def test_an_own_heads_vectors_of_another_shape_are_refused(twins, monkeypatch, change, shape):
    plain, _, query = twins
    right = plain.class_vectors_of
    monkeypatch.setattr(plain, "class_vectors_of", lambda ids: change(right(ids)))
    wanted = r"PlainHead.class_vectors_of must give a vector of width effective_dim = 6 for each class id"
    with pytest.raises(ValueError, match=wanted) as error:
        list(blocks(plain))
    assert str(error.value).endswith(f"but gave {shape}.")
    build = InvertedIndex().build_from
    for use, given in ((plain.score, (query, LABELS)), (plain.top_k, (query, 3)), (build, [plain])):
        with pytest.raises(ValueError, match=wanted):
            use(*given)


def test_an_own_heads_queries_of_another_width_are_refused(twins, monkeypatch):
    plain, _, query = twins
    wide = plain.effective_query(tf.concat([query, query], 1)[:, : query.shape[1]])
    monkeypatch.setattr(plain, "effective_query", lambda query: tf.concat([wide, wide], 1))
    for use in (
        lambda: plain.score(query, LABELS),
        lambda: plain.top_k(query, 3),
        lambda: tfxc.head_loss(plain, SoftmaxCrossentropy(), query, LABELS, MIDX(3, num_codewords=2)),
        lambda: InvertedIndex().tune(plain, queries=query),
    ):
        with pytest.raises(ValueError, match="PlainHead.effective_query must give a vector of width .* = 6"):
            use()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("method", ["effective_query", "class_vectors_of"])
def test_an_own_heads_vectors_of_another_type_are_float32(twins, monkeypatch, method, dtype):
    plain, _, query = twins
    given = getattr(plain, method)
    monkeypatch.setattr(plain, method, lambda of: tf.cast(given(of), dtype))
    sampler = MIDX(3, num_codewords=2)
    for own in (None, sampler):
        assert np.isfinite(tfxc.head_loss(plain, SoftmaxCrossentropy(), query, LABELS, own))
    sampler.refresh(plain)
    InvertedIndex().tune(plain, queries=query)
    assert plain.score(query, LABELS).dtype == plain.top_k(query, 3).scores.dtype == tf.float32


def test_the_defaults_score_and_rank_as_a_dense_head(twins):
    plain, dense, query = twins
    np.testing.assert_allclose(plain(query), dense(query), rtol=1e-5, atol=1e-6)
    for ids in (tf.constant([[3, -1, 28]] * 4), tf.constant([5, -1, 0])):
        np.testing.assert_allclose(plain.score(query, ids), dense.score(query, ids), rtol=1e-5, atol=1e-6)
    best, want = plain.top_k(query, 6), dense.top_k(query, 6)
    np.testing.assert_array_equal(best.ids, want.ids)
    np.testing.assert_allclose(best.scores, want.scores, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="class id is outside"):
        plain.score(query, tf.constant([[29]] * 4))


class WithoutVectors(Head):
    indexable = False

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), name="kernel")
        super().build(input_shape)

    def own_logits(self, query):
        return tf.matmul(query, tf_variable(self.kernel))

    def blocks(self, query):
        logits = self.own_logits(query)
        return lambda start, stop: tf.gather(logits, tf.range(start, stop) % 4, axis=1)

    def score(self, query, class_ids):
        own, places = class_ids.shape.rank - 1, tf.maximum(class_ids, 0) % 4
        logits = tf.gather(self.own_logits(query), places, axis=1, batch_dims=own)
        return tf.where(class_ids < 0, 0.0, logits)


@pytest.mark.parametrize("loss", [SoftmaxCrossentropy(), BinaryCrossentropy()])
def test_three_functions_make_a_head_without_class_vectors(tiny_blocks, loss):
    head, dense, query = WithoutVectors(29), DenseHead(29), queries(4, 6)
    for own in (head, dense):
        own.build((None, 6))
    tf_variable(dense.table).assign(tf.gather(tf.transpose(tf_variable(head.kernel)), tf.range(29) % 4))
    np.testing.assert_allclose(head.losses(query, LABELS, loss), dense.losses(query, LABELS, loss), rtol=1e-4)
    losses, best = head.losses_and_best(query, LABELS, loss, 5)
    np.testing.assert_allclose(losses, dense.losses(query, LABELS, loss), rtol=1e-4)
    np.testing.assert_array_equal(best.ids, head.top_k(query, 5).ids)
    for allow in (None, [[3, 8, 14]]):
        scores, want = (own.top_k(query, 3, allow=allow).scores for own in (head, dense))
        np.testing.assert_allclose(scores, want, rtol=1e-4)


encoded = partial(EncodedHead, keras.layers.Dense(2))


def test_heads_that_cannot_filter_gradients_refuse_to():
    for head in (UniformSparseHead(9, fan_in=2), MACHHead(9, 5, 3), encoded(9)):
        head.check(loss=SoftmaxCrossentropy())
        message = f"{type(head).__name__} computes the whole gradient.*filter_below=0.5.*DenseHead"
        with pytest.raises(ValueError, match=message):
            head.check(loss=SoftmaxCrossentropy(filter_below=0.5))


@pytest.mark.parametrize("make", [DenseHead, partial(UniformSparseHead, fan_in=2), encoded])
def test_an_initializer_of_biases_that_a_head_does_not_have_is_refused(make):
    with pytest.raises(ValueError, match="starts no bias: pass use_bias=True, or leave it out"):
        make(5, bias_initializer=keras.initializers.Constant(-1.0))
