import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, learnable, make_model, weights_of

from tfxc._keras import keras
from tfxc.callbacks import SamplerDiagnostics, SamplerRefresh
from tfxc.layers import EncodedHead
from tfxc.samplers import DNS, MIDX, InBatch, Mixture, Uniform, proposal_quality

ORDERED = "sampler/kl", "sampler/effective_sample_size", "sampler/accidental_hits"
NAMES = set(ORDERED)
PROBE = learnable(12, seed=1)


def fit(model, *callbacks, epochs=1, **options):
    x, y = learnable(32)
    options = {"verbose": 0, "shuffle": False, "batch_size": 8, **options}
    return model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options).history


def midx_model(**options):
    return make_model(sampler=MIDX(8, num_codewords=4, seed=3), **options)


def recorder(found):
    """Notes in a list in which batches the logs have what is measured."""
    note = lambda batch, logs: set(logs) >= NAMES and found.append(batch)  # noqa: E731
    return keras.callbacks.LambdaCallback(on_train_batch_end=note)


def test_logs_what_the_sampler_and_head_give_at_the_end_of_the_epoch(capsys):
    model, batches, diagnostics = midx_model(), [], SamplerDiagnostics(*PROBE, every=3)
    history = fit(model, SamplerRefresh(every=3), diagnostics, recorder(batches), epochs=2, verbose=2)
    query, labels, _ = model.examples(*map(tf.constant, PROBE))
    want = proposal_quality(model.sampler, model.head, query, labels)
    for name, values in zip(ORDERED, want, strict=True):
        assert len(history[name]) == 2
        assert history[name][-1] == pytest.approx(float(np.mean(values)), rel=1e-4)
    assert 0 < history["sampler/kl"][-1] < 5 and 0 < history["sampler/effective_sample_size"][-1] <= 8
    # The logs of every third batch have it too, and what is printed of an epoch of four.
    assert batches == [2, 1]
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES | {"sampler/index_age"})


def test_of_uniform_draws_and_ragged_labels():
    labels = tf.ragged.constant([[1, 2]] * 6 + [[3]] * 6, dtype=tf.int32)
    model = make_model(sampler=Uniform(8), run_eagerly=True)
    history = fit(model, SamplerDiagnostics(PROBE[0], labels), batch_size=32)
    assert set(history) >= NAMES and np.isfinite(history["sampler/kl"][0])
    assert history["sampler/accidental_hits"][0] == pytest.approx(1.5 / NUM_CLASSES, rel=1e-4)


@pytest.mark.long
def test_training_goes_on_as_without_it():
    results = []
    for callbacks in ([], [SamplerDiagnostics(*PROBE, every=1)]):
        keras.utils.set_random_seed(1)
        model = make_model(sampler=Mixture([MIDX(4, num_codewords=4, seed=1), Uniform(4, seed=2)]))
        fit(model, SamplerRefresh(), *callbacks, epochs=2)
        results.append(weights_of(model))
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_steps_at_once_are_one_batch_of_the_logs():
    model, batches = midx_model(steps_per_execution=2), []
    fit(model, SamplerDiagnostics(*PROBE, every=2), recorder(batches), epochs=1, batch_size=4)  # 8 steps
    assert len(batches) == 4


def test_written_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    model, board = midx_model(run_eagerly=True), keras.callbacks.TensorBoard(tmp_path)
    fit(model, SamplerDiagnostics(*PROBE), board, batch_size=32)
    (events,) = (tmp_path / "train").glob("events*")
    tags = {v.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for v in event.summary.value}
    assert {f"epoch_{name}" for name in NAMES} <= tags


def test_what_cannot_be_measured_is_refused():
    own = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    own.sampler, own.head = Uniform(4), make_model().head
    own.compile("sgd", "mse")
    dns = make_model(sampler=DNS(4, num_candidates=8))
    needs = r"needs an ExtremeClassifier\(..., sampler=...\), but got"
    alone = f"{needs} ExtremeClassifier without a sampler"
    refused = ((own, f"{needs} Sequential with a"), (make_model(), alone), (dns, "nobody knows .* of DNS"))
    for model, message in refused:
        with pytest.raises(ValueError, match=message):
            fit(model, SamplerDiagnostics(*PROBE))
    with pytest.raises(ValueError, match="measures on examples, but got none"):
        SamplerDiagnostics(PROBE[0][:0], PROBE[1][:0])
    with pytest.raises(ValueError, match="every must be"):
        SamplerDiagnostics(*PROBE, every="step")


@pytest.mark.traced
def test_examples_that_do_not_fit_are_told_without_a_report():
    with pytest.raises(ValueError, match="^There must be one row of labels for each query"):
        fit(midx_model(), SamplerRefresh(every=3), SamplerDiagnostics(PROBE[0], PROBE[1][:5]))


def test_class_vectors_that_are_computed_are_those_of_now():
    features = np.random.default_rng(0).normal(size=(NUM_CLASSES, 3)).astype(np.float32)
    item_encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6)])
    head = EncodedHead(item_encoder, features)
    model = make_model(sampler=Uniform(8, shared=True), head=head, run_eagerly=True)
    history = fit(model, SamplerDiagnostics(*PROBE), batch_size=32)
    model.head.freshen(force=True)
    query, labels, _ = model.examples(*map(tf.constant, PROBE))
    kl = np.mean(proposal_quality(model.sampler, model.head, query, labels).kl)
    assert history["sampler/kl"] == [pytest.approx(kl, rel=1e-4)] and kl > 0.01


@pytest.mark.long
def test_a_probe_without_candidates_is_refused():
    one = [part[:1] for part in PROBE]
    with pytest.raises(tf.errors.InvalidArgumentError, match="InBatch has no candidates.*more examples"):
        fit(make_model(sampler=InBatch()), SamplerDiagnostics(*one), batch_size=32)
    assert np.isfinite(fit(make_model(sampler=InBatch()), SamplerDiagnostics(*PROBE))["sampler/kl"]).all()
