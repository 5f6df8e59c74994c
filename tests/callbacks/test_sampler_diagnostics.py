"""What diagnostics put into the logs, and that they leave training alone."""

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, learnable, make_model, weights_of

from tfxc._keras import keras
from tfxc.callbacks import SamplerDiagnostics, SamplerRefresh
from tfxc.samplers import DNS, MIDX, Mixture, Uniform, proposal_quality

NAMES = {"sampler/kl", "sampler/effective_sample_size", "sampler/accidental_hits"}
PROBE = learnable(12, seed=1)


def fit(model, *callbacks, epochs=1, **options):
    x, y = learnable(32)
    options = {"verbose": 0, "shuffle": False, "batch_size": 8, **options}
    return model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options).history


def midx_model(**options):
    return make_model(sampler=MIDX(8, num_codewords=4, seed=3), **options)


class Recorder(keras.callbacks.Callback):
    """Keeps the logs that callbacks later in the list see."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(set(logs))


def test_logs_what_the_sampler_and_head_give_at_the_end_of_the_epoch():
    model = midx_model()
    history = fit(model, SamplerRefresh(every=3), SamplerDiagnostics(*PROBE), epochs=2)
    query, labels, _ = model.examples(*map(tf.constant, PROBE))
    want = proposal_quality(model.sampler, model.head, query, labels)
    for name, values in zip(
        ["sampler/kl", "sampler/effective_sample_size", "sampler/accidental_hits"], want, strict=True
    ):
        assert len(history[name]) == 2
        assert history[name][-1] == pytest.approx(float(np.mean(values)), rel=1e-4)
    assert 0 < history["sampler/kl"][-1] < 5 and 0 < history["sampler/effective_sample_size"][-1] <= 8


def test_of_uniform_draws():
    history = fit(make_model(sampler=Uniform(8)), SamplerDiagnostics(*PROBE))
    assert set(history) >= NAMES
    assert history["sampler/accidental_hits"][0] == pytest.approx(1 / NUM_CLASSES, rel=1e-4)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: MIDX(8, num_codewords=4, seed=3),
        lambda: Mixture([MIDX(4, num_codewords=4, seed=1), Uniform(4, seed=2)]),
    ],
)
def test_training_goes_on_as_without_it(sampler):
    results = []
    for callbacks in ([], [SamplerDiagnostics(*PROBE, every=1)]):
        keras.utils.set_random_seed(1)
        model = make_model(sampler=sampler())
        fit(model, SamplerRefresh(), *callbacks, epochs=2)
        results.append(weights_of(model))
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(("steps_per_execution", "want"), [(1, [1, 3, 5, 7]), (2, [0, 1, 2, 3])])
def test_every_few_steps_the_batch_logs_have_it_too(steps_per_execution, want):
    recorder = Recorder()
    model = midx_model(steps_per_execution=steps_per_execution)
    fit(model, SamplerDiagnostics(*PROBE, every=2), recorder, epochs=1, batch_size=4)  # 8 steps
    assert [i for i, names in enumerate(recorder.batches) if names >= NAMES] == want


def test_shown_on_the_progress_bar(capsys):
    fit(midx_model(), SamplerRefresh(), SamplerDiagnostics(*PROBE), verbose=2)
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES | {"sampler/index_age"})


def test_written_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    fit(midx_model(), SamplerDiagnostics(*PROBE), keras.callbacks.TensorBoard(tmp_path))
    (events,) = (tmp_path / "train").glob("events*")
    tags = {v.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for v in event.summary.value}
    assert {f"epoch_{name}" for name in NAMES} <= tags


def test_ragged_labels():
    model, (x, _) = midx_model(), PROBE
    ragged = tf.ragged.constant([[1, 2]] * 6 + [[3]] * 6, dtype=tf.int32)
    history = fit(model, SamplerDiagnostics(x, ragged))
    assert np.isfinite(history["sampler/kl"][0])


@pytest.mark.parametrize("every", [0, -1, 1.5, "step"])
def test_arguments_are_checked(every):
    with pytest.raises(ValueError, match="every must be"):
        SamplerDiagnostics(*PROBE, every=every)


def test_a_model_without_a_sampler_is_refused():
    with pytest.raises(ValueError, match="needs a model with a sampler"):
        fit(make_model(), SamplerDiagnostics(*PROBE))


def test_a_sampler_of_no_known_distribution_is_refused():
    with pytest.raises(ValueError, match="no measure for DNS"):
        fit(make_model(sampler=DNS(4, num_candidates=8)), SamplerDiagnostics(*PROBE))
