import html.parser
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import COUNTS, NUM_CLASSES, dense_encoder, features, item_encoder, make_model
from long_cases import long_after

import tfxc
from tfxc.metrics import AveragePopularityAtK, CoverageAtK, MRRAtK, NDCGAtK, NoveltyAtK, RecallAtK
from tfxc.report.measurements import ODDS, measure
from tfxc.samplers import DNS, MIDX, InBatch

K = 4
SOFTMAX, BINARY = tfxc.losses.SoftmaxCrossentropy, tfxc.losses.BinaryCrossentropy
KINDS = {
    "dense": lambda: (None, SOFTMAX(), MIDX(8, num_codewords=4)),
    "sparse": lambda: (tfxc.layers.UniformSparseHead(NUM_CLASSES, 4), BINARY(), None),
    "mach": lambda: (tfxc.layers.MACHHead(NUM_CLASSES, num_buckets=8, num_repetitions=3), SOFTMAX(), None),
    "hinge": lambda: (None, tfxc.losses.SquaredHinge(), None),
    "in batch": lambda: (None, SOFTMAX(), InBatch(None, counts=COUNTS)),
    "dns": lambda: (None, SOFTMAX(), DNS(8, num_candidates=16)),
}


def labels_of(num, width, seed=1):
    labels = np.random.default_rng(seed).integers(-1, NUM_CLASSES, [num, width])
    labels[0] = -1
    return labels[:, 0] if width == 1 else labels


class Page(html.parser.HTMLParser):
    """The tags of a page that are not closed, and all of its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags = [], "", set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert not {"src"} & set(dict(attributes)), "loads something"
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.both_keras
@pytest.mark.parametrize("kind", long_after(1, *KINDS))
def test_figures_are_those_of_evaluate_and_of_the_metrics(kind, tmp_path):
    head, loss, sampler = KINDS[kind]()
    metrics = [RecallAtK(K), NDCGAtK(K), MRRAtK(K), CoverageAtK(K, NUM_CLASSES)]
    metrics += [NoveltyAtK(K, COUNTS), AveragePopularityAtK(K, COUNTS)]
    model = make_model(sampler, loss, head, k=K, metrics=metrics)
    x, y = features(50), labels_of(50, 1 if kind == "mach" else 3)
    model.fit(x, np.where(y < 0, 0, y), verbose=0)
    figures = tfxc.report(model, (x, y), tmp_path / "a.html", COUNTS)
    expected = model.evaluate(x, y, 16, return_dict=True, verbose=0)
    assert figures == pytest.approx({**figures, **expected}, rel=1e-5)
    page = Page((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert not page.open and {"svg", "table"} <= page.tags
    assert ("calibration_error" in figures) == (kind != "hinge")
    assert ("effective draws" in page.text) == (sampler is not None and kind != "dns")


def test_by_class_against_counting():
    model = make_model(k=K)
    x, y = features(40), labels_of(40, 3)
    measured = measure(model, (x, y), K)
    ids = model.predict(x, verbose=0)["ids"]
    sets = [set(row) - {-1} for row in y]
    for own in range(NUM_CLASSES):
        is_label, is_best = np.array([own in row for row in sets]), (ids == own).any(1)
        expected = (ids[:, 0] == own).sum(), is_best.sum(), is_label.sum(), (is_label & is_best).sum()
        got = measured.first, measured.recommended, measured.labels, measured.found
        assert tuple(counts[own] for counts in got) == expected
    assert measured.num_examples == sum(map(bool, sets))


@pytest.mark.parametrize(("loss", "probability"), [(SOFTMAX(), 1 / NUM_CLASSES), (BINARY(), 0.5)])
def test_calibration_of_a_model_that_knows_nothing(loss, probability):
    model = make_model(loss=loss, k=K)
    for weight in model.head.weights:
        weight.assign(tf.zeros_like(weight))
    y = np.array([[0, -1], [1, -1], [0, 3], [-1, -1]])  # all logits are equal, so that class 0 comes first
    bins = measure(model, (features(4), y), K).calibration
    (where,) = np.flatnonzero(bins.num)
    assert bins.num[where] == 3 and bins.predicted[where] == pytest.approx(3 * probability)
    hits = 1.5 if loss.labels_share_probability else 2.0
    assert bins.observed[where] == pytest.approx(hits)
    assert bins.error == pytest.approx(abs(3 * probability - hits) / 3)
    assert ODDS[where] == round(np.log2(probability / (1 - probability)))


@pytest.mark.long
@pytest.mark.both_keras
def test_sequences_exclusions_and_ragged_labels(tmp_path):
    model = make_model(encoder=item_encoder(), k=K, metrics=[RecallAtK(K)])
    items = np.random.default_rng(0).integers(1, NUM_CLASSES, [6, 5])
    items[:, 0] = 0
    labels = tf.RaggedTensor.from_tensor(items - 1, padding=-1)
    inputs = {"history": items, "exclude": np.arange(12).reshape(6, 2)}
    data = tf.data.Dataset.from_tensor_slices((inputs, np.asarray(items) - 1)).batch(2)
    expected = model.evaluate(data, return_dict=True, verbose=0)
    figures = tfxc.report(model, data, tmp_path / "a.html")
    assert figures["recall_at_4"] == pytest.approx(expected["recall_at_4"])
    model = make_model(k=K)
    ragged = tf.data.Dataset.from_tensor_slices((features(6), labels)).batch(4)
    dense = tfxc.report(model, (features(6), items - 1), tmp_path / "b.html")
    assert tfxc.report(model, ragged, tmp_path / "c.html") == pytest.approx(dense)


@pytest.mark.long
def test_names_are_text(tmp_path):
    names = [f"<script>alert({number})</script>" for number in range(NUM_CLASSES)]
    model = tfxc.ExtremeClassifier(dense_encoder(), tfxc.layers.DenseHead(NUM_CLASSES), class_names=names)
    model.compile("sgd", SOFTMAX())
    counts = np.full(NUM_CLASSES, 999.7)
    tfxc.report(model, (features(20), labels_of(20, 1)), tmp_path / "a.html", counts=counts)
    page = Page((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert "average popularity of labels1,000" in page.text and "e+" not in page.text
    assert "script" not in page.tags and re.search(r"<script>alert\(\d+\)</script>", page.text)


def test_bad_input(tmp_path, monkeypatch):
    model, x, y, path = make_model(k=K), features(4), np.arange(4), tmp_path / "a.html"
    path.write_text("before")
    cases = [
        (("model", (x, y)), {}, "model must be a tfxc.ExtremeClassifier, but got 'model'"),
        ((model, (x, y)), {"counts": [1, 2]}, r"counts must be .* each of the 25 classes.*shape \(2,\)"),
        ((model, (x, y)), {"counts": -COUNTS}, "at least 0"),
        ((model, (x, y)), {"k": 0}, "k must be an integer of at least 1"),
        ((model, (x, y)), {"num_named": 0}, "num_named must be"),
        ((model, (x, y - 9)), {}, "^(?!Graph execution error)"),
        ((model, (x * np.nan, y)), {}, "ranks no class: its queries are NaN"),
        ((model, (x, np.full(4, -1))), {}, "data hold no example with a label"),
        ((model, tf.data.Dataset.from_tensor_slices((x, y)).batch(2).repeat()), {}, "data have no end"),
        ((model, tf.data.Dataset.from_tensor_slices(x).batch(2)), {}, "needs labels"),
        ((model, None), {}, r"data must be batches \(inputs, labels\), or one tuple .* but got None"),
    ]
    for arguments, options, message in cases:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
            tfxc.report(*arguments, path, **options)
    loose = tfxc.ExtremeClassifier(model.encoder, tfxc.layers.DenseHead(NUM_CLASSES))
    with pytest.raises(ValueError, match="must be built and compiled"):
        tfxc.report(loose, (x, y), path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tfxc.report(model, (x, y), tmp_path / "nowhere" / "a.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        tfxc.report(model, (x, y), path)
    assert path.read_text() == "before"
