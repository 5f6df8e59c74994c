import ctypes
import functools
import os
import shutil
import threading
import time
import warnings

import numpy as np
import pytest
from classifier_checks import DIM, NUM_CLASSES, all_logits, dense_encoder, features, make_model
from full_disk import full_disk
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.callbacks import HardNegativeMining
from tfxc.mining import background_search, hard_negative_mining
from tfxc.resume.state import from_json, to_json
from tfxc.samplers import HardNegatives, Mixture, Uniform

NUM_EXAMPLES = 20
X, Y = features(NUM_EXAMPLES), np.arange(NUM_EXAMPLES) % NUM_CLASSES
NAN = float("nan")
pytestmark = pytest.mark.filterwarnings("ignore:Hard negatives begin with start_epoch=")


class Patient(background_search.BackgroundSearch):
    def __init__(self, *args):
        super().__init__(*args)
        self._thread.join()


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(hard_negative_mining, "BackgroundSearch", Patient)


def each_epoch(function):
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: function(epoch))


def rows_of(sampler):
    """A list of the table's rows after each epoch, and the callback that fills it."""
    rows = []
    return rows, each_epoch(lambda epoch: rows.append(sampler.table.rows(np.arange(NUM_EXAMPLES))))


def model_of(sampler=None, **options):
    sampler = sampler or HardNegatives(2, 4, num_retrieved=4, seed=1)
    return make_model(sampler, tfxc.losses.BinaryCrossentropy(), run_eagerly=True, **options)


def model_that_stands(sampler=None):
    return model_of(sampler, optimizer=keras.optimizers.SGD(0.0))


@functools.cache
def traced_model():
    sampler = HardNegatives(2, 4, num_retrieved=4, seed=1)
    return make_model(sampler, tfxc.losses.BinaryCrossentropy())


@pytest.mark.long
def test_queries_of_a_sparse_head_are_kept_once_its_class_vectors_tell_of_its_logits(tmp_path, patient):
    wide = keras.Sequential([dense_encoder(), keras.layers.Dense(200, activation="relu")])
    head = tfxc.layers.UniformSparseHead(NUM_CLASSES, fan_in=8, use_bias=True, seed=1)
    model = model_of(head=head, encoder=wide)
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, start_epoch=2, every_epochs=1)
    logs = fitted(model, mining, epochs=5)
    assert np.isnan(logs["mining/staleness"][:3]).all() and logs["mining/staleness"][3] == 2
    assert logs["mining/recall"][3] > 0.7


def fitted(model, mining, epochs, *callbacks, **options):
    options |= {"batch_size": 10, "epochs": epochs, "callbacks": [mining, *callbacks], "verbose": 0}
    return model.fit(tfxc.data.with_example_ids(X), Y, **options).history


def files(folder):
    return sorted(name[-12:-6] for name in os.listdir(folder))


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("start", "every", "staleness", "last"),
    long_after(1, (3, 2, [NAN, NAN, NAN, 2, 3, 2, 3], "000005"), (2, 5, [NAN, NAN, 2, 3, 4, 5, 6], "000005")),
)
def test_schedule(patient, tmp_path, start, every, staleness, last):
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, start, every)
    history = fitted(traced_model(), mining, 7)
    np.testing.assert_array_equal(history["mining/staleness"], staleness)
    filled = np.array(history["mining/filled"])
    assert (filled[:start] == 0).all() and (filled[start:] > 0.5).all()
    recall = np.array(history["mining/recall"])
    assert (recall[np.isfinite(staleness)] == 1).all() and np.isnan(recall[: start - 1]).all()
    assert history["mining/failures"] == [0] * 7 and max(history["mining/search_seconds"][start:]) < 60
    assert files(tmp_path) == [last]


@pytest.mark.traced
@pytest.mark.parametrize("depth", long_after(1, 2, 0, 1))
def test_the_table_holds_the_best_classes_of_the_queries_of_training(patient, tmp_path, depth):
    mixed = sampler = HardNegatives(2, 4, num_retrieved=6)
    for _ in range(depth):
        mixed = Mixture([mixed, Uniform(3)])
    model, (rows, record) = model_that_stands(mixed), rows_of(sampler)
    tf_variable(model.head.bias).assign(np.linspace(-1, 1, NUM_CLASSES))
    fitted(model, HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1), 3, record)
    assert (rows[1] == -1).all()
    np.testing.assert_array_equal(rows[2], np.argsort(-all_logits(model, X), axis=1)[:, :6])
    assert sampler.table is None  # the next data may number its examples otherwise


def test_given_class_vectors_are_searched_instead(patient, tmp_path):
    vectors = features(NUM_CLASSES, seed=5)[:, :4]
    model = model_that_stands()
    rows, record = rows_of(model.sampler)
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1, class_vectors=vectors)
    fitted(model, mining, 3, record)
    scores = model.encoder(X).numpy()[:, :4] @ vectors.T
    np.testing.assert_array_equal(rows[2], np.argsort(-scores, axis=1)[:, :4])


@pytest.mark.long
def test_a_function_of_class_vectors_is_asked_at_each_search(patient, tmp_path):
    model, given = model_that_stands(), []
    rows, record = rows_of(model.sampler)

    def vectors():
        given.append(features(NUM_CLASSES, seed=len(given)))
        return given[-1]

    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1, class_vectors=vectors)
    fitted(model, mining, 4, record)
    for found, own in zip(rows[2:], given, strict=False):
        scores = model.encoder(X).numpy()[:, : own.shape[1]] @ own.T
        np.testing.assert_array_equal(found, np.argsort(-scores, axis=1)[:, :4])
    mining.class_vectors = lambda: np.zeros([3, 2])
    with pytest.raises(ValueError, match=r"class_vectors must be \[25, d\] with d from 1 to 7"):
        fitted(model, mining, 3)


@pytest.mark.long
def test_the_share_grows(patient, tmp_path):
    model, active = model_of(HardNegatives(4, 2, seed=1)), []
    record = each_epoch(lambda epoch: active.append(int(tf_variable(model.sampler.num_active))))
    history = fitted(model, HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1, curriculum=4), 7, record)
    assert active == [0, 0, 1, 2, 3, 4, 4] and files(tmp_path) == ["000005"]
    np.testing.assert_array_equal(history["mining/staleness"], [NAN, NAN, 2, 2, 2, 2, 2])


@pytest.mark.traced
def test_training_does_not_wait_for_a_slow_search(tmp_path, monkeypatch):
    go_on, find = threading.Event(), background_search.build_index
    monkeypatch.setattr(background_search, "build_index", lambda *args: go_on.wait() and find(*args))
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1)

    def release(epoch):
        if epoch == 3:
            go_on.set()
            mining._search._thread.join()

    history = fitted(traced_model(), mining, 5, each_epoch(release))
    np.testing.assert_array_equal(history["mining/staleness"], [NAN, NAN, NAN, NAN, 4])


def kill(thread):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    thread.join()


@pytest.mark.traced
def test_a_killed_thread_is_reported_and_training_goes_on(tmp_path, monkeypatch):
    begun = threading.Event()

    def never_ends(*args):
        begun.set()
        while True:
            time.sleep(0.001)

    mining, find = HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1), background_search.build_index

    def act(epoch):
        if epoch == 3:
            assert begun.wait(60)
            kill(mining._search._thread)
        elif mining._search is not None:
            mining._search._thread.join()
        # Only between searches: one under way may not have begun its index yet.
        monkeypatch.setattr(background_search, "build_index", never_ends if epoch == 2 else find)

    with pytest.warns(UserWarning, match="Epoch 4: hard negatives were not renewed .SystemExit.*of epoch 1"):
        history = fitted(traced_model(), mining, 7, each_epoch(act))
    assert history["mining/failures"] == [0, 0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(history["mining/staleness"], [NAN, NAN, 2, 2, 3, 2, 2])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*hard negatives were not renewed")
def test_a_full_disk_is_reported_and_training_goes_on(patient, tmp_path):
    message = "Epoch 0: .*File too large.*goes on with uniform negatives"
    with full_disk(1_000_000), pytest.warns(UserWarning, match=message):
        history = fitted(traced_model(), HardNegativeMining(tmp_path, 100_000, 2, 2), 4)
    assert history["mining/failures"] == [1, 1, 2, 2] and np.isnan(history["mining/staleness"]).all()
    assert os.listdir(tmp_path) == []


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
@pytest.mark.parametrize("seconds", [0, 0.5])
def test_another_fit_goes_on_and_has_the_table_of_a_search_that_outlasts_an_epoch(
    tmp_path, monkeypatch, seconds
):
    find = background_search.build_index
    monkeypatch.setattr(background_search, "build_index", lambda *args: time.sleep(seconds) or find(*args))
    model, mining = traced_model(), HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1)
    staleness = [fitted(model, mining, 1)["mining/staleness"][0] for _ in range(4)]
    np.testing.assert_array_equal(staleness, [NAN, NAN, 2, 2])


@pytest.mark.long
def test_with_another_model_it_starts_anew(patient, tmp_path):
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1)
    fitted(model_of(), mining, 4)
    model = model_that_stands(HardNegatives(2, 4, num_retrieved=4))
    rows, record = rows_of(model.sampler)
    history = fitted(model, mining, 3, record)
    np.testing.assert_array_equal(history["mining/staleness"], [NAN, NAN, 2])
    np.testing.assert_array_equal(rows[2], np.argsort(-all_logits(model, X), axis=1)[:, :4])


@pytest.mark.long
def test_with_a_sampler_of_another_width_it_starts_anew(patient, tmp_path):
    model, mining = model_of(), HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1)
    fitted(model, mining, 4)
    model.sampler = HardNegatives(2, 4, num_retrieved=6, seed=1)
    history = fitted(model, mining, 3)
    np.testing.assert_array_equal(history["mining/staleness"], [NAN, NAN, 2])
    model.sampler = HardNegatives(1, 4, num_retrieved=6, seed=1)  # the same table serves it
    np.testing.assert_array_equal(fitted(model, mining, 1)["mining/staleness"], [2])
    model.sampler = HardNegatives(2, 4, num_retrieved=5, seed=1)
    history = fitted(model, mining, 8, initial_epoch=5)
    np.testing.assert_array_equal(history["mining/staleness"], [NAN, NAN, 2])


@pytest.mark.long
def test_a_table_of_other_classes_is_refused(patient, tmp_path):
    encoder, head = dense_encoder(), tfxc.layers.DenseHead(NUM_CLASSES)
    names = [f"item {i}" for i in range(NUM_CLASSES)]
    model = tfxc.ExtremeClassifier(encoder, head, HardNegatives(2, 4, num_retrieved=4), class_names=names)
    model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.BinaryCrossentropy())
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1)
    fitted(model, mining, 4)
    fitted(model, HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1), 5, initial_epoch=4)
    model = tfxc.change_classes(model, names[::-1])
    with pytest.raises(ValueError, match="ids of other classes: the model has other class names, or the"):
        fitted(model, mining, 6, initial_epoch=5)
    history = fitted(model, mining, 2)  # from the beginning: tables of later epochs are of another run
    assert np.isnan(history["mining/staleness"]).all()


@pytest.mark.filterwarnings("error")
def test_epochs_that_end_before_the_first_hard_negatives_are_warned_of(tmp_path):
    start = keras.initializers.Constant(-1.0)
    model = model_of(head=tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True, bias_initializer=start))
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, start_epoch=3)
    with pytest.warns(UserWarning, match=r"begin with start_epoch=3 .*, after the last of 2 epochs: until"):
        fitted(model, mining, 2)
    fitted(model, mining, 1)  # goes on: who calls fit for each epoch was told


def test_what_fails_in_the_last_epoch_is_told(patient, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no space")

    monkeypatch.setattr(background_search, "build_index", fail)
    with pytest.warns(UserWarning, match="Epoch 1: hard negatives were not renewed .OSError: no space."):
        fitted(traced_model(), HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1), 2)


@pytest.mark.long
def test_a_curriculum_ends_with_its_training(patient, tmp_path):
    model = model_of()
    fitted(model, HardNegativeMining(tmp_path / "first", NUM_EXAMPLES, 5, curriculum=5), 1)
    assert int(tf_variable(model.sampler.num_active)) == 0
    history = fitted(model, HardNegativeMining(tmp_path / "second", NUM_EXAMPLES, 2, 1), 3)
    assert history["mining/filled"][2] > 0.5


@pytest.mark.traced
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.filterwarnings("ignore:No step of this fit had hard negatives")
def test_another_process_goes_on_with_its_tables_queries_and_search(tmp_path, monkeypatch, finished):
    go_on, find = threading.Event(), background_search.build_index
    monkeypatch.setattr(background_search, "build_index", lambda *args: go_on.wait() and find(*args))
    mining = HardNegativeMining(tmp_path / "first", NUM_EXAMPLES, 2, 1)
    kept = []

    def keep(epoch):
        if epoch == 2:  # one search under way, or just ended, and queries that wait for the next
            if finished:
                go_on.set()
                mining._search._thread.join()
            arrays = {}
            kept.append((to_json(mining.state_to_keep(), arrays), arrays))
            go_on.set()

    fitted(traced_model(), mining, 3, each_epoch(keep))
    state = from_json(*kept[0])
    assert ("found" in state) == finished and ("searched" in state) != finished
    again, model = HardNegativeMining(tmp_path / "second", NUM_EXAMPLES, 2, 1), model_of()
    again.set_model(model)
    again.on_train_begin()
    again.restore_state(state)
    again._search.stop() if finished else again._search._thread.join()
    again.on_epoch_begin(3)
    assert again._epoch == 3 and model.sampler.table.epoch == 0
    assert model.sampler.table.rows(np.arange(NUM_EXAMPLES)).min() >= 0
    again.on_train_end()


@pytest.mark.long
def test_a_fit_that_is_cut_off_leaves_no_table(patient, tmp_path):
    def cut(epoch):
        if epoch == 3:
            raise KeyboardInterrupt

    model, mining = model_of(), HardNegativeMining(tmp_path, NUM_EXAMPLES, 2, 1)
    with pytest.raises(KeyboardInterrupt):
        fitted(model, mining, 5, each_epoch(cut))
    assert model.sampler.table is None and mining._table.epoch is not None
    with pytest.warns(UserWarning, match="HardNegatives has no table"):
        model.fit(tfxc.data.with_example_ids(features(40)), np.zeros(40, np.int32), verbose=0)
    fitted(model, mining, 1)  # which goes on with its table
    assert model.sampler.take_filled_fraction() != 0


@pytest.mark.traced
def test_killed_during_a_refresh_it_resumes_with_the_whole_old_table(patient, tmp_path, monkeypatch):
    killed, blocks = tmp_path / "killed", background_search.BackgroundSearch._blocks

    def half_written(self, index, table):
        (rows,) = blocks(self, index, table)
        yield rows[:10]
        if table.epoch is not None and not killed.exists():
            shutil.copytree(tmp_path / "whole", killed)  # all that a process which is killed here leaves
        yield rows[10:]

    monkeypatch.setattr(background_search.BackgroundSearch, "_blocks", half_written)
    fitted(traced_model(), HardNegativeMining(tmp_path / "whole", NUM_EXAMPLES, 2, 1), 4)
    assert len(os.listdir(killed)) == 2  # the table, and what was being written
    table = tfxc.mining.hard_negative_table.HardNegativeTable(killed, (NUM_EXAMPLES, 4), DIM + 1, NUM_CLASSES)
    table.resume(epoch=1)
    rows = table.rows(np.arange(NUM_EXAMPLES))
    assert (rows >= 0).all() and files(killed) == ["000000"]
    history = fitted(traced_model(), HardNegativeMining(killed, NUM_EXAMPLES, 2, 1), 6, initial_epoch=3)
    np.testing.assert_array_equal(history["mining/staleness"], [3, 4, 2])


@pytest.mark.long
def test_arguments_are_checked(tmp_path):
    for name, wrong in {"num_examples": 0, "every_epochs": 0, "curriculum": 0, "start_epoch": 1}.items():
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least {wrong + 1}, but got"):
            HardNegativeMining(tmp_path, **{"num_examples": 5, name: wrong})
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES)
    with pytest.raises(ValueError, match="a model with one HardNegatives sampler"):
        fitted(model_of(Uniform(3)), mining, 1)
    for shape in ((NUM_CLASSES, DIM + 2), (NUM_CLASSES, 0), (3, 2), (NUM_CLASSES,)):
        with pytest.raises(ValueError, match=r"class_vectors must be \[25, d\] with d from 1 to 7"):
            fitted(model_of(), HardNegativeMining(tmp_path, NUM_EXAMPLES, class_vectors=np.zeros(shape)), 1)
    vectors = np.zeros([NUM_CLASSES, 4], np.float32)
    vectors[7, 2] = np.nan
    with pytest.raises(ValueError, match="class_vectors must be finite, but row 7 holds NaN or infinity"):
        fitted(model_of(), HardNegativeMining(tmp_path, NUM_EXAMPLES, class_vectors=vectors), 1)
    for index in ("foo", "PQ3", 5):
        with pytest.raises(ValueError, match=f"index={index!r} is no factory string that FAISS knows"):
            fitted(model_of(), HardNegativeMining(tmp_path, NUM_EXAMPLES, index=index), 1)


@pytest.mark.traced
def test_training_without_it_is_warned_of(tmp_path):
    for sampler in (HardNegatives(2, 4), Mixture([HardNegatives(2, 4), Uniform(3)])):
        with pytest.warns(
            UserWarning, match="no table, so all its draws are uniform: add .*HardNegativeMining"
        ):
            model_of(sampler).fit(tfxc.data.with_example_ids(X), Y, verbose=0)
    model = traced_model()
    with warnings.catch_warnings(action="error", category=UserWarning):
        warnings.filterwarnings("ignore", "Hard negatives begin with start_epoch=")
        fitted(model, HardNegativeMining(tmp_path, NUM_EXAMPLES), 1)


@pytest.mark.long
def test_a_fit_without_any_hard_negative_is_warned_of(tmp_path, monkeypatch):
    class Slow(background_search.BackgroundSearch):
        running = True  # as long as any epoch lasts

    monkeypatch.setattr(hard_negative_mining, "BackgroundSearch", Slow)
    mining = HardNegativeMining(tmp_path, NUM_EXAMPLES, start_epoch=2)
    model = model_of()
    with pytest.warns(UserWarning, match="before the first search, of .* seconds. Train for more"):
        assert fitted(model, mining, epochs=3)["mining/filled"] == [0.0] * 3
    assert fitted(model, mining, epochs=1)["mining/filled"] == [1.0]
