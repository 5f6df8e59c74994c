import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import (
    DIM,
    NUM_CLASSES,
    SAMPLERS,
    Subclassed,
    all_logits,
    dense_encoder,
    features,
    item_encoder,
    learnable,
    log_softmax,
    make_model,
    repeated,
    weights_of,
)
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.metrics import NDCGAtK, RecallAtK
from tfxc.samplers import MIDX, Uniform


@pytest.mark.traced
@pytest.mark.parametrize("name", long_after(1, "mixture", "none", "shared", "learned midx"))
def test_training_nears_the_full_optimum(name):
    x, y = learnable(256)
    model = make_model(SAMPLERS[name]())

    def loss_and_recall():
        logits = all_logits(model, x)
        return -log_softmax(logits)[np.arange(256), y].mean(), np.mean(logits.argmax(1) == y)

    before, _ = loss_and_recall()
    callbacks = [tfxc.callbacks.SamplerRefresh()] if "mi" in name else []
    data = repeated(3, x, y)
    model.fit(*data, batch_size=64, epochs=8, callbacks=callbacks, verbose=0)
    loss, recall = loss_and_recall()
    assert loss < 0.45 * before and recall > 0.7


@pytest.mark.both_keras
def test_the_loss_that_trains_equals_the_weighted_one_by_hand():
    x, y, weights = features(8), np.arange(8), np.linspace(0, 2, 8)
    model = make_model(optimizer=keras.optimizers.SGD(0.0))
    want = np.mean(weights * -log_softmax(all_logits(model, x))[np.arange(8), y])
    got = model.fit(x, y, sample_weight=weights, batch_size=8, verbose=0).history["loss"][0]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.long
@pytest.mark.both_keras
def test_an_encoder_built_by_its_first_batch():
    x, y = learnable(64)
    model = make_model(SAMPLERS["midx"](), encoder=Subclassed(), metrics=[NDCGAtK(5)])
    refresh = tfxc.callbacks.SamplerRefresh(every=1000)  # none falls due but the early ones
    history = model.fit(x, y, validation_data=(x, y), callbacks=[refresh], epochs=3, verbose=0).history
    assert history["val_loss"][-1] < history["val_loss"][0] and "val_ndcg_at_5" in history
    assert model.predict(x, verbose=0)["ids"].shape == (64, 5)


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def test_the_logged_loss_weighs_batches_by_examples_beside_one_list_to_exclude():
    x, y = learnable(5)
    model = make_model(optimizer=keras.optimizers.SGD(0.0))

    def batches():
        for part in (slice(0, 4), slice(4, 5)):
            yield {"x": x[part], "exclude": np.array([[1]])}, y[part]

    loss = model.fit(batches(), verbose=0).history["loss"]
    np.testing.assert_allclose(loss, -log_softmax(all_logits(model, x))[np.arange(5), y].mean(), rtol=1e-5)


@pytest.mark.long
@pytest.mark.both_keras
def test_a_sampler_that_takes_the_place_of_another_trains():
    x, y = learnable(16)
    model = make_model(Uniform(4), optimizer=keras.optimizers.SGD(0.0))
    model.fit(x, y, batch_size=8, verbose=0)
    before, model.sampler = model.sampler, MIDX(4, num_codewords=4)
    logs = model.fit(x, y, batch_size=8, verbose=0).history
    assert int(before.counter) == int(model.sampler.counter) == 2 and logs["sampler/index_age"] == [2]
    model.sampler = None
    loss = model.fit(x, y, batch_size=8, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, -log_softmax(all_logits(model, x))[np.arange(16), y].mean(), rtol=1e-5)
    model.sampler = before
    model.train_on_batch(x, y)
    assert int(before.counter) == 3


def test_a_sampler_that_takes_the_place_of_another_must_fit():
    x, y = learnable(8)
    foreign, at_k = Uniform(3), tfxc.losses.SoftmaxAtK(5)
    foreign.build((NUM_CLASSES - 5, DIM))
    mach = tfxc.layers.MACHHead(NUM_CLASSES, num_buckets=4, num_repetitions=2)
    for model, sampler, message in [
        (make_model(Uniform(4)), foreign, f"built for {NUM_CLASSES - 5} classes, but the head has"),
        (make_model(Uniform(4)), "MIDX", "sampler must be None or one of tfxc.samplers"),
        (make_model(Uniform(4), loss=at_k), None, "SoftmaxAtK weighs by what a sampler draws, but the model"),
        (make_model(head=mach), Uniform(4), "MACHHead trains all .* nothing to choose for Uniform"),
    ]:
        model.sampler = sampler
        for train in (model.fit, model.train_on_batch):
            with pytest.raises(ValueError, match=message):
                train(x, y)


def test_encoder_and_head_of_a_model_stay():
    model, (x, y) = make_model(), learnable(8)
    model.fit(x, y, verbose=0)
    for name, other in (("encoder", dense_encoder()), ("head", DenseHead(NUM_CLASSES))):
        own = getattr(model, name)
        with pytest.raises(ValueError, match=f"{name} of a model cannot be exchanged.* Make another model"):
            setattr(model, name, other)
        setattr(model, name, own)
        assert getattr(model, name) is own


@pytest.mark.long
@pytest.mark.parametrize("form", [lambda x, y: (x, y), lambda x, y: (dataset(x, y),)])
def test_such_an_encoder_is_built_before_the_first_callback(form):
    model = make_model(SAMPLERS["midx"](), encoder=Subclassed())
    model.fit(*form(*learnable(64)), callbacks=[tfxc.callbacks.SamplerRefresh()], verbose=0)
    assert tf_variable(model.sampler.codebooks[0]).numpy().any()


def test_the_end_of_data_of_unknown_length_draws_nothing():
    model = make_model(Uniform(5))
    data = dataset(features(20), np.arange(20)).unbatch().filter(lambda x, y: y > 3).batch(8)
    model.fit(data, epochs=2, verbose=0)
    assert int(model.sampler.counter.numpy()) == int(model.optimizer.iterations.numpy()) == 4


def test_a_model_without_trainable_weights_is_warned_of_and_stays():
    x, y = learnable(16)
    model = make_model()
    model.trainable = False
    model.compile(tfxc.optimizers.LazyAdam(0.1), loss=SoftmaxCrossentropy())
    before = weights_of(model)
    with pytest.warns(UserWarning, match="no trainable weights, so nothing is trained"):
        losses = model.fit(x, y, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    tf.nest.map_structure(np.testing.assert_array_equal, before, weights_of(model))


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_ways_to_run_a_step_agree():
    x, y = learnable(16)

    def trained(options):
        keras.utils.set_random_seed(2)
        model = make_model(SAMPLERS["midx"](), metrics=[RecallAtK(2)], **options)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        return [*weights_of(model), np.array(model.evaluate(x, y, verbose=0))]

    usual = trained({})
    for options in ({"run_eagerly": True}, {"steps_per_execution": 2}):
        for one, two in zip(trained(options), usual, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5, err_msg=str(options))


@pytest.fixture
def policy(request):
    keras.mixed_precision.set_global_policy(request.param)
    yield request.param
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.both_keras
@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_numbers_reach_the_encoder_as_they_are(policy):
    """In bfloat16 4,097 becomes 4,096."""
    inputs = keras.Input((1,))
    digits = keras.layers.Lambda(lambda x: tf.math.floormod(x, 8.0), output_shape=(1,), dtype="float32")
    model = make_model(encoder=keras.Model(inputs, keras.layers.Dense(DIM)(digits(inputs))))
    x = np.float32([[4097], [4099], [4102]])
    ids = model.rank(x, 5)["ids"].numpy()
    np.testing.assert_array_equal(model.predict(x, verbose=0)["ids"], ids)
    np.testing.assert_array_equal(model(x)["ids"], ids)


@pytest.mark.both_keras
@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
@pytest.mark.parametrize("name", long_after(1, "midx", "none"))
def test_mixed_precision_trains(policy, name):
    x, y = learnable(64)
    model = make_model(SAMPLERS[name]())
    history = model.fit(x, y, batch_size=32, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    assert model.predict(x, verbose=0)["scores"].dtype == np.float32
    assert model.evaluate(x, y, verbose=0) < history[0]
    assert tf_variable(model.head.table).dtype == tf.float32
    history = np.array([[1, 2, 3], [0, 4, 5]])
    tied = tied_model(SAMPLERS[name]())
    assert np.isfinite(tied.fit(history, history % 25, verbose=0).history["loss"][0])
    tied.predict(history, verbose=0)


@pytest.mark.both_keras
@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
def test_loss_scaling_is_refused(policy):
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        make_model(optimizer=keras.optimizers.Adam())


@pytest.mark.long
def test_extra_losses_of_the_encoder_train_but_are_not_in_the_exact_loss():
    encoder = dense_encoder()
    encoder.add(keras.layers.Dense(DIM, kernel_regularizer=keras.regularizers.L2(10.0)))
    model, x, y = make_model(encoder=encoder), *learnable(32)
    want = -np.mean(log_softmax(all_logits(model, x))[np.arange(32), y])
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), want, rtol=1e-5)
    before = np.square(model.encoder.layers[-1].get_weights()[0]).sum()
    model.fit(*repeated(10, x, y), verbose=0)
    assert np.square(model.encoder.layers[-1].get_weights()[0]).sum() < 0.7 * before


class Penalty(keras.layers.Layer):
    def __init__(self, of_each):
        super().__init__()
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.of_each = of_each

    def call(self, inputs):
        penalties = tf.reduce_mean(tf.square(inputs * self.scale), axis=1)
        self.add_loss(penalties if self.of_each else tf.reduce_sum(penalties))
        return inputs


def test_an_extra_loss_of_each_example_counts_by_its_sum():
    x, y = learnable(8)
    scales = []
    for of_each in (True, False):
        encoder = keras.Sequential([keras.Input((DIM,)), Penalty(of_each), keras.layers.Dense(DIM)])
        make_model(encoder=encoder, optimizer=keras.optimizers.SGD(0.1)).fit(x, y, verbose=0)
        scales.append(float(tf_variable(encoder.layers[-2].scale)))
    np.testing.assert_allclose(*scales, rtol=1e-5)
    assert scales[0] < 0.9


class Measured(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")

    def call(self, inputs):
        self.size.update_state(tf.abs(inputs))
        return inputs


@pytest.mark.long
@pytest.mark.both_keras
def test_metrics_of_layers_are_in_the_logs_of_training_and_of_validation():
    x, y = learnable(16)
    encoder = keras.Sequential([keras.Input((DIM,)), Measured(), keras.layers.Dense(DIM)])
    model = make_model(encoder=encoder, metrics=[RecallAtK(5)])
    options = {"batch_size": 8, "epochs": 2, "verbose": 0}
    logs = model.fit(x, y, validation_data=(2 * x, y), **options).history
    np.testing.assert_allclose(logs["size"], 2 * [np.abs(x).mean()], rtol=1e-5)
    np.testing.assert_allclose(logs["val_size"], 2 * [2 * np.abs(x).mean()], rtol=1e-5)
    assert set(logs) == {"loss", "size", "val_loss", "val_size", "val_recall_at_5"}


@pytest.mark.long
def test_a_penalty_beside_losses_that_are_not_reduced_counts_once():
    x, y, weights = *learnable(8), []
    for reduction in ("none", "sum"):
        keras.utils.set_random_seed(1)
        encoder = dense_encoder()
        encoder.add(keras.layers.Dense(DIM, kernel_regularizer=keras.regularizers.L2(1.0)))
        model = make_model(SAMPLERS["uniform"](), SoftmaxCrossentropy(reduction=reduction), encoder=encoder)
        model.fit(x, y, verbose=0)
        weights.append(weights_of(model))
    for left, right in zip(*weights, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def tied_model(sampler):
    head = DenseHead(NUM_CLASSES, tied_to="items", row_offset=1)
    return make_model(sampler, encoder=item_encoder(), head=head, run_eagerly=True)


@pytest.mark.both_keras
@pytest.mark.parametrize("name", ["midx", "none"])
def test_a_tied_head_trains_the_shared_table(name):
    model = tied_model(SAMPLERS[name]())
    table = model.head.table_variable
    assert sum(tuple(weight.shape) == tuple(table.shape) for weight in model.weights) == 1
    before, history = table.numpy(), np.array([[1, 2, 3]])
    model.fit(history, np.array([[19, 19, 20]]), epochs=3, verbose=0)
    moved = (table.numpy() != before).any(1)
    assert moved[[1, 2, 3, 20, 21]].all() and not moved[0]


def test_a_tied_head_names_what_it_misses():
    foreign = item_encoder()
    table = next(layer for layer in foreign.layers if hasattr(layer, "embeddings"))
    for num_classes, tied_to, message in (
        (5, "words", r"no layer of that name.*\['items'\]"),
        (26, "items", r"'items' is \[26, 6\].*need"),
        (NUM_CLASSES, table, "a layer .* that is not in this encoder"),
    ):
        with pytest.raises(ValueError, match=message):
            make_model(encoder=item_encoder(), head=DenseHead(num_classes, tied_to=tied_to, row_offset=1))
    make_model(head=DenseHead(NUM_CLASSES, tied_to=table, row_offset=1), encoder=foreign)


class Momentum(keras.optimizers.Optimizer):
    def build(self, variables):
        super().build(variables)
        self.momenta = [self.add_variable_from_reference(own, name="momentum") for own in variables]

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momenta[self._get_variable_index(variable)]
        self.assign(momentum, 0.9 * momentum - learning_rate * tf.convert_to_tensor(gradient))
        self.assign_add(variable, momentum)


@pytest.mark.long
def test_an_optimizer_of_the_users_own_is_built_once(tmp_path):
    optimizer = Momentum(0.01, use_ema=True, ema_momentum=0.99)
    model = make_model(optimizer=optimizer)
    x, y = learnable(16)
    for _ in range(2):
        model.fit(x, y, verbose=0)
    momentum = optimizer.momenta[0].numpy()
    assert np.any(momentum)
    model.get_compile_config()
    tfxc.memory_report(model)
    model.fit(x, y, verbose=0, callbacks=[tfxc.callbacks.BackupAndRestore(tmp_path)])
    assert len(optimizer.variables) == 2 + 2 * len(model.trainable_variables)
    table = tf_variable(model.head.class_rows()[0].weight).numpy()
    assert np.abs(table).mean() > 0.01  # of averages that began anew the weights would be 0
