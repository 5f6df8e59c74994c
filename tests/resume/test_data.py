import os
import warnings
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from backup_checks import Again, X, Y, assert_same, check_goes_on, long_traced, made
from classifier_checks import DIM, NUM_CLASSES, Subclassed, make_model
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc.callbacks import BackupAndRestore

# What a form of data becomes is the same under both Kerases but where Keras itself cuts the arrays.


@pytest.fixture(scope="module")
def script():
    return Again(made()).run


def batches_of_rows():
    return tfxc.data.row_batches(95, 10, lambda rows: (tf.gather(X, rows), tf.gather(Y, rows)), seed=3)


@pytest.mark.traced
@pytest.mark.parametrize("kind", long_after(1, "mapped", "endless", "weights", "split"))
def test_forms_of_data(tmp_path, script, kind):
    dataset = batches_of_rows()
    options = {
        "mapped": {"x": dataset.map(lambda x, y: (x * 2, y)).prefetch(2), "y": None},
        "endless": {"x": dataset.repeat(), "y": None, "steps_per_epoch": 7},
        "weights": {"batch_size": 10, "sample_weight": np.linspace(0, 1, 95), "shuffle": False},
        "split": {"batch_size": 8, "validation_split": 0.2, "x": X.astype(np.float64)},
    }[kind]
    with warnings.catch_warnings(action="error", category=UserWarning):
        check_goes_on(script, tmp_path, 16, 3, **options)


class Grain:
    """In the place of a loader of Grain, which is not installed, and of Keras's adapter of it."""

    def __init__(self, loader=None):
        pass

    def get_tf_dataset(self):
        batches = [(X[start : start + 10], Y[start : start + 10]) for start in range(0, len(X), 10)]
        specs = tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in batches[0])
        dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=specs)
        return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


@long_traced
@pytest.mark.parametrize("kind", ["map", "iter"])
def test_data_of_grain_itself_go_on_at_their_batch(tmp_path, script, kind):
    grain = pytest.importorskip("grain", reason="what is read comes from Grain: pip install grain")

    class Examples:
        def __len__(self):
            return len(X)

        def __getitem__(self, row):
            return X[row], Y[row]

    def run(*args):
        rows = grain.MapDataset.source(Examples()).shuffle(seed=3).batch(10)
        return script(*args, x=rows if kind == "map" else rows.to_iter_dataset(), y=None)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data|.*shuffle=True")  # Keras
        check_goes_on(run, tmp_path, 16, 3)


@long_traced
def test_loaders_of_grain_go_on_at_their_batch(tmp_path, script, monkeypatch):
    adapters = keras.src.trainers.data_adapters
    monkeypatch.setattr(adapters, "is_grain_dataset", lambda data: isinstance(data, Grain))
    monkeypatch.setattr(adapters, "GrainDatasetAdapter", Grain)
    with warnings.catch_warnings(action="error", category=UserWarning):
        check_goes_on(script, tmp_path, 16, 3, x=Grain(), y=None)


@long_traced
@pytest.mark.both_keras
def test_several_steps_at_once(tmp_path):
    script = Again(make_model(tfxc.samplers.Uniform(5), steps_per_execution=3)).run
    check_goes_on(script, tmp_path, 9, 4, batch_size=10, epochs=2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:BackupAndRestore cannot give")  # nobody knows what a generator yields
def test_endless_data_go_on_in_a_fit_that_began_later(tmp_path, script):
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat()
    log = tf.data.Dataset.from_generator(rows.as_numpy_iterator, output_signature=rows.element_spec)
    data = log.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    options = {"x": data, "y": None, "steps_per_epoch": 4, "epochs": 6}
    expected = script(tmp_path / "whole", initial_epoch=3, **options)
    assert script(tmp_path / "killed", 3, 6, initial_epoch=3, **options) is None
    # Where it began counts, whatever the script says now.
    assert script(tmp_path / "killed", 3, 9, initial_epoch=4, **options) is None
    assert_same(script(tmp_path / "killed", 3, initial_epoch=3, **options), expected)


@long_traced
@pytest.mark.both_keras
def test_endless_data_go_on_where_executions_end_beyond_an_epoch(tmp_path):
    script = Again(make_model(tfxc.samplers.Uniform(5), steps_per_execution=2)).run
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat()
    check_goes_on(script, tmp_path, 8, x=data, y=None, steps_per_epoch=3)


@long_traced
def test_packed_histories_go_on_at_their_batch(tmp_path):
    random = np.random.default_rng(0)
    lists = [random.integers(NUM_CLASSES, size=size) for size in random.integers(2, 7, 40)]
    histories = tfxc.data.Sequences.from_lists(lists)
    encoder = tfxc.encoders.sasrec(histories.num_classes, max_length=8, dim=DIM, num_blocks=1)
    model = make_model(tfxc.samplers.Uniform(5), encoder=encoder)
    data = tfxc.data.sequence_training_dataset(histories, 8, batch_size=4, seed=3, packed=True)
    check_goes_on(Again(model).run, tmp_path, 7, 3, x=data, y=None)


@long_traced
def test_several_inputs_in_a_list(tmp_path):
    inputs = [keras.Input((DIM,)), keras.Input((DIM,))]
    encoder = keras.Model(inputs, keras.layers.Dense(DIM)(keras.layers.Concatenate()(inputs)))
    script = Again(make_model(tfxc.samplers.Uniform(5), encoder=encoder)).run
    options = {"x": [X, 2 * X], "batch_size": 10, "epochs": 2, "validation_split": 0.2}
    check_goes_on(script, tmp_path, 9, 4, **options)


@long_traced
def test_data_that_come_otherwise_each_time_are_told(tmp_path, script):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    spec = dataset.batch(10).element_spec
    troubles = {
        "shuffle": dataset.shuffle(95, seed=1).batch(10),
        "generator": tf.data.Dataset.from_generator(lambda: [(X[:10], Y[:10])], output_signature=spec),
        "random": dataset.map(lambda x, y: (x + tf.random.normal([DIM]), y)).batch(10),
        "any order": dataset.batch(10).map(lambda *both: both, num_parallel_calls=2, deterministic=False),
        "cache": batches_of_rows().cache(),
    }
    for name, trouble in troubles.items():
        with pytest.warns(UserWarning, match="cannot give the data of an epoch a second time .*row_batches"):
            script(tmp_path / name, epochs=1, x=trouble, y=None)
    with pytest.warns(UserWarning, match="steps_per_epoch of .*INFINITE_CARDINALITY"):
        script(tmp_path / "steps", epochs=1, x=troubles["generator"], y=None, steps_per_epoch=1)
    fixed = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(95, seed=1, reshuffle_each_iteration=False)
    with warnings.catch_warnings(action="error", category=UserWarning):
        script(tmp_path / "fixed", epochs=1, x=fixed.batch(10), y=None)


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = make_model(tfxc.samplers.Uniform(5), encoder=Subclassed())
    batches = iter([(X[:10], Y[:10])])
    with pytest.raises(ValueError, match="needs a built model.*call the model on one batch first"):
        model.fit(batches, callbacks=[BackupAndRestore(tmp_path)], verbose=0)


def test_several_processes_that_train_one_model_are_refused(tmp_path):
    strategy = mock.Mock(spec=tf.distribute.MultiWorkerMirroredStrategy)
    model = mock.Mock(distribute_strategy=strategy)
    backup = BackupAndRestore(tmp_path / "backup")
    message = r"of one process, but under .* several processes train .* keras\.callbacks\.BackupAndRestore"
    with pytest.raises(ValueError, match=message), backup.during_fit(model, {"callbacks": [backup]}):
        pass
    assert not os.listdir(tmp_path)
