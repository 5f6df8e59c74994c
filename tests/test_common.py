"""What every component must do: survive a config, a saved model, a checkpoint and an export.

A new component is one more line in the registry below.
"""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, features, item_encoder, learnable, make_model, weights_of

from tfxc import head_loss, layers, losses, metrics, optimizers, samplers
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable

pytestmark = pytest.mark.filterwarnings("ignore:HardNegatives has no table")
COUNTS = np.arange(1.0, NUM_CLASSES + 1)


def item_tower(name=None):
    inputs = keras.Input((6,), name="features")
    return keras.Model({name: inputs} if name else inputs, keras.layers.Dense(6)(inputs))


# Instances with other than the default arguments, by name.
HEADS = {
    "DenseHead": lambda: layers.DenseHead(NUM_CLASSES),
    "DenseHead, all options": lambda: layers.DenseHead(
        NUM_CLASSES,
        use_bias=True,
        normalize=True,
        temperature=0.5,
        embeddings_initializer="he_normal",
        name="top",
    ),
    "DenseHead, tied": lambda: layers.DenseHead(NUM_CLASSES, tied_to="items", row_offset=1),
    "EncodedHead": lambda: layers.EncodedHead(item_tower(), features(NUM_CLASSES, 5)),
    "EncodedHead, all options": lambda: layers.EncodedHead(
        item_tower("own"),
        {"own": features(NUM_CLASSES, 5)},
        free_vectors=True,
        use_bias=True,
        bias_initializer=keras.initializers.Constant(-2.0),
        name="top",
    ),
    "UniformSparseHead": lambda: layers.UniformSparseHead(NUM_CLASSES, fan_in=3),
    "UniformSparseHead, all options": lambda: layers.UniformSparseHead(
        NUM_CLASSES, fan_in=4, use_bias=True, seed=7, group_size=4, name="top"
    ),
    "MACHHead": lambda: layers.MACHHead(NUM_CLASSES, 6, 3),
    "MACHHead, all options": lambda: layers.MACHHead(
        NUM_CLASSES,
        num_buckets=7,
        num_repetitions=4,
        decoder="median",
        activation="sigmoid",
        num_probes=7,
        first_repetition=2,
        num_groups=2,
        kernel_initializer="he_normal",
        bias_initializer="ones",
        seed=3,
        name="top",
    ),
}
SAMPLERS = {
    "DNS": lambda: samplers.DNS(4, num_candidates=9, seed=3),
    "DNS, shared": lambda: samplers.DNS(4, num_candidates=9, shared=True),
    "Uniform": lambda: samplers.Uniform(6, seed=3),
    "Uniform, shared": lambda: samplers.Uniform(6, shared=True, name="own"),
    "LogUniform": lambda: samplers.LogUniform(6, shared=True),
    "Unigram": lambda: samplers.Unigram(6, counts=COUNTS, smoothing=0.5, power=0.5),
    "Unigram, counting": lambda: samplers.Unigram(6, shared=True),
    "InBatch": lambda: samplers.InBatch(4, counts=COUNTS),
    "InBatch, all": lambda: samplers.InBatch(counts=COUNTS, smoothing=2.0, seed=2),
    "InBatch, counting": lambda: samplers.InBatch(seed=2),
    "LSH": lambda: samplers.LSH(6, num_tables=3),
    "LSH, label": lambda: samplers.LSH(
        6, num_tables=3, num_bits=5, family="dwta", query="label", uniform_fraction=0.3, seed=5
    ),
    "LSH, union": lambda: samplers.LSH(9, num_tables=3, candidates="union"),
    "LSH, shared": lambda: samplers.LSH(6, num_tables=3, num_bits=2, shared=True),
    "MIDX": lambda: samplers.MIDX(6, num_codewords=4),
    "MIDX, pq": lambda: samplers.MIDX(6, num_codewords=3, quantizer="pq", class_weights="uniform", seed=5),
    "MIDX, shared": lambda: samplers.MIDX(6, num_codewords=4, shared=True),
    "Sphere": lambda: samplers.Sphere(6, alpha=30.0, seed=4),
    "Sphere, shared": lambda: samplers.Sphere(6, shared=True),
    "RFF": lambda: samplers.RFF(6, num_features=5, nu=2.0, seed=4),
    "RFF, shared": lambda: samplers.RFF(6, shared=True),
    "Softmax": lambda: samplers.Softmax(6),
    "Softmax, shared": lambda: samplers.Softmax(6, shared=True, seed=3),
    "LearnedMIDX": lambda: samplers.LearnedMIDX(6, num_codewords=3),
    "Mixture, learned": lambda: samplers.Mixture(
        [samplers.LearnedMIDX(3, num_codewords=4, quantizer="pq"), samplers.Uniform(2, shared=True)]
    ),
    "Mixture": lambda: samplers.Mixture(
        [
            samplers.MIDX(3, num_codewords=4),
            samplers.Unigram(2, counts=COUNTS),
            samplers.Uniform(2, shared=True),
        ]
    ),
    "HardNegatives": lambda: samplers.HardNegatives(2, 4, num_retrieved=5, seed=4),
    "HardNegatives, mixed": lambda: samplers.Mixture(
        [samplers.HardNegatives(2, 0), samplers.Uniform(4, seed=3)]
    ),
    "SearchedHardNegatives": lambda: samplers.SearchedHardNegatives(2, 4, num_cells=3, num_probes=2, seed=4),
}
LOSSES = {
    "SoftmaxCrossentropy": lambda: losses.SoftmaxCrossentropy(),
    "SoftmaxCrossentropy, partition": lambda: losses.SoftmaxCrossentropy(
        "partition", reduction="sum", name="own"
    ),
    "SoftmaxCrossentropy, nce": lambda: losses.SoftmaxCrossentropy("nce"),
    "SoftmaxCrossentropy, decoupled": lambda: losses.SoftmaxCrossentropy(decoupled=True),
    "SoftmaxCrossentropy, filtered": lambda: losses.SoftmaxCrossentropy(filter_below=2**-12),
    "SoftmaxAtK": lambda: losses.SoftmaxAtK(k=3, temperature=0.5, reduction="sum", name="own"),
    "GBCE": lambda: losses.GBCE(calibration=0.5, reduction="sum", name="own"),
    "BinaryCrossentropy": lambda: losses.BinaryCrossentropy(reduction="sum", name="own"),
    "SquaredHinge": lambda: losses.SquaredHinge(reduction="sum", name="own"),
}
METRICS = {
    name: functools.partial(getattr(metrics, name), 3, average="all", name="own")
    for name in ("PrecisionAtK", "RecallAtK", "HitRateAtK", "MRRAtK", "MAPAtK", "NDCGAtK")
}
OF_CLASSES = {"CoverageAtK": NUM_CLASSES, "NoveltyAtK": COUNTS, "AveragePopularityAtK": COUNTS}
OF_CLASSES |= dict.fromkeys(("PSPAtK", "PSNDCGAtK"), np.linspace(0.1, 1, NUM_CLASSES))
for name, given in OF_CLASSES.items():
    METRICS[name] = functools.partial(getattr(metrics, name), 3, given, name="own")


def multi_optimizer(head=None):
    head = head or layers.DenseHead(NUM_CLASSES)
    return optimizers.MultiOptimizer(optimizers.LazyAdam(0.02), (keras.optimizers.Adam(0.1), head))


OPTIMIZERS = {
    "LazyAdam": lambda: optimizers.LazyAdam(0.02, beta_1=0.8, beta_2=0.9, epsilon=1e-5, clipnorm=3.0),
    "LazySGD": lambda: optimizers.LazySGD(0.3, global_clipnorm=5.0),
    "RowwiseAdagrad": lambda: optimizers.RowwiseAdagrad(0.2),
    "MultiOptimizer": multi_optimizer,
}
REGISTRY = {**HEADS, **SAMPLERS, **LOSSES, **METRICS, **OPTIMIZERS}

# One model for every component that has a state; a loss and a metric have a config alone. The other parts are
# the first of their kind.
MODELS = {
    **{name: {"head": head, "sampler": SAMPLERS["MIDX"]} for name, head in HEADS.items()},
    "MACHHead": {"head": HEADS["MACHHead"]},
    "MACHHead, all options": {"head": HEADS["MACHHead, all options"], "loss": LOSSES["BinaryCrossentropy"]},
    **{name: {"sampler": sampler} for name, sampler in SAMPLERS.items()},
    "SquaredHinge, NDCGAtK": {"sampler": SAMPLERS["Uniform"], "loss": LOSSES["SquaredHinge"]},
    **{name: {"sampler": SAMPLERS["Uniform"], "optimizer": rule} for name, rule in OPTIMIZERS.items()},
}
MODELS["SquaredHinge, NDCGAtK"]["metrics"] = lambda: [METRICS["NDCGAtK"]()]
# Every optimizer trains one of them, whose slots nothing else compares.
REPRESENTATIVES = {
    "DenseHead, all options": "LazyAdam",
    "UniformSparseHead": "RowwiseAdagrad",
    "SquaredHinge, NDCGAtK": "LazySGD",
    "MACHHead, all options": None,
    "Mixture, learned": None,
    "MultiOptimizer": "MultiOptimizer",
}
for name, rule in REPRESENTATIVES.items():
    MODELS[name] |= {"optimizer": OPTIMIZERS[rule]} if rule else {}


def named(names, both=REPRESENTATIVES, quick=REGISTRY):
    def marks(name):
        return [pytest.mark.both_keras] * (name in both) + [pytest.mark.long] * (name not in quick)

    return pytest.mark.parametrize("name", [pytest.param(own, marks=marks(own)) for own in names])


# Whether a batch shares its draws, or LSH draws from all tables at once, is no state: configs show it. The
# others have the state of another: "LogUniform" that of "Uniform", the counter alone; "InBatch, all" that of
# "InBatch"; "MIDX, pq" that of a part of "Mixture, learned"; "HardNegatives, mixed" that of its parts.
SAME_STATE = {"LSH, union", "LogUniform", "InBatch, all", "MIDX, pq", "HardNegatives, mixed"}
SAME_STATE |= {name for name in SAMPLERS if name.endswith(", shared")}
STATES = [name for name in [*HEADS, *SAMPLERS, *OPTIMIZERS] if name not in SAME_STATE]
# The indices, counts and features of all samplers, and each head and optimizer.
KINDS = ["LSH", "RFF", "Unigram, counting", "HardNegatives", "EncodedHead", *REPRESENTATIVES]
EVERY_MODEL = named([name for name in MODELS if name not in SAME_STATE], quick=KINDS)
STATEFUL = named(STATES, ["MultiOptimizer"], ["Mixture, learned", "UniformSparseHead", "MultiOptimizer"])


def test_every_public_component_is_in_the_registry():
    parts = {layers: layers.Head, samplers: samplers.Sampler, losses: losses.ClassificationLoss}
    parts |= {metrics: keras.metrics.Metric, optimizers: keras.optimizers.Optimizer}
    found = [(getattr(module, name), base) for module, base in parts.items() for name in module.__all__]
    wanted = {item for item, base in found if isinstance(item, type) and issubclass(item, base)}
    wanted -= {*parts.values(), metrics.RankingMetric}
    assert {item.__name__ for item in wanted} <= {name.split(",")[0] for name in REGISTRY}


def model_of(name):
    parts = {key: make() for key, make in MODELS[name].items()}
    if name == "MultiOptimizer":  # needs the very head of the model
        parts["head"] = layers.DenseHead(NUM_CLASSES, use_bias=True)
        parts["optimizer"] = multi_optimizer(parts["head"])
    tied = getattr(parts.get("head"), "tied_to", None)
    # Eager: hundreds of tiny models, each run for a few steps, are quicker run than traced.
    return make_model(**parts, **({"encoder": item_encoder(masked=False)} if tied else {}), run_eagerly=True)


@functools.cache
def data(is_tied, has_ids):
    """Two batches of inputs and labels: of arrays Keras would make graphs each time that it reads them."""
    x, y = learnable(16)
    if is_tied:
        x = np.random.default_rng(0).integers(1, NUM_CLASSES + 1, size=(16, 3))
        y = x % NUM_CLASSES
    elif has_ids:
        x = {"features": x, "example_ids": np.arange(16)}
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def data_of(model):
    return data(bool(getattr(model.head, "tied_to", None)), model.sampler is not None)


def train(model, epochs=1):
    model.fit(data_of(model), epochs=epochs, verbose=0)
    return model


def trained(name):
    model = train(model_of(name))
    if model.sampler is not None:
        model.sampler.refresh(model.head)
    return model


# For tests that compare it with what they make of it, and so may train it further.
trained_once = functools.cache(trained)


def draws(model):
    query, labels = tf.constant(features(4)), tf.constant([[1], [2], [3], [-1]])
    score = lambda ids: model.head.score(query, ids)  # noqa: E731
    step = samplers.Step(model.head.effective_query(query), labels, tf.range(4), score)
    draw = model.sampler.sample(step)
    return [tf.convert_to_tensor(part).numpy() for part in draw if part is not None]


def assert_alike(one, other):
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(one), weights_of(other))
    if one.sampler is not None:
        tf.nest.map_structure(np.testing.assert_array_equal, draws(one), draws(other))


def assert_goes_on_alike(one, other):
    predicted = [model.predict(data_of(one), verbose=0) for model in (one, other)]
    found = [model.evaluate(data_of(one), return_dict=True, verbose=0) for model in (one, other)]
    tf.nest.map_structure(np.testing.assert_array_equal, *predicted)
    assert found[0] == found[1]
    for left, right in zip(weights_of(train(one)), weights_of(train(other)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def plain(config):
    if isinstance(config, dict):
        return {key: plain(value) for key, value in config.items() if key != "build_config"}
    return [plain(item) for item in config] if isinstance(config, list) else config


@pytest.mark.both_keras
@pytest.mark.parametrize("name", REGISTRY)
def test_config_round_trip(name):
    item = REGISTRY[name]()
    serialized = keras.saving.serialize_keras_object(item)
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(serialized)))
    assert type(again) is type(item) and serialized["registered_name"] == f"tfxc>{type(item).__name__}"
    assert plain(keras.saving.serialize_keras_object(again)) == plain(serialized)
    assert type(item).from_config(item.get_config()).get_config() == item.get_config()


@EVERY_MODEL
def test_saved_model_goes_on_alike(name, reloaded):
    model = trained_once(name)
    loaded = reloaded(model)
    for part in ("head", "sampler", "classification_loss", "optimizer"):
        if getattr(model, part) is not None:
            assert plain(getattr(loaded, part).get_config()) == plain(getattr(model, part).get_config())
    assert int(loaded.optimizer.iterations.numpy()) == int(model.optimizer.iterations.numpy()) >= 2
    assert_alike(model, loaded)
    if name in REPRESENTATIVES:
        assert_goes_on_alike(model, loaded)


@STATEFUL
def test_weights_and_checkpoint_bring_everything_back(name, tmp_path):
    model, other = trained_once(name), model_of(name)
    if model.sampler is not None:
        parts = ([own.sampler, *getattr(own.sampler, "samplers", [])] for own in (other, model))
        for part, own in zip(*parts, strict=True):
            part.seed = own.seed  # an argument, not state
    model.save_weights(tmp_path / "own.weights.h5")
    other.load_weights(tmp_path / "own.weights.h5")
    other.head.freshen()  # for all it knows, the cache in the file may be of other features
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), weights_of(other))
    train(other)
    for weight in other.weights:  # a sampler's index too must come from the checkpoint
        tf_variable(weight).assign(tf.zeros_like(tf_variable(weight)))
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=other).read(path).assert_existing_objects_matched()
    assert_alike(model, other)
    if name in REPRESENTATIVES:
        assert_goes_on_alike(model, other)


@named(HEADS, (), KINDS)
def test_a_checkpoint_is_read_before_training_too(name, tmp_path):
    model, other = trained_once(name), model_of(name)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path).expect_partial()
    for left, right in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(tf_variable(left), tf_variable(right))


@named([name for name in REPRESENTATIVES if name in HEADS or name in SAMPLERS], (), ["Mixture, learned"])
def test_same_seed_same_training(name):
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        results.append(weights_of(trained(name)))
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


OPTIONS = [name for name in HEADS if name.endswith("options")]
ENCODERS = "DenseHead, tied", "EncodedHead, all options"  # in whose exports there are Keras's own layers


@named(["DenseHead, tied", *OPTIONS], ENCODERS, ENCODERS)
def test_export_serves_the_same(name, served_by):
    model = trained_once(name)
    x = tf.constant([[3, 1, 25], [2, 7, 25]] if name == "DenseHead, tied" else features(16))
    loaded = served_by(model)  # which holds the variables
    served, want = loaded.serve(x), model.rank(x, model.k)
    np.testing.assert_array_equal(served["ids"], want["ids"])
    np.testing.assert_allclose(served["scores"], want["scores"], rtol=1e-5, atol=1e-6)


# "Uniform" and "MIDX" are built as parts of "Mixture".
BUILT = [name for name in SAMPLERS if name not in SAME_STATE | {"Uniform", "MIDX"}]


@pytest.mark.long
@pytest.mark.traced
@named(BUILT, quick=["DNS", "InBatch, counting", "Mixture, learned"])
def test_a_sampler_may_be_built_while_a_step_is_traced(name):
    query, labels = tf.constant(features(4)), tf.constant([[1], [2], [3], [-1]])

    def loss_of_step(head, sampler):
        loss, ids = losses.SoftmaxCrossentropy(), tf.range(4)
        return head_loss(head, loss, query, labels, sampler, example_ids=ids)

    found = []
    for run in (loss_of_step, tf.function(loss_of_step)):
        keras.utils.set_random_seed(7)
        found.append(run(layers.DenseHead(NUM_CLASSES, embeddings_initializer="ones"), SAMPLERS[name]()))
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("name", ["InBatch, counting", "Mixture, learned"])
def test_evaluation_draws_nothing(name):
    model = model_of(name)
    before = weights_of(model)
    model.evaluate(data_of(model), verbose=0)
    model.predict(data_of(model), verbose=0)
    tf.nest.map_structure(np.testing.assert_array_equal, before, weights_of(model))
    train(model)
    parts = getattr(model.sampler, "samplers", [model.sampler])
    assert [int(tf_variable(part.counter)) for part in parts] == [2] * len(parts)
