import numpy as np
import pytest
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features, learnable, log_softmax
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc.layers import EncodedHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.samplers import MIDX, InBatch

X, Y = learnable(16)


def model_of(optimizer, sampler):
    item_encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)])
    head = EncodedHead(item_encoder, features(NUM_CLASSES, 1))
    model = tfxc.ExtremeClassifier(dense_encoder(), head, sampler)
    model.compile(optimizer, loss=SoftmaxCrossentropy())
    return model


def exact_logits(model):
    return model.encoder(X).numpy() @ model.head.item_encoder(model.head.features).numpy().T


def exact_loss(model):
    return -log_softmax(exact_logits(model))[np.arange(16), Y].mean()


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.exact, self.logged = [], []

    def on_test_end(self, logs=None):
        self.exact.append(exact_loss(self.model))
        self.logged.append(logs["loss"])


class Doubled(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self._scale(2.0)

    def on_test_end(self, logs=None):
        self._scale(0.5)

    on_predict_begin, on_predict_end = on_test_begin, on_test_end

    def _scale(self, factor):
        own = self.model.head.item_encoder
        own.set_weights([factor * weight for weight in own.get_weights()])
        self.model.head.class_cache.expire()


@pytest.mark.long
def test_a_callback_may_change_weights_when_an_evaluation_begins():
    model, losses = model_of(tfxc.optimizers.LazyAdam(0.05), InBatch()), Losses()
    model.fit(X, Y, validation_data=(X, Y), callbacks=[losses, Doubled()], epochs=2, verbose=0)
    model.evaluate(X, Y, callbacks=[losses, Doubled()], verbose=0)
    np.testing.assert_allclose(losses.logged, losses.exact, rtol=1e-5)
    assert len(losses.exact) == 3
    doubled = model.predict(X, callbacks=[Doubled()], verbose=0)["scores"]
    np.testing.assert_allclose(doubled, 2 * model.predict(X, verbose=0)["scores"], rtol=1e-5)
    np.testing.assert_allclose(model.evaluate(X, Y, verbose=0), exact_loss(model), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("validated", long_after(1, True, False))
def test_averages_are_evaluated_and_saved_with_class_vectors_of_their_own(validated, tmp_path):
    averaging = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
    model, losses = model_of(averaging, MIDX(4, num_codewords=4)), Losses()
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    refresh = tfxc.callbacks.SamplerRefresh(2)  # leaves a new cache at the end of an epoch of 4 steps
    path = tmp_path / "model.keras"
    callbacks = [refresh, losses, swap, keras.callbacks.ModelCheckpoint(path)]
    options = {"validation_data": (X, Y)} if validated else {}
    model.fit(X, Y, batch_size=4, epochs=2, callbacks=callbacks, verbose=0, **options)
    np.testing.assert_allclose(losses.logged, losses.exact, rtol=1e-5)
    loaded = keras.models.load_model(path, compile=False)
    best = np.sort(exact_logits(loaded))[:, : -loaded.k - 1 : -1]
    np.testing.assert_allclose(loaded.predict(X, verbose=0)["scores"], best, rtol=1e-4)
    losses = Losses()
    model.train_on_batch(X, Y)  # then averages are not the weights
    model.evaluate(X, Y, callbacks=[losses, keras.callbacks.SwapEMAWeights()], verbose=0)
    np.testing.assert_allclose(losses.logged, losses.exact, rtol=1e-5)
    np.testing.assert_allclose(model.evaluate(X, Y, verbose=0), exact_loss(model), rtol=1e-5)
