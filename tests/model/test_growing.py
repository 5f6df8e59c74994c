import itertools
import pickle

import backup_checks
import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc.block_initializer import some_rows
from tfxc.data import GrowingVocabulary
from tfxc.model import growing
from tfxc.optimizers.slots import slots_of

LENGTH = 4
UNIGRAM = lambda: tfxc.samplers.Unigram(8, seed=3)  # noqa: E731


def log(first, last, num_rows, seed=0, batch_size=4):
    """Sessions that count upwards, n7 n8 n9 ..., within a range that moves from the first to the last."""
    starts = np.linspace(first, last, num_rows).astype(int)
    starts += np.random.default_rng(seed).integers(0, 6, num_rows)
    rows = [[f"n{start + step}" for step in range(LENGTH + 1)] for start in starts]
    rows[0][:2] = ["", ""]
    rows = np.array(rows)
    return tf.data.Dataset.from_tensor_slices((rows[:, :-1], rows[:, -1])).batch(batch_size)


def made(capacity=24, sampler=None, dropout=0.0):
    keras.utils.set_random_seed(1)
    embedding = keras.layers.Embedding(capacity + 1, 8, name="item_embedding")
    layers = embedding, keras.layers.Flatten(), keras.layers.Dropout(dropout), keras.layers.Dense(8)
    model = tfxc.ExtremeClassifier(
        keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *layers]),
        tfxc.layers.DenseHead(capacity, tied_to="item_embedding", row_offset=1),
        sampler,
        class_names=GrowingVocabulary(capacity, half_life=100),
        k=5,
    )
    loss = tfxc.losses.SoftmaxCrossentropy()
    model.compile(tfxc.optimizers.LazyAdam(0.03), loss=loss, metrics=[tfxc.metrics.NDCGAtK(5)])
    return model


@pytest.mark.long
@pytest.mark.both_keras
@pytest.mark.parametrize("make_sampler", [UNIGRAM, lambda: None])
def test_a_model_follows_names_that_come_and_go(make_sampler, tmp_path, served_by, reloaded):
    model = made(sampler=make_sampler())
    model.fit(log(0, 0, 80), validation_data=log(0, 0, 20, seed=1), verbose=0)
    assert len(model.class_names) == 10
    known = model.predict(model.vocabulary.encoded(log(0, 0, 20)), verbose=0)["ids"]
    assert 0 <= known.min() <= known.max() < 10  # spare rows do not rank
    model.fit(log(0, 60, 160), verbose=0)
    history = model.fit(log(60, 60, 160), validation_data=log(60, 60, 20, seed=1), epochs=4, verbose=0)
    assert history.history["val_ndcg_at_5"][-1] > 0.5
    assert len(model.class_names) == 24
    assert {f"n{i}" for i in range(61, 65)} <= set(model.class_names)
    assert not {f"n{i}" for i in range(30)} & set(model.class_names)

    loaded = reloaded(model)
    assert loaded.class_names == model.class_names
    for own in (model, loaded):
        own.fit(log(60, 70, 40), verbose=0)
    assert loaded.class_names == model.class_names
    for own, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)

    with pytest.raises(ValueError, match="No class has a name yet"):
        made().export(tmp_path / "1", strings=True)
    served = served_by(loaded, strings=True)
    names = served.serve(tf.constant([["n68", "n69", "n1"]]))["names"].numpy()[0].astype(str)
    assert len(names) == 5 and set(names.tolist()) <= set(model.class_names)


@pytest.mark.both_keras
@pytest.mark.parametrize(
    "options", long_after(1, {}, *([{"gradient_accumulation_steps": 4}] if IS_KERAS_3 else []))
)
def test_a_row_that_another_name_takes_begins_anew(options):
    model = made(4, UNIGRAM())
    table = model.encoder.get_layer("item_embedding").embeddings
    optimizer = tfxc.optimizers.LazyAdam(0.0, **options)  # slots move alone
    model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy())
    before = table.numpy().copy()
    model.fit(tf.data.Dataset.from_tensors(([["a", "b", "c", "d"]], ["a"])).repeat(2), verbose=0)
    counts, slots = model.sampler.running_counts, slots_of(model.optimizer, table)
    slots = [slots["gradient"]] if options else slots.values()
    assert (counts.numpy().tolist(), int(counts.total.numpy())) == ([2, 0, 0, 0], 2)
    assert all(slot.numpy()[1:].any(1).all() for slot in slots)
    np.testing.assert_array_equal(table.numpy(), before)
    # Of weight 0, a step has no gradient.
    model.fit(tf.data.Dataset.from_tensors(([["b", "c", "d", "d"]], ["e"], [0.0])), verbose=0)
    assert model.class_names == ["e", "b", "c", "d"]
    initial = some_rows(keras.initializers.get("uniform"), table.shape, 1)
    np.testing.assert_array_equal(table.numpy()[1], initial.numpy()[0])
    np.testing.assert_array_equal(table.numpy()[2:], before[2:])
    assert all(slot.numpy()[1:].any(1).tolist() == [False, True, True, True] for slot in slots)
    assert (counts.numpy().tolist(), int(counts.total.numpy())) == ([1, 0, 0, 0], 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["spare", "full"])
def test_a_draw_of_a_spare_row_is_an_empty_slot(kind):
    model = made(8, tfxc.samplers.Uniform(400, seed=1))
    names = "abcdefgh" if kind == "full" else "ab"
    rows = [[*itertools.islice(itertools.cycle(names), start, start + LENGTH)] for start in range(8)]
    before = model.get_weights()
    model.fit(tf.data.Dataset.from_tensors((rows, [row[0] for row in rows])), verbose=0)
    table = [weight.shape for weight in before].index((9, 8))
    moved = np.any(model.get_weights()[table] != before[table], axis=1)
    assert moved[1:].tolist() == [True] * len(names) + [False] * (8 - len(names))
    if kind == "spare":
        with pytest.raises(ValueError, match="Only 2 of 8 classes have names, and an index would rank"):
            tfxc.search.InvertedIndex().build_from(model.head)
    else:
        tfxc.search.InvertedIndex(num_cells=2).build_from(model.head)


def run(folder, stop=None):
    model, refresh = made(sampler=UNIGRAM(), dropout=0.3), tfxc.callbacks.SamplerRefresh(5)
    # The second epoch begins with the names that the first one left.
    result = backup_checks.run(folder, 7, stop, log(0, 100, 120), None, [refresh], model=model, epochs=2)
    if result is not None:
        result[0].update({name: np.array(value) for name, value in model.vocabulary.state().items()})
    return result


@pytest.mark.long
@pytest.mark.parametrize("stops", [[25], [9, 23, 30, 31, 57]])
def test_a_training_goes_on_to_the_bit(tmp_path, stops):
    expected = run(tmp_path / "whole")
    for stop in stops:
        assert run(tmp_path / "stopped", stop) is None
    result = run(tmp_path / "stopped")
    result = (*result[:2], expected[2][: -len(result[2])] + result[2])
    backup_checks.assert_same(result, expected)


@pytest.mark.long
def test_what_does_not_go_with_such_names_is_refused():
    encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    vocabulary = GrowingVocabulary(6)
    items = keras.layers.Embedding(6, 8, name="items")
    short = keras.Sequential([keras.Input((4,), dtype="int32"), items, keras.layers.GlobalMaxPool1D()])
    head, counts = tfxc.layers.DenseHead(6), tfxc.samplers.Unigram(2, counts=[1] * 6)
    cases = {
        "6 rows.*5 classes": (encoder, tfxc.layers.DenseHead(5)),
        "needs a tfxc.layers.DenseHead.*UniformSparseHead": (encoder, tfxc.layers.UniformSparseHead(6, 2)),
        "Unigram has counts": (encoder, head, counts),
        r"keras\.Input": (keras.Sequential([keras.layers.Dense(8)]), tfxc.layers.DenseHead(6)),
        r"need 7 rows.*\['items'\] would read": (short, head),
    }
    for message, parts in cases.items():
        with pytest.raises(ValueError, match=message):
            tfxc.ExtremeClassifier(*parts, class_names=vocabulary)
    model = made()
    with pytest.raises(ValueError, match=r"tf\.data\.Dataset.*an array"):
        model.fit(np.array([["a"] * LENGTH]), verbose=0)
    for ask in (lambda: model.predict(log(0, 0, 8), verbose=0), lambda: model.rank([["a"] * LENGTH], 1)):
        with pytest.raises(ValueError, match=r"inputs hold names.*vocabulary\.encoded"):
            ask()
    stopping = keras.callbacks.EarlyStopping(restore_best_weights=True)
    with pytest.raises(ValueError, match=r"EarlyStopping\(restore_best_weights=True\)"):
        model.fit(log(0, 0, 8), callbacks=[stopping])
    with pytest.raises(ValueError, match="change while it trains"):
        tfxc.change_classes(model, ["a"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"distinct names.*24 rows"):
        model.fit(log(0, 100, 40, batch_size=40), verbose=0)


def test_a_vocabulary_belongs_to_the_model_that_trains_with_it():
    def made_with(vocabulary):  # the cell of a notebook that makes the model
        items = keras.layers.Embedding(25, 8), keras.layers.Flatten(), keras.layers.Dense(8)
        encoder = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *items])
        model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(24), class_names=vocabulary)
        model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=True)
        return model

    vocabulary = GrowingVocabulary(24)
    model = made_with(vocabulary)
    model = made_with(vocabulary)  # it runs again before the training
    model.fit(log(0, 0, 4), verbose=0)
    model = made_with(vocabulary)  # and after it
    model.fit(log(0, 0, 4), verbose=0)
    other = made_with(vocabulary)
    with pytest.raises(ValueError, match="belongs to another model: make one for each model"):
        other.fit(log(0, 0, 4), verbose=0)
    copied = pickle.loads(pickle.dumps(vocabulary))  # which belongs to none
    made_with(copied).fit(log(0, 0, 4), verbose=0)


def test_a_strategy_is_refused_by_name(monkeypatch):
    encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    monkeypatch.setattr(growing, "steps_are_remote", lambda model: True)  # as under a ParameterServerStrategy
    with pytest.raises(ValueError, match="trains on one device: make the model outside of a strategy"):
        tfxc.ExtremeClassifier(encoder, tfxc.layers.UniformSparseHead(6, 2), class_names=GrowingVocabulary(6))


def test_weights_without_their_names_are_told_of(tmp_path):
    path = tmp_path / "model.weights.h5"
    made().save_weights(path)
    with pytest.warns(UserWarning, match="the rows have no names, .*GrowingVocabulary.load"):
        made().load_weights(path)


def test_names_in_arrays_are_refused_with_what_fit_takes():
    names = np.array([["a"] * LENGTH])
    with pytest.raises(ValueError, match="GrowingVocabulary a tf.data.Dataset: to fit one of names"):
        made().fit(names, names[:, 0], verbose=0)
