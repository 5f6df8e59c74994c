import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import (
    DIM,
    NUM_CLASSES,
    SAMPLERS,
    all_logits,
    dense_encoder,
    features,
    item_encoder,
    learnable,
    log_softmax,
    make_model,
)
from long_cases import long_after
from sampler_checks import built

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.losses import BinaryCrossentropy, CandidateReduction, SoftmaxCrossentropy, SquaredHinge
from tfxc.losses.reductions import log_sum_exp
from tfxc.samplers import MIDX, InBatch, Uniform

ROWS = [[3], [1, 7, 7], [], [24, 0]]
PADDED = tf.ragged.constant(ROWS, tf.int32).to_tensor(-1)
WEIGHTS = [0.5, 2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        pytest.param("mixture", BinaryCrossentropy(), marks=pytest.mark.both_keras),
        *((name, SoftmaxCrossentropy()) for name in SAMPLERS),
        *((name, BinaryCrossentropy()) for name in ("none", "shared")),
    ],
    ids=lambda given: getattr(given, "name", given),
)
def test_equals_the_training_loss_of_the_classifier(name, loss):
    model = make_model(SAMPLERS[name](), loss)
    x = tf.constant(features(4))
    want = model.compute_loss(x, PADDED, sample_weight=tf.constant(WEIGHTS), training=True)
    if model.sampler is not None:  # the same draws again
        for part in getattr(model.sampler, "samplers", [model.sampler]):
            tf_variable(part.counter).assign(0)
    got = tfxc.head_loss(model.head, loss, model.encoder(x), PADDED, model.sampler, WEIGHTS)
    np.testing.assert_array_equal(got, want)


class OneByOne(SoftmaxCrossentropy):
    over_candidates = None

    def sampled(self, positives, negatives, is_label, hits, label_slots=None):
        folded = SoftmaxCrossentropy(self.estimator).over_candidates.of(negatives, hits)
        return self.with_candidates(positives, folded, is_label, label_slots)


SUMMED_HEADS = {
    "plain": {},
    "bias": {"use_bias": True, "temperature": 0.5},
    "normalised": {"normalize": True, "temperature": 0.1},
    "bfloat16": {"table_dtype": "bfloat16"},
    "tied": {"tied_to": "items", "use_bias": True},
}


@pytest.mark.parametrize(
    ("head", "sampler", "estimator"),
    long_after(
        2,
        ("plain", "uniform", "partition"),
        ("plain", "mixture", "ranking"),
        ("bias", "midx", "ranking"),
        ("normalised", "mixture", "partition"),
        ("bfloat16", "mixture", "partition"),
        ("tied", "midx", "ranking"),
        ("plain", "midx", "ranking"),
        ("normalised", "uniform", "partition"),
        ("tied", "mixture", "partition"),
    ),
)
def test_candidates_are_summed_up_as_if_scored_one_by_one(head, sampler, estimator):
    """How each head sums up: layers/test_head.py. Candidates of a batch are always scored one by one."""
    head = SUMMED_HEADS[head]
    is_tied = "tied_to" in head
    found = []
    for loss_class in OneByOne, SoftmaxCrossentropy:
        keras.utils.set_random_seed(0)
        own = DenseHead(NUM_CLASSES, row_offset=1, **head) if is_tied else DenseHead(NUM_CLASSES, **head)
        loss = loss_class(estimator)
        model = make_model(SAMPLERS[sampler](), loss, own, item_encoder() if is_tied else dense_encoder())
        x = tf.constant([[1, 2], [3, 0], [4, 4], [25, 9]]) if is_tied else tf.constant(features(4))
        labels = tf.repeat(PADDED[:, tf.newaxis], 2, axis=1) if is_tied else PADDED
        with tf.GradientTape() as tape:
            value = model.compute_loss(x, labels, training=True)
        gradients = tape.gradient(value, [tf_variable(weight) for weight in model.trainable_weights])
        found.append([value, *map(tf.convert_to_tensor, gradients)])
    for one_by_one, summed in zip(*found, strict=True):
        one_by_one, summed = (tf.cast(part, tf.float32) for part in (one_by_one, summed))
        np.testing.assert_allclose(summed, one_by_one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", ["ranking", "partition"])
def test_an_empty_slot_is_no_hit(estimator):
    """In batch, an example's own label is no candidate of its: of one label, decoupled is the same loss."""
    query, labels = features(4), tf.constant([[3], [0], [3], [7]])
    losses = [SoftmaxCrossentropy(estimator, decoupled=decoupled) for decoupled in (False, True)]
    head = DenseHead(NUM_CLASSES, embeddings_initializer="zeros")
    sampler = InBatch(counts=np.ones(NUM_CLASSES))
    plain, decoupled = (tfxc.head_loss(head, loss, query, labels, sampler) for loss in losses)
    np.testing.assert_allclose(decoupled, plain, rtol=1e-6)


def test_what_a_loss_or_sampler_of_ones_own_does_is_not_passed_over():
    class Learning(Uniform):
        learnt = False

        def learn(self, step, draw, scored):
            self.learnt = scored()[1].logits.shape == [4, 8]

    def halved(scored):
        return log_sum_exp(scored.logits / 2 - scored.log_expected_count)

    class Halved(SoftmaxCrossentropy):
        over_candidates = CandidateReduction(halved)

    head, query, sampler = DenseHead(NUM_CLASSES), features(4), Learning(8, seed=1)
    plain = tfxc.head_loss(head, SoftmaxCrossentropy(), query, PADDED, sampler)
    assert sampler.learnt
    other, summed = (
        tfxc.head_loss(head, loss, query, PADDED, Uniform(8, seed=1))
        for loss in (Halved(), SoftmaxCrossentropy())
    )
    np.testing.assert_allclose(plain, summed, rtol=1e-5)
    assert abs(other - summed) > 1e-3


@pytest.mark.parametrize(
    "labels",
    [PADDED.numpy(), tf.ragged.constant(ROWS, tf.int64), tf.ragged.constant(ROWS, tf.int64).to_sparse()],
    ids=["numpy", "ragged", "sparse"],
)
def test_every_form_of_labels(labels):
    head, query = DenseHead(NUM_CLASSES), features(4)
    losses = tfxc.head_loss(head, SoftmaxCrossentropy(reduction="none"), query, labels)
    log_probs = log_softmax(head(query).numpy().astype(np.float64))
    want = [-np.mean(log_probs[n, sorted(set(row))]) if row else 0 for n, row in enumerate(ROWS)]
    np.testing.assert_allclose(losses, want, rtol=1e-5, atol=1e-6)


def test_sequences_count_where_they_are_labelled_and_not_masked():
    history, labels = tf.constant([[0, 4, 9], [3, 1, 2]]), np.array([[5, 6, 9], [1, -1, 2]])
    query = keras.layers.Embedding(10, DIM, mask_zero=True)(history)
    head = DenseHead(NUM_CLASSES)
    losses = tfxc.head_loss(head, SoftmaxCrossentropy(reduction="none"), query, labels)
    log_probs = log_softmax(head(query).numpy().astype(np.float64))
    want = [-log_probs[n, t, labels[n, t]] for n, t in ((0, 1), (0, 2), (1, 0), (1, 2))]
    np.testing.assert_allclose(losses, want, rtol=1e-5)


RANKS = r"query must be \[B, D\] or, for sequences, \[B, T, D\], but has"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head": keras.layers.Dense(3)}, r"head must be one of tfxc\.layers"),
        ({"loss": keras.losses.SparseCategoricalCrossentropy()}, r"loss must be one of tfxc\.losses"),
        ({"loss": SoftmaxCrossentropy}, r"loss must be one of tfxc\.losses"),
        ({"sampler": "uniform"}, r"sampler must be None or one of tfxc\.samplers.* but got 'uniform'"),
        ({"sampler": built(Uniform(3), 24, DIM)}, "built for 24 classes, but the head"),
        (
            {"sample_weight": {"item": np.ones(2)}},
            r"sample_weight must be an array.* dict of .*'item'.*\[\.\.\.\]",
        ),
        *(({"query": tf.ones(shape)}, RANKS) for shape in ([], [DIM], [1, 2, 3, DIM])),
    ],
)
def test_parts_of_another_kind_are_named(given, message):
    parts = {"head": DenseHead(NUM_CLASSES), "loss": SoftmaxCrossentropy(), "query": features(2), **given}
    with pytest.raises(ValueError, match=message):
        tfxc.head_loss(labels=[1, 2], **parts)


class TwoTasks(keras.Model):
    def __init__(self, sampler):
        super().__init__()
        self.encoder = dense_encoder()
        self.head = DenseHead(NUM_CLASSES)
        self.sampler = sampler
        self.price = keras.layers.Dense(1)
        self.classes = SoftmaxCrossentropy()
        self.sampling = True

    def call(self, inputs):
        query = self.encoder(inputs)
        return {"item": query, "price": self.price(query)}  # tf-keras wants the keys of the targets

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        sampler = self.sampler if self.sampling else None
        loss = tfxc.head_loss(self.head, self.classes, y_pred["item"], y["item"], sampler)
        return loss + tf.reduce_mean(tf.square(y["price"] - y_pred["price"][:, 0]))


@pytest.mark.long
@pytest.mark.traced
def test_one_of_several_tasks():
    x, item = learnable(128)
    targets = {"item": item, "price": x[:, 0].copy()}
    model = TwoTasks(MIDX(8, num_codewords=4))
    model.compile(tfxc.optimizers.LazyAdam(0.05), metrics={"price": "mae"}, steps_per_execution=2)

    def losses():
        log_probs = log_softmax(all_logits(model, x))
        error = model(tf.constant(x))["price"].numpy()[:, 0] - targets["price"]
        return np.array([-log_probs[np.arange(128), item].mean(), np.square(error).mean()])

    model.head.build((None, DIM))
    before = losses()
    model.fit(x, targets, batch_size=32, epochs=8, callbacks=[tfxc.callbacks.SamplerRefresh()], verbose=0)
    assert (losses() < 0.7 * before).all()
    assert int(tf_variable(model.sampler.counter)) >= 32


@pytest.mark.parametrize("sampler", [None, Uniform(4)], ids=["all", "sampled"])
def test_head_and_sampler_are_built_for_the_queries(sampler):
    head = DenseHead(NUM_CLASSES, use_bias=True)
    tfxc.head_loss(head, SoftmaxCrossentropy(), features(2), [0, 1], sampler)
    assert head.table_variable.shape == (NUM_CLASSES, DIM)
    assert sampler is None or sampler.query_dim == DIM + 1


@pytest.mark.parametrize("width", [4, 7])
@pytest.mark.parametrize("options", [{"fan_in": 3}, {}], ids=["sparse", "dense"])
def test_queries_of_another_width_than_the_head_was_built_for_are_refused(options, width):
    kind, loss = UniformSparseHead if options else DenseHead, SquaredHinge()
    head = built(kind(NUM_CLASSES, **options), None, 5)
    message = rf"was built for queries \[N, 5\], but query has shape \(None, {width}\)"
    with pytest.raises(ValueError, match=message):
        tfxc.head_loss(head, loss, features(4)[:, :1] @ np.ones([1, width], np.float32), PADDED)
    encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(width)])
    with pytest.raises(ValueError, match=message):
        tfxc.ExtremeClassifier(encoder, head)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("loss", [SoftmaxCrossentropy(), BinaryCrossentropy()])
def test_an_id_below_minus_1_that_a_sampler_draws_is_named(loss, shared):
    class Own(Uniform):
        def draw(self, given, seed):
            ids, counts = super().draw(given, seed)
            return ids - 100, counts

    head, given = DenseHead(20), (tf.ones([4, 3]), tf.range(4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is -\d+"):
        tfxc.head_loss(head, loss, *given, sampler=Own(5, shared=shared))


@pytest.mark.parametrize(
    "change", [tuple, lambda draw: draw._replace(label_log_expected_count=tf.zeros([4]))]
)
def test_what_is_no_draw_for_the_labels_is_refused(change):
    class Own(Uniform):
        def sample(self, step):
            return change(super().sample(step))

    with pytest.raises(ValueError, match=r"Own.sample must return a tfxc.samplers.Draw .* labels \(4, 1\)"):
        tfxc.head_loss(DenseHead(20), SoftmaxCrossentropy(), tf.ones([4, 3]), tf.range(4), Own(5))


def test_an_own_head_whose_vectors_are_wider_than_queries_has_an_index():
    class Wider(tfxc.layers.Head):
        def build(self, input_shape):
            self.effective_dim = input_shape[-1] + 1
            self.table = self.add_weight(shape=(self.num_classes, self.effective_dim), name="table")
            self.built = True

        def effective_query(self, query):
            return tf.pad(query, [[0, 0], [0, 1]], constant_values=1.0)

        def class_vectors_of(self, class_ids):
            return tf.gather(self.table, class_ids)

    head = Wider(20)
    tfxc.head_loss(head, SoftmaxCrossentropy(), tf.ones([4, 3]), tf.range(4))
    index, query = tfxc.search.faiss_index(head), tf.ones([1, 3])
    found = index.search(head.effective_query(query).numpy(), 5)[1]
    np.testing.assert_array_equal(found, head.top_k(query, 5).ids)
