import re

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features, learnable, ranking
from long_cases import long_after
from sampler_checks import built
from test_examples import BOOK, run

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable

pytestmark = [pytest.mark.both_keras, pytest.mark.traced]

if IS_KERAS_3:
    pytest.skip("TensorFlow Recommenders needs tf-keras", allow_module_level=True)
tfrs = pytest.importorskip("tensorflow_recommenders")

PLAIN = {}
SCALED = {"use_bias": True, "normalize": True, "temperature": 0.2}
COUNTS = np.random.default_rng(5).integers(1, 900, NUM_CLASSES).astype(np.float64)


def built_head(**options):
    head = built(tfxc.layers.DenseHead(NUM_CLASSES, **options), None, DIM)
    if head.use_bias:
        tf_variable(head.bias).assign(np.random.default_rng(6).normal(size=NUM_CLASSES))
    return head


def loss_and_gradients(function, query, table):
    with tf.GradientTape() as tape:
        tape.watch(query)
        loss = function(query)
    return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, [query, table]))]


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("counts", [None, COUNTS], ids=["uncorrected", "corrected"])
@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 8, dtype=np.float32)], ids=["", "weighted"])
def test_in_batch_is_the_softmax_of_the_retrieval_task(temperature, counts, weights):
    labels = tf.constant([3, 7, 3, 0, 24, 7, 3, 1])
    query = tf.constant(2 * features(8))
    head = built_head(temperature=temperature)
    task = tfrs.tasks.Retrieval(temperature=temperature)
    probability = None if counts is None else tf.constant((counts / counts.sum())[labels], tf.float32)
    sampler = tfxc.samplers.InBatch(counts=np.ones(NUM_CLASSES) if counts is None else counts, smoothing=0)
    loss = tfxc.losses.SoftmaxCrossentropy(reduction="sum")

    def theirs(query):
        candidates = tf.gather(head.table_variable, labels)
        return task(query, candidates, sample_weight=weights, candidate_sampling_probability=probability)

    def ours(query):
        return tfxc.head_loss(head, loss, query, labels, sampler, weights)

    want, got = (loss_and_gradients(one, query, head.table_variable) for one in (theirs, ours))
    for one, two in zip(want, got, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)


def test_rare_candidates_are_not_clipped():
    """The retrieval task corrects every item rarer than one in a million alike."""
    counts = np.array([1.0, 50.0, 1e9])
    sampler = built(tfxc.samplers.InBatch(counts=counts, smoothing=0), 3, DIM)
    step = tfxc.samplers.Step(tf.zeros([3, DIM]), tf.constant([[0], [1], [2]]))
    log_expected_count = sampler.sample(step).label_log_expected_count[:, 0]
    np.testing.assert_allclose(log_expected_count[1] - log_expected_count[0], np.log(50), rtol=1e-5)
    clipped = tfrs.layers.loss.SamplingProbablityCorrection()(tf.zeros([3]), tf.exp(log_expected_count) / 3)
    assert clipped[0] == clipped[1]


def class_vectors(head, size=4):
    def block(start):
        stop = tf.minimum(start + size, head.num_classes)
        return tf.range(start, stop), head.class_vectors(start, stop)

    return tf.data.Dataset.range(0, head.num_classes, size, output_type=tf.int32).map(block)


class TwoTower(tfrs.Model):
    def __init__(self, sampler=None, lazy=False, **options):
        super().__init__()
        self.query_tower = dense_encoder()
        self.head = tfxc.layers.DenseHead(NUM_CLASSES, **options)
        self.sampler = sampler
        self.loss_function = tfxc.losses.SoftmaxCrossentropy()
        self.top_k = None
        if not lazy:
            self.head.build((None, DIM))
            self.top_k = tfrs.metrics.FactorizedTopK(class_vectors(self.head), ks=(1, 5))

    def compute_loss(self, features, training=False):
        query, labels = self.query_tower(features["features"]), features["item"]
        if not training and self.top_k is not None:
            effective = self.head.effective_query(query)
            self.top_k.update_state(effective, tf.zeros_like(effective), true_candidate_ids=labels)
        sampler = self.sampler if training else None
        return tfxc.head_loss(self.head, self.loss_function, query, labels, sampler, features.get("weight"))


def dataset(num, batch_size=32, seed=0):
    x, y = learnable(num, seed)
    return tf.data.Dataset.from_tensor_slices({"features": x, "item": y.astype(np.int32)}).batch(batch_size)


@pytest.mark.parametrize("options", long_after(1, SCALED, PLAIN), ids=["scaled", "plain"])
def test_a_head_inside_a_tfrs_model(options):
    model = TwoTower(tfxc.samplers.MIDX(8, num_codewords=4), **options)
    model.compile(tfxc.optimizers.LazyAdam(0.05))
    refresh = tfxc.callbacks.SamplerRefresh()
    history = model.fit(dataset(256), epochs=8, callbacks=[refresh], verbose=0).history
    assert "sampler/refresh_seconds" in history and tf_variable(model.sampler.codebooks[0]).numpy().any()
    result = model.evaluate(dataset(64, 64), return_dict=True, verbose=0)
    x, y = learnable(64)
    logits = model.head(model.query_tower(x)).numpy().astype(np.float64)
    exact = np.log(np.exp(logits).sum(1)) - logits[np.arange(64), y]
    np.testing.assert_allclose(result["loss"], exact.mean(), rtol=1e-5)
    for k in (1, 5):
        hit = (ranking(logits, k) == y[:, np.newaxis]).any(1)
        np.testing.assert_allclose(result[f"factorized_top_k/top_{k}_categorical_accuracy"], hit.mean())
    assert result["factorized_top_k/top_1_categorical_accuracy"] > 0.5


def test_a_head_is_built_by_the_first_batch():
    model = TwoTower(tfxc.samplers.Uniform(4), lazy=True)
    model.compile(tfxc.optimizers.LazyAdam(0.05))
    losses = model.fit(dataset(128), epochs=4, verbose=0).history["loss"]
    assert model.head.built and losses[-1] < losses[0]
    assert len(model.trainable_variables) == 3  # kernel, bias and the table


@pytest.mark.parametrize("options", [PLAIN, SCALED], ids=["plain", "scaled"])
def test_a_brute_force_index_is_filled_from_a_head_and_exported(options, tmp_path):
    head, encoder, x = built_head(**options), dense_encoder(), features(7)
    query_model = keras.Model(encoder.inputs, head.effective_query(encoder.output))
    index = tfrs.layers.factorized_top_k.BruteForce(query_model, k=4)
    names = tf.constant([f"item {i}" for i in range(NUM_CLASSES)])
    index.index(head.class_vectors(0, NUM_CLASSES), names)
    index(x)  # traces what is exported
    tf.saved_model.save(index, str(tmp_path / "index"))
    scores, found = tf.saved_model.load(str(tmp_path / "index"))(x)
    want_scores, want_ids = head.top_k(encoder(x), 4)
    np.testing.assert_allclose(scores, want_scores, rtol=1e-5)
    assert found.numpy().tolist() == [[names[i].numpy() for i in row] for row in want_ids]


@pytest.mark.long
def test_the_example_trains_in_turns_and_exports_an_index(tmp_path):
    (tmp_path / "book.txt").write_text(BOOK)
    options = f"--data {tmp_path}/book.txt --min-count 1 --dim 8 --max-length 4 --output {tmp_path}/out"
    more = "--batch-size 64 --retrieval-batch-size 32 --num-negatives 4 --num-codewords 2 --refresh-steps 5"
    printed = run("tfrs_two_tower.py", options, more, "--seconds 2 --turns 2")
    results = re.findall(r"^\| (\w+) \| \d+ \| (\d+) \| [\d.]+ \| ([\d.]+) \|", printed, re.MULTILINE)
    assert [name for name, _, _ in results] == ["retrieval", "midx"]
    assert all(int(steps) > 5 and float(recall) > 0.5 for _, steps, recall in results)
    assert "  ->  " in printed and (tmp_path / "out" / "midx" / "saved_model.pb").exists()


def test_the_example_recommends_from_few_items(tmp_path):
    (tmp_path / "log.txt").write_text("".join(f"u{i % 8} i{(i % 8 + i // 8) % 9}\n" for i in range(40)))
    options = f"--data {tmp_path}/log.txt --format interactions --dim 4 --batch-size 8 --models uniform"
    printed = run("tfrs_two_tower.py", options, "--seconds 0.1 --turns 1 --output", tmp_path / "out")
    assert re.search(r"->  i\d(, i\d){4}\n", printed)
