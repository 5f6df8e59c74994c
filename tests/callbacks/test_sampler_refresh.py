import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.callbacks import SamplerRefresh, sampler_refresh
from tfxc.layers import DenseHead, EncodedHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.samplers import DNS, LSH, MIDX, InBatch, LogUniform, Mixture, Sphere, Uniform, Unigram


class Recorder(Uniform):
    def __init__(self, model_of, **options):
        super().__init__(2, seed=0, **options)
        self.model_of, self.steps = model_of, []

    def refresh(self, head):
        model = self.model_of()
        assert head is model.head
        self.steps.append(int(model.optimizer.iterations.numpy()))


@functools.cache
def recording_model(steps_per_execution, run_eagerly=False):
    box = []
    sampler = Recorder(lambda: box[0])
    encoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model = tfxc.ExtremeClassifier(encoder, DenseHead(5), sampler=sampler, k=1)
    box.append(model)
    options = {"steps_per_execution": steps_per_execution, "run_eagerly": run_eagerly}
    model.compile("sgd", loss=SoftmaxCrossentropy(), **options)
    return model


def new_model():
    return recording_model.__wrapped__(1, run_eagerly=True)


def midx():
    return MIDX(2, num_codewords=4)


def recorded(callback, epochs=3, num_steps=4, fits=1, steps_per_execution=1, model=None):
    model = model or recording_model(steps_per_execution)
    model.optimizer.iterations.assign(0)  # all the time there is
    sampler, x, y = model.sampler, tf.zeros([num_steps, 2]), np.zeros(num_steps, int)
    sampler.steps = []
    for _ in range(fits):
        callbacks = callback if isinstance(callback, list) else [callback]
        history = model.fit(x, y, batch_size=1, epochs=epochs, callbacks=callbacks, verbose=0).history
    return list(sampler.steps), history


@pytest.mark.traced
@pytest.mark.parametrize(
    ("callback", "steps"),
    [
        ({}, [0, 4, 8]),
        ({"every": 3}, [3, 6, 9, 12]),
        ({"every": 2, "growth": 2.0}, [2, 6]),
        ({"every": 2, "growth": 1.5}, [2, 5, 10]),
        ({"every": 100}, [4, 8]),  # after epochs 1, 2, 4: the index is not left as built
        ({"every": 7}, [4, 7]),
        ({"every": "auto"}, [0]),
    ],
)
def test_schedule(callback, steps):
    got, history = recorded(SamplerRefresh(**callback))
    assert got == steps
    seconds = history["sampler/refresh_seconds"]
    assert len(seconds) == 3 and all(second >= 0 for second in seconds)
    at_start = callback.get("every", "epoch") in ("epoch", "auto")
    epochs = {step // 4 if at_start else (step - 1) // 4 for step in steps}
    assert sum(second > 0 for second in seconds) == len(epochs)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("num_steps", "epochs", "steps"),
    long_after(1, (60, 7, [0, 100, 240, 300, 420]), (350, 1, [0, 100, 300]), (250, 2, [0, 100, 250, 300])),
)
def test_by_itself_early_then_ever_more_rarely_but_every_long_epoch(num_steps, epochs, steps):
    got = recorded(SamplerRefresh("auto"), epochs=epochs, num_steps=num_steps, steps_per_execution=10)[0]
    assert got == [step for step in steps if step < num_steps * epochs]


class FakeTime(keras.callbacks.Callback):
    """Of ten steps that take a second each, and refreshes of 20 seconds."""

    def __init__(self, model, monkeypatch):
        super().__init__()
        self.now, self.refresh = 0.0, model.sampler.refresh
        monkeypatch.setattr(sampler_refresh.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(model.sampler, "refresh", self.slow_refresh)

    def slow_refresh(self, head):
        self.refresh(head)
        self.now += 20

    def on_train_batch_end(self, batch, logs=None):
        self.now += 10


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("options", "epochs", "steps"),
    [
        ({"share": 0.1}, 2, [0, 400, 700]),  # 2 x 20 to 400 seconds
        ({"share": 0.3}, 1, [0, 140, 300]),  # 2 x 20 to 140 seconds
        ({"share": 1}, 2, [0, 100, 300, 400, 700]),
        ({"every": 300, "share": 0.01}, 1, [300]),
    ],
)
def test_refreshes_wait_until_they_take_a_small_share_of_the_time(options, epochs, steps, monkeypatch):
    model = recording_model(10)
    fake = FakeTime(model, monkeypatch)
    callbacks = [fake, SamplerRefresh(**{"every": "auto", **options})]
    got, history = recorded(callbacks, epochs=epochs, num_steps=400, model=model)
    assert got == steps
    assert sum(history["sampler/refresh_seconds"]) == 20 * len(steps)
    np.testing.assert_allclose(history["sampler/refresh_share"][-1], 20 * len(steps) / fake.now)


@pytest.mark.traced
@pytest.mark.parametrize(("share", "steps"), [(0.1, [100]), (1, [0, 100])])
def test_the_first_refresh_of_many_class_vectors_waits_for_queries(share, steps, monkeypatch):
    monkeypatch.setattr(sampler_refresh, "_LARGE", 15)  # 5 classes, D = 3
    callback = SamplerRefresh("auto", share=share)
    assert recorded(callback, epochs=1, num_steps=120, steps_per_execution=10)[0] == steps


@pytest.mark.long
@pytest.mark.traced
def test_the_count_goes_on_in_the_next_fit_and_the_age_of_the_index_is_logged():
    assert recorded(SamplerRefresh(every=5), epochs=1, fits=3)[0] == [4, 5, 10]
    assert recorded(SamplerRefresh(every=50), epochs=1, fits=9)[0] == [4, 8, 16, 32]
    history = recorded(SamplerRefresh(every=3), epochs=2)[1]
    assert history["sampler/index_age"] == [1, 2]  # rebuilt after 3 and 6
    assert recorded(SamplerRefresh(), epochs=2)[1]["sampler/index_age"] == [4, 4]
    assert "sampler/index_age" not in fitted(Uniform(2), callbacks=[SamplerRefresh()], verbose=0)


@pytest.mark.long
@pytest.mark.traced
def test_a_resumed_training_goes_on_counting(tmp_path):
    directory = str(tmp_path / "backup")

    def train(stop=None):
        def interrupt(epoch, logs):
            if epoch == stop:
                raise KeyboardInterrupt

        callbacks = [SamplerRefresh(every=6), keras.callbacks.BackupAndRestore(directory)]
        callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=interrupt))
        return recorded(callbacks, epochs=4, model=new_model())  # Keras notes in it where it went on

    with pytest.raises(KeyboardInterrupt):
        train(stop=2)
    steps, history = train()
    assert steps == [12]  # of 6 and 12; 8 were done
    assert history["sampler/index_age"] == [0, 4]


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_several_steps_an_execution_count_as_several():
    assert recorded(SamplerRefresh(every=4), steps_per_execution=2)[0] == [4, 8, 12]
    assert recorded(SamplerRefresh(every=3), steps_per_execution=2)[0] == [4, 6, 10, 12]


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("every", long_after(1, "auto", "epoch", 1))
def test_with_another_model_or_optimizer_it_begins_anew(every):
    callback, models = SamplerRefresh(every), [new_model() for _ in range(2)]
    recorded(callback, num_steps=8, model=models[0])
    expected = recorded(SamplerRefresh(every), num_steps=3, model=new_model())
    for model in models[1], models[1]:
        model.compile("sgd", loss=SoftmaxCrossentropy(), run_eagerly=True)
        steps, history = recorded(callback, num_steps=3, model=model)
        assert steps == expected[0]
        assert history["sampler/index_age"] == expected[1]["sampler/index_age"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "step"}, "every must be"),
        *(({"every": 5, "growth": bad}, r"growth must be in \[1, inf\)") for bad in (0.5, float("nan"))),
        ({"growth": 2.0}, "needs a number of steps"),
        *(({"every": "auto", "share": bad}, r"share must be in \(0, 1\]") for bad in (0.0, 1.5)),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        SamplerRefresh(**options)


@pytest.mark.parametrize("every", ["epoch", "auto", 1])
def test_without_a_sampler_it_does_nothing_and_warns_once(every):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    callback = SamplerRefresh(every)
    with pytest.warns(UserWarning, match="the model has no sampler") as caught:
        for _ in range(2):
            logs = model.fit(np.zeros((2, 2)), np.zeros((2, 1)), callbacks=[callback], verbose=0).history
    assert sum("no sampler" in str(warning.message) for warning in caught) == 1
    assert "sampler/refresh_seconds" not in logs


ROWS = np.random.default_rng(0).normal(size=(8, 2)).astype("float32"), np.arange(8)


def model_with(sampler, head=None):
    encoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model = tfxc.ExtremeClassifier(encoder, head or DenseHead(40), sampler=sampler, k=1)
    model.compile("sgd", loss=SoftmaxCrossentropy(), run_eagerly=True)
    return model


def has_learnt(sampler):
    return any(tf_variable(codebook).numpy().any() for codebook in sampler.codebooks)


def fitted(sampler, *positional, **options):
    model = model_with(sampler)
    if isinstance(callbacks := options.get("callbacks"), keras.callbacks.CallbackList):
        callbacks.set_model(model)
    return model.fit(*ROWS, *positional, **options).history


@pytest.mark.both_keras
def test_fit_refreshes_an_index_by_itself():
    own, mixed = midx(), Mixture([Uniform(2), midx()])
    for sampler in (own, mixed, LSH(2, num_tables=2), Sphere(2), Unigram(2)):
        assert fitted(sampler, verbose=0)["sampler/index_age"] == [1], sampler.name
    assert has_learnt(own)
    given = Unigram(2, counts=np.ones(40))
    for sampler in (None, given, Mixture([Uniform(2), LogUniform(2)])):
        assert "sampler/refresh_seconds" not in fitted(sampler, verbose=0)


def test_a_sampler_that_took_the_place_of_another_is_refreshed_before_the_first_step():
    model = model_with(Uniform(2))
    model.sampler = midx()
    logs = model.fit(*ROWS, callbacks=[SamplerRefresh("epoch")], verbose=0).history
    assert logs["sampler/index_age"] == [1] and has_learnt(model.sampler)


@pytest.mark.parametrize(
    ("every", "is_same"), long_after(2, ("auto", True), (2, False), (2, True), (1000, False))
)
def test_a_sampler_exchanged_between_two_fits_is_refreshed_before_the_next_step(every, is_same, monkeypatch):
    model, callback = model_with(midx()), SamplerRefresh(every)
    model.fit(*ROWS, epochs=2, callbacks=[callback], verbose=0)
    first, model.sampler = model.sampler, midx()
    callback = callback if is_same else SamplerRefresh(every)
    logs = model.fit(*ROWS, callbacks=[callback], verbose=0).history
    assert logs["sampler/index_age"] == [1] and has_learnt(model.sampler)
    model.sampler = first  # it has drawn, but its index is of class vectors of before
    steps, refresh = [], lambda self, head: steps.append(int(tf_variable(model.optimizer.iterations)))
    monkeypatch.setattr(MIDX, "refresh", refresh)
    model.fit(*ROWS, callbacks=[callback], verbose=0)
    assert steps[0] == 3


def test_a_loop_of_batches_is_told_once_that_nothing_refreshes_its_index():
    model = model_with(midx())
    with pytest.warns(UserWarning, match=r"call model\.sampler\.refresh\(model\.head\) .* or MIDX keeps"):
        model.train_on_batch(*ROWS)
    with warnings.catch_warnings(action="error"):
        model.train_on_batch(*ROWS)
        model.sampler = Uniform(2)
        model.train_on_batch(*ROWS)


@pytest.mark.long
@pytest.mark.traced
def test_not_where_one_is_given():
    for every in ("epoch", 1000):
        given = SamplerRefresh(every)
        # Keras notes what a fit shows in a callback of its own.
        listed = keras.callbacks.CallbackList([given], add_history=True)
        for callbacks in ([keras.callbacks.Callback(), given], given, listed):
            logs = fitted(midx(), verbose=0, callbacks=callbacks)
            assert logs["sampler/index_age"] == ([1] if every == "epoch" else [0])


@pytest.mark.long
@pytest.mark.both_keras
def test_beside_callbacks_however_they_are_given():
    seen, note = [], lambda epoch, logs: seen.append(logs["sampler/index_age"])
    other = keras.callbacks.LambdaCallback(on_epoch_end=note)
    mine = [other]
    for callbacks in (other, (other,), mine):
        fitted(midx(), callbacks=callbacks, verbose=0)
    fitted(midx(), 4, 1, 0, [other])  # batch_size, epochs, verbose, callbacks
    assert seen == [1, 1, 1, 2] and mine == [other]


class ByScore(Uniform):
    def refresh(self, head):
        """What it draws by are the class vectors that the head caches."""

    def prepare(self, step):
        tf.debugging.assert_all_finite(step.score(step.labels), "scores")
        return super().prepare(step)


@pytest.mark.parametrize(
    ("sampler", "reads"),
    [
        (DNS(2, num_candidates=6), True),
        (Mixture([ByScore(2), Uniform(2)]), True),
        (Mixture([InBatch(), Uniform(2)]), False),
    ],
)
def test_cached_class_vectors_are_refreshed_for_a_sampler_that_reads_them(sampler, reads):
    features = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    item_encoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model = model_with(sampler, EncodedHead(item_encoder, features))
    ages = model.fit(np.ones([6, 2], np.float32), np.arange(6) % 5, batch_size=2, verbose=0).history
    assert np.any(tf_variable(model.head.cache).numpy()) == reads  # the others do not wait for it
    assert ages["head/cache_age"] == [3 if reads else 4]
