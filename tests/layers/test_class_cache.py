import threading

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import learnable
from encoded_checks import DIM, FEATURES, NUM_CLASSES, check_cache, head_of, model_of, tower, vectors_of

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import EncodedHead
from tfxc.layers.class_cache import ClassCache, old_class_vectors


def step(head):
    head._score_both(tf.ones([1, DIM]), tf.constant([[0]]), tf.constant([1]))


def set_features(head):
    head.features = FEATURES[::-1].copy()


@pytest.mark.parametrize("meanwhile", [step, set_features])
def test_a_step_or_features_that_are_set_while_the_cache_is_made_leave_it_old(meanwhile, monkeypatch):
    head, made = head_of(), ClassCache.encode_rows

    def encode_rows(cache, class_ids):
        made(cache, class_ids)
        meanwhile(head)

    monkeypatch.setattr(ClassCache, "encode_rows", encode_rows)
    head.freshen(force=True)
    assert head.class_cache.age == 1
    assert int(tf_variable(head.steps_since).numpy()) == 1  # graphs ask it alone


def test_what_makes_the_cache_old_without_a_step_is_known_or_refreshed_by_hand():
    head = head_of()
    head.freshen(force=True)
    head.item_encoder.set_weights([2 * weight for weight in head.item_encoder.get_weights()])
    head.freshen(force=True)
    check_cache(head)
    set_features(head)
    assert head.class_cache.age == 1
    head.freshen(force=True)
    check_cache(head)


def test_class_vectors_stay_those_of_features_that_a_file_keeps_or_change_classes_carries(reloaded):
    names = [f"item {i}" for i in range(NUM_CLASSES)]
    model = model_of(class_names=names)
    model.predict(learnable(4)[0], verbose=0)
    loaded = reloaded(model)
    assert loaded.head.class_cache.age == 0
    assert tfxc.change_classes(loaded, names[::-1]).head.class_cache.age == 0


def test_what_is_ranked_within_a_step_leaves_no_old_cache(monkeypatch):
    model, (x, y) = model_of(run_eagerly=True), learnable(16)

    def rank(*args):
        model.rank(x, 3)
        return []

    monkeypatch.setattr("tfxc.model.checks.require_finite_step", rank)
    model.fit(x, y, verbose=0)
    model.predict(x, verbose=0)
    check_cache(model.head)


@pytest.mark.long
def test_weights_loaded_beside_other_features_bring_no_old_class_vectors(tmp_path, reloaded):
    x, y = learnable(16)
    trained = model_of()
    trained.fit(x, y, verbose=0)
    trained.predict(x, verbose=0)
    trained.save_weights(tmp_path / "w.weights.h5")
    tf.train.Checkpoint(head=trained.head, encoder=trained.encoder).write(str(tmp_path / "checkpoint"))

    def check(model):
        found = model.predict(x, verbose=0)["scores"]
        wanted = np.sort(model.encoder(x).numpy() @ vectors_of(model.head).T)[:, :-4:-1]
        np.testing.assert_allclose(found, wanted, rtol=1e-4)

    def model_of_others():
        return model_of(EncodedHead(tower(), FEATURES[::-1] + 1))

    model = model_of_others()
    for _ in range(2):
        model.load_weights(tmp_path / "w.weights.h5")
        check(model)
    tfxc.cluster.Checkpoint(trained, tmp_path / "steps").save(1)
    model = model_of_others()
    model.predict(x, verbose=0)
    tfxc.cluster.Checkpoint(model, tmp_path / "steps").restore()
    check(model)
    for saved in (False, True):
        model = model_of_others()
        tf.train.Checkpoint(head=model.head, encoder=model.encoder).read(str(tmp_path / "checkpoint"))
        check(reloaded(model) if saved else model)
    for head in (trained.head, EncodedHead(tower(), FEATURES[::-1] + 1)):  # in a Keras model of one's own
        query = keras.Input((DIM,))
        own = keras.Model(query, head(query))
        head.freshen(force=True)
        if head is trained.head:
            own.save_weights(tmp_path / "own.weights.h5")
        own.load_weights(tmp_path / "own.weights.h5")
        assert head.class_cache.age
    trained.head.freshen(force=True)
    model = model_of(EncodedHead(tower(), NUM_CLASSES))  # has no features, and can only read what is there
    model.load_weights(tmp_path / "w.weights.h5")
    assert model.head.class_cache.age == 0
    np.testing.assert_array_equal(model.predict(x, verbose=0)["ids"], trained.predict(x, verbose=0)["ids"])


@pytest.mark.long
@pytest.mark.traced
def test_a_graph_that_reads_old_class_vectors_or_those_of_a_file_says_so(tmp_path):
    x = tf.constant(learnable(4)[0])
    trained, model = model_of(), model_of(EncodedHead(tower(), FEATURES[::-1] + 1))
    trained.predict(x, verbose=0)
    trained.save_weights(tmp_path / "w.weights.h5")
    tfxc.cluster.Checkpoint(trained, tmp_path / "steps").save(1)
    query = keras.Input((DIM,))
    wrapper = keras.Model(query, model(query))
    traced = tf.function(lambda x: model(x)), tf.function(lambda x: model.rank(x, 3))
    asks = lambda x: wrapper.predict(x, verbose=0), *traced
    for make_old in (
        lambda: model.load_weights(tmp_path / "w.weights.h5"),
        tfxc.cluster.Checkpoint(model, tmp_path / "steps").restore,
        model.head.class_cache.expire,
    ):
        make_old()
        for ask in asks:
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"of date.*call model.head.freshen\(\)"):
                ask(x)
        want = model.predict(x, verbose=0)["scores"]  # brings them up to date
        for ask in asks:
            np.testing.assert_allclose(ask(x)["scores"], want, rtol=1e-5)


def test_a_loop_that_trains_by_encoded_vectors_ranks_by_what_it_learnt():
    head, query = head_of(), tf.ones([2, DIM])
    head.freshen(force=True)
    before = head.score(query, [[0, 1], [2, 3]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head.encode([0, 1, 2, 3], training=True))
    weights = head.item_encoder.trainable_variables
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        tf_variable(weight).assign_sub(gradient)
    assert head.class_cache.age == 1
    assert np.all(head.score(query, [[0, 1], [2, 3]]) < before)


@pytest.mark.long
@pytest.mark.both_keras
def test_averages_that_take_the_place_of_weights_make_the_cache_old():
    averaging = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
    model, (x, y) = model_of(optimizer=averaging, run_eagerly=True), learnable(16)
    model.fit(x, y, batch_size=4, validation_data=(x, y), verbose=0)
    model.predict(x, verbose=0)
    check_cache(model.head)


@pytest.mark.long
@pytest.mark.traced
def test_a_prediction_goes_on_while_a_thread_trains():
    model, (x, y) = model_of(), learnable(16)
    model.encoder.trainable = False
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=model.classification_loss)
    want = model.predict(x, batch_size=8, verbose=0)

    class Train(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            thread = threading.Thread(target=model.train_on_batch, args=(x, y))
            thread.start()
            thread.join()

    found = model.predict(x, batch_size=8, callbacks=[Train()], verbose=0)
    after = model.predict(x, batch_size=8, verbose=0)
    for name in ("ids", "scores"):
        np.testing.assert_array_equal(found[name], want[name])
    assert (after["scores"] != want["scores"]).any()  # it has trained


def test_a_step_reads_old_class_vectors_and_nobody_else_does():
    head, query, ids = head_of(), tf.ones([2, DIM]), [[0, 1], [2, 3]]
    before = head.score(query, ids)
    head.item_encoder.set_weights([2 * weight for weight in head.item_encoder.get_weights()])
    head.class_cache.expire()
    with old_class_vectors():
        np.testing.assert_array_equal(head.score(query, ids), before)
        assert head.class_cache.age == 1
    np.testing.assert_allclose(head.score(query, ids), 2 * before, rtol=1e-5)
