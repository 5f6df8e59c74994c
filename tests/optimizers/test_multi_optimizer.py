import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable
from tfxc.optimizers import LazyAdam, LazySGD, MultiOptimizer
from tfxc.optimizers.slots import slots_of


def two_layers(**options):
    inputs = keras.Input([3])
    first, second = keras.layers.Dense(4, name="one"), keras.layers.Dense(2, name="two", **options)
    return keras.Model(inputs, second(first(inputs))), second


def classifier(encoder, head, optimizer):
    model = tfxc.ExtremeClassifier(encoder, head, k=2)
    model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy())
    return model


def values(layers):
    return [tf.convert_to_tensor(weight).numpy() for layer in layers for weight in layer.weights]


def fit(model, epochs=1, **options):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    return model.fit(x, x[:, :2], batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)


def test_each_layer_moves_as_by_its_own_optimizer():
    results = {}
    for name in ("multi", "adam", "sgd"):
        keras.utils.set_random_seed(1)
        model, top = two_layers()
        model.layers[1].trainable = name != "sgd"  # with the other layer held still, one is as alone
        top.trainable = name != "adam"
        optimizers = {"adam": LazyAdam(0.01), "sgd": LazySGD(0.1)}
        multi = MultiOptimizer(optimizers["adam"], (optimizers["sgd"], top))
        model.compile(multi if name == "multi" else optimizers[name], "mse")
        x = np.ones([4, 3], "float32")
        model.train_on_batch(x, x[:, :2])
        results[name] = values(model.layers)
    wanted = results["adam"][:2] + results["sgd"][2:]
    for left, right in zip(results["multi"], wanted, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-7)
    assert (results["sgd"][0] != results["adam"][0]).any()


@pytest.mark.skipif(not IS_KERAS_3, reason="optimizers of tf-keras accumulate no gradients")
def test_each_optimizer_accumulates_over_calls_of_its_own():
    model, top = two_layers()
    optimizer = MultiOptimizer(LazySGD(1.0, gradient_accumulation_steps=2), (LazySGD(1.0), top))
    weights, before = model.trainable_variables, values(model.layers)
    for call in (1, 2, 3):
        optimizer.apply_gradients([(call * tf.ones(weight.shape), weight) for weight in weights])
    for old, new, step in zip(before, values(model.layers), [1.5, 1.5, 6, 6], strict=True):
        np.testing.assert_allclose(new, old - step, atol=1e-6)


def test_a_layer_that_no_gradient_reaches_stays():
    model, top = two_layers()
    optimizer = MultiOptimizer(LazySGD(1.0), (LazyAdam(0.1), top))
    weights, before = model.trainable_variables, values(model.layers)
    gradients = [tf.ones([3, 4]), tf.ones([4]), None, None]
    with pytest.warns(UserWarning, match="No gradient of the loss reaches .*two/kernel"):
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
    for old, new, step in zip(before, values(model.layers), [1, 1, 0, 0], strict=True):
        np.testing.assert_allclose(new, old - step, atol=1e-6)
    with pytest.raises(ValueError, match="No gradients"):
        optimizer.apply_gradients([(None, weight) for weight in weights])


def test_layers_are_told_apart_by_identity():
    first, second = (keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="same")]) for _ in "ab")
    inputs = keras.Input([3])
    model = keras.Model(inputs, first(inputs) + second(inputs))
    still = LazySGD(0.0)
    optimizer = MultiOptimizer(LazyAdam(0.01), (still, [second.layers[-1]]))
    model.compile(optimizer, "mse")
    before = values([first]), values([second])
    fit(model)
    assert (values([first])[0] != before[0][0]).any()
    np.testing.assert_array_equal(values([second])[0], before[1][0])
    kernel = second.layers[-1].trainable_variables[0]
    assert optimizer.optimizer_of(kernel) is still
    assert int(tf_variable(optimizer.iterations)) == 2


def test_slots_are_found_through_it():
    model, top = two_layers(use_bias=False)
    model.compile(MultiOptimizer(LazySGD(0.1), (LazyAdam(0.01), top)), "mse")
    fit(model)
    assert len(slots_of(model.optimizer, top.trainable_variables[0])) == 2
    assert slots_of(model.optimizer, model.layers[1].trainable_variables[0]) == {}


def test_learning_rates_are_set_together():
    model, top = two_layers()
    optimizer = MultiOptimizer(LazyAdam(0.01), (LazySGD(0.5), top))
    model.compile(optimizer, "mse")
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    fit(model, 2, callbacks=[halve])
    rates = [float(part.learning_rate) for part in optimizer.optimizers]  # also of a graph's steps
    np.testing.assert_allclose(rates, [0.0025, 0.125], rtol=1e-6)


def test_each_follows_its_schedule():
    drop = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.0])
    model, top = two_layers()
    optimizer = MultiOptimizer(LazyAdam(0.01), (LazySGD(drop), top))
    model.compile(optimizer, "mse")
    fit(model)
    still, moving = values([top]), values([model.layers[1]])
    fit(model)
    np.testing.assert_array_equal(values([top])[0], still[0])
    assert (values([model.layers[1]])[0] != moving[0]).any()
    with pytest.raises(TypeError, match="follows a schedule or starts at 0"):
        optimizer.learning_rate = 0.1


@keras.saving.register_keras_serializable(package="tests")
def tenth():
    return 0.1


def test_callables_as_learning_rates_are_saved(reloaded):
    model, top = two_layers()
    optimizer = MultiOptimizer(LazyAdam(tenth), (LazySGD(tenth), top))
    model.compile(optimizer, "mse", run_eagerly=True)
    fit(model)
    loaded = reloaded(model)
    for own in (model, loaded):
        fit(own)
    tf.nest.map_structure(np.testing.assert_array_equal, values([model]), values([loaded]))


def test_a_model_saved_before_its_first_step_trains_as_it_was_to(reloaded):
    head = tfxc.layers.DenseHead(6)
    encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    model = classifier(encoder, head, MultiOptimizer(LazyAdam(0.01), (LazySGD(0.1), head)))
    loaded = reloaded(model)
    assert isinstance(loaded.optimizer.optimizer_of(loaded.head.trainable_variables[0]), LazySGD)
    fresh = MultiOptimizer(LazyAdam(0.01), (LazySGD(0.1), head))
    copy = MultiOptimizer.from_config(fresh.get_config())
    for without_layers in (copy, MultiOptimizer(LazyAdam(), (LazySGD(), head), (LazySGD(), []))):
        with pytest.raises(ValueError, match="has no layers, as in the config of .* not yet built"):
            without_layers.build(model.trainable_variables)


def test_a_model_that_was_frozen_in_part_is_loaded(reloaded):
    encoder, top = two_layers()
    head, optimizer = tfxc.layers.DenseHead(6), MultiOptimizer(LazyAdam(0.01), (LazySGD(0.1), top))
    x, y = np.ones([4, 3], np.float32), np.arange(4)
    for is_trained in (True, False):
        encoder.layers[1].trainable = is_trained
        model = classifier(encoder, head, optimizer)
        model.fit(x, y, verbose=0)
    loaded = reloaded(model)
    still = values([loaded.encoder.layers[1]])
    loaded.fit(x, y, verbose=0)
    np.testing.assert_array_equal(values([loaded.encoder.layers[1]])[0], still[0])
    kinds = [type(loaded.optimizer.optimizer_of(weight)) for weight in loaded.trainable_variables]
    assert kinds == [LazySGD, LazySGD, LazyAdam]


def test_a_layer_that_was_thawed_is_named():
    model, top = two_layers()
    model.layers[1].trainable = False
    model.compile(MultiOptimizer(LazyAdam(0.01), (LazySGD(0.1), top)), "mse")
    fit(model)
    model.layers[1].trainable = True
    model.compile(model.optimizer, "mse")
    with pytest.raises(ValueError, match="one/kernel.* was not trained when this MultiOptimizer was built"):
        fit(model)


def test_what_does_not_fit_is_refused():
    model, top = two_layers()
    for pairs in ([], [LazySGD()], [(LazySGD(), top, top)]):
        with pytest.raises(ValueError, match=r"Expected pairs \(optimizer, layers\)"):
            MultiOptimizer(LazyAdam(), *pairs)
    with pytest.raises(ValueError, match="'head' is no layer: give pairs"):
        MultiOptimizer(LazyAdam(), (LazySGD(), "head"))
    several = MultiOptimizer(LazyAdam(), (LazySGD(), top))
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    plain = "takes plain Keras optimizers, .* but got "
    for part, message in ((several, plain), (scaled, "scales the loss, which"), ("adam", f"{plain}'adam'")):
        for default, other in ((part, LazySGD()), (LazySGD(), part)):
            with pytest.raises(ValueError, match=message):
                MultiOptimizer(default, (other, top))
    stranger = keras.layers.Dense(2)
    stranger.build((None, 3))
    with pytest.raises(ValueError, match="owns no trainable weight of the model"):
        MultiOptimizer(LazyAdam(), (LazySGD(), stranger)).build(model.trainable_variables)
    with pytest.raises(ValueError, match="Two optimizers claim"):
        MultiOptimizer(LazyAdam(), (LazySGD(), top), (LazySGD(), model)).build(model.trainable_variables)


@pytest.mark.both_keras
def test_a_head_that_shares_a_table_is_named_with_the_layer_that_holds_it():
    items = keras.layers.Embedding(6, 3, name="items")
    items.build((None, 1))
    head = tfxc.layers.DenseHead(5, use_bias=True, tied_to=items, row_offset=1)
    head.build((None, 3))
    variables = [*items.trainable_variables, *head.trainable_variables]
    with pytest.raises(ValueError, match="shares .*embeddings.*name the layer that holds it, too"):
        MultiOptimizer(keras.optimizers.Adam(), (LazyAdam(), head)).build(variables)
    rule = MultiOptimizer(keras.optimizers.Adam(), (LazyAdam(), [head, items]))
    rule.build(variables)
    assert all(isinstance(rule.optimizer_of(variable), LazyAdam) for variable in variables)


@pytest.mark.long
@pytest.mark.both_keras
def test_averages_take_their_place_at_the_end():
    results = {}
    for name in ("multi", "alone"):
        keras.utils.set_random_seed(1)
        model, top = two_layers()
        averaging = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        top.trainable = name == "multi"
        model.compile(MultiOptimizer(averaging, (LazySGD(0.0), top)) if name == "multi" else averaging, "mse")
        fit(model, 3)
        results[name] = values([model.layers[1]])
    for left, right in zip(results["multi"], results["alone"], strict=True):
        np.testing.assert_allclose(left, right, atol=1e-7)


@pytest.mark.both_keras
@pytest.mark.parametrize("by", ["name", "weight"])
def test_weights_are_kept_from_the_decay_of_any_part(by):
    model, top = two_layers()
    decaying = [keras.optimizers.AdamW(0.1, weight_decay=0.5) for _ in range(2)]
    optimizer = MultiOptimizer(decaying[0], (decaying[1], top))
    biases = [layer.bias for layer in model.layers[1:]]
    chosen = {"var_names": ["bias"]} if by == "name" else {"var_list": biases}
    optimizer.exclude_from_weight_decay(**chosen)
    model.compile(optimizer, "mse")
    for layer in model.layers[1:]:
        for weight in layer.weights:
            weight.assign(tf.fill(weight.shape, 100.0))
    fit(model)
    kernels = [layer.kernel for layer in model.layers[1:]]
    assert all(np.abs(tf.convert_to_tensor(bias) - 100).max() < 1 for bias in biases)
    assert all(np.max(tf.convert_to_tensor(kernel)) < 95 for kernel in kernels)


@pytest.mark.both_keras
@pytest.mark.parametrize("by", ["assignment", "variable"])
def test_rates_that_were_set_before_saving_keep_their_ratio(reloaded, by):
    model, top = two_layers()
    model.compile(MultiOptimizer(LazyAdam(0.01), (LazySGD(0.5), top)), "mse")
    fit(model)
    if by == "assignment":
        model.optimizer.learning_rate = 0.001
        assert float(model.optimizer.optimizers[1].learning_rate) == pytest.approx(0.05)
    else:  # as callbacks of tf-keras do
        tf_variable(model.optimizer.optimizers[0].learning_rate).assign(0.001)
    loaded = reloaded(model)
    fit(loaded)
    rates = [float(part.learning_rate) for part in loaded.optimizer.optimizers]
    np.testing.assert_allclose(rates, [0.001, 0.05], rtol=1e-5)
