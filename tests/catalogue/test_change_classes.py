import itertools

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features, item_encoder, learnable, make_model
from long_cases import long_after

import tfxc
from tfxc import layers, losses, metrics, optimizers, samplers
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.layers import Untracked
from tfxc._keras.optimizers import keras_slots, places_without_decay, steps_variable, variable_index
from tfxc._keras.training import variables_of_training
from tfxc._keras.weights import tf_variable
from tfxc.catalogue import spool
from tfxc.optimizers.slots import slots_of

NAMES = [f"item {i}" for i in range(NUM_CLASSES)]
COUNTS = np.arange(1.0, NUM_CLASSES + 1)
# Every third is gone, two are new, and all that stay move.
OTHER = ["new a", *reversed([name for i, name in enumerate(NAMES) if i % 3]), "new b"]
KEPT = [i for i, name in enumerate(OTHER) if name in NAMES]
OLD = [NAMES.index(OTHER[i]) for i in KEPT]
ADDED = [0, len(OTHER) - 1]


def named(sampler=None, encoder=None, head=None, optimizer=None, metrics=None):
    head = head or layers.DenseHead(NUM_CLASSES, use_bias=True)
    model = tfxc.ExtremeClassifier(encoder or dense_encoder(), head, sampler, k=5, class_names=NAMES)
    loss = losses.SoftmaxCrossentropy()
    model.compile(optimizer or optimizers.LazyAdam(0.05), loss=loss, metrics=metrics, run_eagerly=True)
    return model


def data_of(model, num_classes=NUM_CLASSES):
    if getattr(model.head, "tied_to", None):
        history = np.random.default_rng(0).integers(1, num_classes + 1, size=(16, 3))
        return history, history % num_classes
    return learnable(16, num_classes=num_classes)


def trained(model):
    x, y = data_of(model)
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    if model.sampler is not None:
        model.sampler.refresh(model.head)
    return model


def values(model):
    table = model.head.class_rows()[0].weight
    return {
        "table": tf_variable(table).numpy(),
        "vectors": model.head.class_vectors(0, model.head.num_classes).numpy(),
        "slots": {name: slot.numpy() for name, slot in slots_of(model.optimizer, table).items()},
    }


@pytest.mark.both_keras
@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras keeps the state of dropout where nobody can read it")
def test_random_states_of_layers_go_on():
    dropout = keras.layers.Dropout(0.5, seed=3)
    encoder = keras.Sequential([keras.Input((DIM,)), dropout, keras.layers.Dense(DIM)])
    model = trained(named(encoder=encoder))
    state = dropout.seed_generator.state.numpy()
    changed = tfxc.change_classes(model, OTHER)
    np.testing.assert_array_equal(changed.encoder.layers[0].seed_generator.state.numpy(), state)


HEADS = {
    "dense": lambda: {},
    "normalized": lambda: {"head": layers.DenseHead(NUM_CLASSES, normalize=True, temperature=0.1)},
    "tied": lambda: {
        "head": layers.DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, use_bias=True),
        "encoder": item_encoder(masked=False),
    },
    "bfloat16": lambda: {"head": layers.DenseHead(NUM_CLASSES, table_dtype="bfloat16")},
    "sparse": lambda: {"head": layers.UniformSparseHead(NUM_CLASSES, fan_in=3, use_bias=True, seed=3)},
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "tied", "sparse", "normalized", "bfloat16"])
def test_what_is_known_of_a_class_goes_with_its_name(name):
    model = trained(named(samplers.MIDX(6, num_codewords=4), **HEADS[name]()))
    before, offset = values(model), getattr(model.head, "row_offset", 0)
    encoder = [weight.numpy() for weight in model.encoder.weights]
    steps, draws = int(model.optimizer.iterations), int(model.sampler.counter)
    changed = tfxc.change_classes(model, OTHER)
    after = values(changed)
    assert changed.class_names == OTHER and changed.head.num_classes == len(OTHER)
    rows, old_rows = np.array(KEPT) + offset, np.array(OLD) + offset
    np.testing.assert_array_equal(after["table"][rows], before["table"][old_rows])
    np.testing.assert_allclose(after["vectors"][KEPT], before["vectors"][OLD], rtol=1e-6)
    assert after["slots"].keys() == before["slots"].keys() == {"momentum", "velocity"}
    for slot, value in after["slots"].items():
        np.testing.assert_array_equal(value[rows], before["slots"][slot][old_rows])
        np.testing.assert_array_equal(value[np.array(ADDED) + offset], 0)
    for weight, old in zip(changed.encoder.weights, encoder, strict=True):
        if weight.shape == old.shape:
            np.testing.assert_array_equal(weight.numpy(), old)
    assert int(changed.optimizer.iterations) == steps and int(changed.sampler.counter) == draws
    if name == "tied":  # the row of padding
        np.testing.assert_array_equal(after["table"][0], before["table"][0])
    if name != "sparse":
        mean = before["table"][old_rows].astype(np.float32).mean(0)
        added = after["table"][np.array(ADDED) + offset].astype(np.float32)
        np.testing.assert_allclose(added, [mean, mean], rtol=4e-3 if name == "bfloat16" else 1e-5)
    x, y = data_of(changed, len(OTHER))
    history = changed.fit(x, y, batch_size=8, verbose=0).history["loss"]
    assert np.isfinite(history).all()


@pytest.mark.long
@pytest.mark.traced
def test_a_retired_name_is_in_none_of_100_000_answers(served_by):
    names = [f"item {i}" for i in range(3000)]
    retired = set(names[::10])
    queries, head = tf.constant(features(100_000)), layers.DenseHead(3000, normalize=True)
    model = tfxc.ExtremeClassifier(dense_encoder(), head, k=5, class_names=names)
    before = {names[i] for i in np.unique(model.rank(queries[:10_000], 5)["ids"])}
    assert len(before & retired) > 100
    changed = tfxc.change_classes(model, [*(name for name in names if name not in retired), "new"])
    index = tfxc.search.InvertedIndex(num_cells=50, num_probes=4)
    index.build_from(changed.head)
    served, after = served_by(changed, index=index), set()
    for part in tf.split(queries, 10):
        found = served.serve(part)["names"].numpy()
        assert found.shape == (10_000, 5)
        after |= {name.decode() for name in np.unique(found)}
    assert len(after) > 1000 and not after & retired


@pytest.mark.parametrize("way", long_after(1, "file", "checkpoint", "trained"))
def test_training_goes_on_as_if_nothing_had_happened(way, tmp_path, reloaded):
    def build():
        mixed = samplers.Mixture([samplers.InBatch(), samplers.LSH(4, num_tables=2, seed=5)])
        return named(mixed, **HEADS["tied"]())

    model = trained(build())
    other = reloaded(model)
    if way == "checkpoint":
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "point"))
        model = build()
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(path)
    elif way == "file":
        model = reloaded(model)
    order = np.random.default_rng(3).permutation(NUM_CLASSES)
    changed = tfxc.change_classes(model, [NAMES[i] for i in order])
    new_id = np.argsort(order)
    x, y = data_of(other)
    for a in (other, changed):
        a.sampler = None  # draws are of ids, which now mean other classes
        a.compile(a.optimizer, loss=losses.SoftmaxCrossentropy(), run_eagerly=True)
    x_now, y_now = new_id[x - 1] + 1, new_id[y]
    for rows in (slice(0, 8), slice(8, 16)):
        want = other.train_on_batch(x[rows], y[rows])
        np.testing.assert_allclose(changed.train_on_batch(x_now[rows], y_now[rows]), want, rtol=1e-5)
    assert int(changed.optimizer.iterations) == 4


SAMPLERS = {
    "unigram, counting": lambda: samplers.Unigram(6),
    "mixture": lambda: samplers.Mixture([samplers.MIDX(6, num_codewords=4), samplers.Sphere(4)]),
    "learned midx": lambda: samplers.LearnedMIDX(6, num_codewords=3),
    "searched": lambda: samplers.SearchedHardNegatives(2, 4, num_probes=2),
    "unigram": lambda: samplers.Unigram(6, counts=COUNTS, power=0.5),
    "in batch": lambda: samplers.InBatch(counts=COUNTS),
    "in batch, counting": lambda: samplers.InBatch(),
    "rff": lambda: samplers.RFF(4),
    "softmax": lambda: samplers.Softmax(4),
}


@pytest.mark.long
@pytest.mark.parametrize("name", long_after(4, *SAMPLERS))
def test_a_sampler_draws_the_classes_there_are(name):
    model = trained(named(SAMPLERS[name]()))
    count = getattr(model.sampler, "running_counts", None)
    counted = None if count is None else tf_variable(count.occurrences).numpy()
    changed = tfxc.change_classes(model, OTHER)
    if counted is not None:
        again = changed.sampler.running_counts
        np.testing.assert_array_equal(tf_variable(again.occurrences).numpy()[KEPT], counted[OLD])
        assert int(again.total) == counted[OLD].sum()
    query = tf.constant(features(4))
    step = samplers.Step(changed.head.effective_query(query), tf.zeros([4, 1], tf.int32))
    draw = changed.sampler.sample(step)
    assert np.all(draw.ids.numpy() < len(OTHER)) and np.isfinite(draw.label_log_expected_count.numpy()).all()
    if name not in ("in batch", "in batch, counting", "mixture", "searched"):
        prob = tf.exp(changed.sampler.log_prob(step.query, tf.range(len(OTHER))))
        np.testing.assert_allclose(tf.reduce_sum(prob, 1), 1.0, rtol=1e-4)
        assert np.all(prob > 0)


def test_codebooks_stay_and_so_do_the_cells_of_known_classes():
    model = trained(named(samplers.MIDX(6, num_codewords=3)))
    before = {name: tf_variable(getattr(model.sampler, name)).numpy() for name in ("codebook_0", "cell")}
    changed = tfxc.change_classes(model, OTHER)
    np.testing.assert_array_equal(tf_variable(changed.sampler.codebook_0), before["codebook_0"])
    cell = tf_variable(changed.sampler.cell).numpy()
    np.testing.assert_array_equal(cell[KEPT], before["cell"][OLD])
    for added in ADDED:  # the nearest codeword, and the one nearest to what it leaves
        rest, nearest = changed.head.class_vectors(0, len(OTHER)).numpy()[added], []
        for codebook in (tf_variable(codebook).numpy() for codebook in changed.sampler.codebooks):
            nearest.append(np.argmin(np.linalg.norm(codebook - rest, axis=1)))
            rest = rest - codebook[nearest[-1]]
        assert cell[added] == 3 * nearest[0] + nearest[1]


@pytest.mark.both_keras
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda head: optimizers.RowwiseAdagrad(0.1),
        lambda head: keras.optimizers.Adam(0.01),
        lambda head: keras.optimizers.Adafactor(0.1),
        lambda head: optimizers.MultiOptimizer(optimizers.LazyAdam(0.02), (optimizers.LazySGD(0.3), head)),
        pytest.param(
            lambda head: optimizers.LazySGD(0.3, gradient_accumulation_steps=4),
            marks=pytest.mark.skipif(not IS_KERAS_3, reason="optimizers of tf-keras accumulate no gradients"),
        ),
    ],
)
def test_optimizers_keep_what_they_know(optimizer):
    head = layers.DenseHead(NUM_CLASSES)
    model = trained(named(head=head, optimizer=optimizer(head)))
    before = values(model)["slots"]
    changed = tfxc.change_classes(model, OTHER)
    assert type(changed.optimizer) is type(model.optimizer)
    assert int(steps_variable(changed.optimizer)) == 2
    for name, value in values(changed)["slots"].items():
        np.testing.assert_array_equal(value[KEPT], before[name][OLD])


class WithPrevious(keras.optimizers.Adam):
    def build(self, variables):
        if not hasattr(self, "previous"):
            super().build(variables)
            self.previous = [self.add_variable_from_reference(own, "previous") for own in variables]


class ThatSays(WithPrevious):
    def slots_of(self, variable):
        place = variable_index(self, variable)
        return {**keras_slots(self, variable), "previous": tf_variable(self.previous[place])}


@pytest.mark.long
def test_slots_that_nobody_knows_are_refused_unless_the_optimizer_tells_of_them():
    with keras.utils.custom_object_scope({own.__name__: own for own in (WithPrevious, ThatSays)}):
        model = trained(named(optimizer=WithPrevious(0.01)))
        with pytest.raises(ValueError, match=r"WithPrevious keeps .* of a class table, \(25, 6\)"):
            tfxc.change_classes(model, NAMES[::-1])
        model = trained(named(optimizer=ThatSays(0.01)))
        table = model.head.class_rows()[0].weight
        rows = np.random.default_rng(0).normal(size=table.shape).astype("float32")
        slots_of(model.optimizer, table)["previous"].assign(rows)
        changed = tfxc.change_classes(model, NAMES[::-1])
    np.testing.assert_array_equal(values(changed)["slots"]["previous"], rows[::-1])


@pytest.mark.both_keras
@pytest.mark.skipif(IS_KERAS_3, reason="lists it")
def test_the_product_of_nadam_goes_on():
    model = trained(named(optimizer=keras.optimizers.Nadam(0.01)))
    product = float(model.optimizer._u_product)
    assert product < 1
    assert any(own is model.optimizer._u_product for own in variables_of_training(model).values())  # backups
    assert float(tfxc.change_classes(model, OTHER).optimizer._u_product) == product


@pytest.mark.long
@pytest.mark.both_keras
def test_weight_decay_leaves_out_what_it_left_out_before():
    def decayed(model):
        weights = model.trainable_variables
        parts = [model.optimizer, *getattr(model.optimizer, "optimizers", [])]
        places = [places_without_decay(part, weights) for part in parts]
        return [[place not in left_out for place in range(len(weights))] for left_out in places]

    adam = keras.optimizers.AdamW(0.01)
    model = named(optimizer=adam)
    adam.exclude_from_weight_decay([model.encoder.trainable_variables[0]], ["bias"])
    assert 0 < sum(before := decayed(trained(model))[0]) < len(before)
    assert decayed(tfxc.change_classes(model, OTHER)) == [before]

    head, adam = layers.DenseHead(NUM_CLASSES), keras.optimizers.AdamW(0.01)
    model = named(head=head, optimizer=optimizers.MultiOptimizer(optimizers.LazyAdam(), (adam, head)))
    adam.exclude_from_weight_decay(head.trainable_variables)
    before = decayed(trained(model))
    assert before[:2] == [[True] * len(before[0])] * 2 and not all(before[2])
    assert decayed(tfxc.change_classes(model, OTHER)) == before


def test_mach_keeps_its_buckets_and_moves_names_only():
    model, x = trained(named(head=layers.MACHHead(NUM_CLASSES, 6, 3, seed=1))), features(5)
    before = model.head(model.encoder(x)).numpy()
    names = ["rum" if name == "item 3" else name for name in NAMES]
    changed = tfxc.change_classes(model, names)
    np.testing.assert_array_equal(changed.head(changed.encoder(x)), before)
    assert changed.class_names[3] == "rum"
    with pytest.raises(ValueError, match="finds the buckets of a class by its id.*merge"):
        tfxc.change_classes(changed, names[::-1])
    with pytest.raises(ValueError, match="made for 25 classes"):
        tfxc.change_classes(changed, [*names, *map(str, range(20))])


def test_metrics_of_the_classes_change_with_them():
    propensities = np.linspace(0.1, 1, NUM_CLASSES)
    model = named(metrics=[metrics.PSPAtK(3, propensities), metrics.CoverageAtK(3, NUM_CLASSES)])
    changed = tfxc.change_classes(trained(model), OTHER)
    x, y = data_of(changed, len(OTHER))
    assert np.isfinite(list(changed.evaluate(x, y, return_dict=True, verbose=0).values())).all()
    psp, coverage = changed.get_compile_config()["metrics"]
    psp = keras.saving.deserialize_keras_object(psp)
    np.testing.assert_allclose(psp.propensities[KEPT], propensities[OLD], rtol=1e-6)
    np.testing.assert_allclose(psp.propensities[ADDED], 0.1, rtol=1e-6)
    assert coverage["config"]["num_classes"] == len(OTHER)


@pytest.mark.filterwarnings("ignore:The embeddings .* count as tables of items")
@pytest.mark.parametrize("offset", [0, 1])
def test_tables_that_the_head_does_not_share_and_lookups_change_too(offset):
    history = keras.Input((None,), dtype="string" if offset else "int32")
    items = history
    if offset:
        items = keras.layers.StringLookup(vocabulary=NAMES, num_oov_indices=1)(history)
    vectors = keras.layers.Embedding(NUM_CLASSES + offset, DIM, name="items")(items)
    encoder = keras.Model(history, keras.layers.GlobalAveragePooling1D()(vectors))
    model = named(encoder=encoder, head=layers.DenseHead(NUM_CLASSES))
    x = tf.constant([["item 1", "item 5"]]) if offset else tf.constant([[1, 5]])
    before = model.encoder(x).numpy()
    changed = tfxc.change_classes(model, OTHER)
    if not offset:
        x = tf.constant([[OTHER.index("item 1"), OTHER.index("item 5")]])
    np.testing.assert_array_equal(changed.encoder(x).numpy(), before)
    assert changed.encoder.get_layer("items").embeddings.shape[0] == len(OTHER) + offset


def test_names_that_a_bag_reads_as_columns_move_with_its_rows():
    history = keras.Input((3,), dtype="string")
    names = keras.layers.StringLookup(vocabulary=NAMES, output_mode="multi_hot", sparse=True)(history)
    encoder = keras.Model(history, layers.EmbeddingBag(NUM_CLASSES + 1, DIM)(names))
    x = tf.constant([["item 1", "item 5", "item 5"], ["item 2", "what", "item 4"]])
    before = encoder(x).numpy()
    changed = tfxc.change_classes(named(encoder=encoder), OTHER)
    np.testing.assert_allclose(changed.encoder(x), before, rtol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The embeddings .* count as tables of items")
@pytest.mark.both_keras
@pytest.mark.parametrize("form", ["functional", "nested", "sequential"])
def test_an_input_of_columns_that_a_bag_reads_grows_with_its_rows(form):
    columns, bag = keras.Input((NUM_CLASSES,), sparse=True), layers.EmbeddingBag(NUM_CLASSES, DIM)
    encoder = keras.Sequential([columns, bag]) if form == "sequential" else keras.Model(columns, bag(columns))
    if form == "nested":
        outer = keras.Input((NUM_CLASSES,), sparse=True)
        encoder = keras.Model(outer, keras.layers.Dense(DIM)(encoder(outer)))
    model = named(encoder=encoder)
    old, new = np.zeros([3, NUM_CLASSES], np.float32), np.zeros([3, len(OTHER)], np.float32)
    new[:, KEPT] = old[:, OLD] = features(3)[:, :1] + np.arange(len(KEPT))
    before = model.encoder(tf.sparse.from_dense(old)).numpy()
    changed = tfxc.change_classes(model, OTHER)
    x = tf.sparse.from_dense(new)
    np.testing.assert_allclose(changed.encoder(x), before, rtol=1e-5)
    assert changed.predict(x, verbose=0)["ids"].shape == (3, changed.k)


@pytest.mark.both_keras
def test_it_is_an_ordinary_model(served_by, reloaded):
    changed = tfxc.change_classes(trained(named(samplers.MIDX(6, num_codewords=4))), OTHER)
    x, y = data_of(changed, len(OTHER))
    want = changed.evaluate(x, y, verbose=0)
    loaded = reloaded(changed)
    assert loaded.evaluate(x, y, verbose=0) == want and loaded.class_names == OTHER
    served = served_by(changed)
    assert all(name.decode() in OTHER for name in served.serve(tf.constant(x[:1]))["names"].numpy()[0])
    names = pd.Series(NAMES, index=range(NUM_CLASSES)[::-1])
    assert tfxc.change_classes(loaded, names).class_names == NAMES


@pytest.mark.both_keras
def test_a_model_that_is_not_compiled_stays_so_and_answers_as_much_as_was_asked_for(served_by):
    model = tfxc.ExtremeClassifier(dense_encoder(), layers.DenseHead(3), k=10, class_names=NAMES[:3])
    assert model.predict(features(2), verbose=0)["ids"].shape == (2, 3)
    model = tfxc.change_classes(model, NAMES[:12])
    assert getattr(model, "optimizer", None) is None and model.head.num_classes == 12
    assert model.predict(features(2), verbose=0)["ids"].shape == (2, 10)
    loaded = served_by(model)
    assert loaded.serve(tf.constant(features(2)))["ids"].shape == (2, 10)


def own_class(name, base, **methods):
    return type(name, (base,), methods)


OwnLayer = own_class("OwnLayer", keras.layers.Layer, call=lambda self, inputs: 2 * inputs)
OwnOptimizer = own_class("OwnOptimizer", optimizers.LazyAdam)
OwnMetric = own_class("OwnMetric", metrics.RecallAtK)
OwnLoss = own_class("OwnLoss", losses.SoftmaxCrossentropy)


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.05

    def get_config(self):
        return {}


@pytest.mark.both_keras
def test_classes_that_nobody_registered_are_known_as_nothing_comes_from_a_file():
    encoder = keras.Sequential([keras.Input((DIM,)), OwnLayer(), keras.layers.Dense(DIM)])
    head = layers.DenseHead(NUM_CLASSES)
    model = tfxc.ExtremeClassifier(encoder, head, samplers.Uniform(5), class_names=NAMES)
    model.compile(OwnOptimizer(OwnSchedule()), loss=OwnLoss(), metrics=[OwnMetric(3)], run_eagerly=True)
    old, x = values(trained(model))["vectors"], features(4)
    other = tfxc.change_classes(model, OTHER)
    np.testing.assert_array_equal(values(other)["vectors"][KEPT], old[OLD])
    rate, loss = other.optimizer._learning_rate, other.classification_loss
    parts = other.encoder.layers[0], other.optimizer, rate, loss
    assert [type(part) for part in parts] == [OwnLayer, OwnOptimizer, OwnSchedule, OwnLoss]
    assert "recall_at_3" in other.evaluate(x, np.arange(4), return_dict=True, verbose=0)
    other.fit(x, np.arange(4), verbose=0)


def test_of_two_classes_of_one_name_that_nobody_registered_none_takes_the_others_place():
    first, second = (
        own_class("OwnFactor", keras.layers.Layer, call=lambda self, x, factor=factor: factor * x)
        for factor in (2.0, 3.0)
    )
    encoder = keras.Sequential([keras.Input((DIM,)), first(), second(), keras.layers.Dense(DIM)])
    model = trained(named(encoder=encoder))
    before = model.queries(features(4)).numpy()
    with pytest.raises((TypeError, ValueError), match="OwnFactor"):
        tfxc.change_classes(model, OTHER)
    np.testing.assert_array_equal(model.queries(features(4)), before)


class Bare(layers.Head):
    def build(self, input_shape):
        self.effective_dim = input_shape[-1]
        self.other = self.add_weight(shape=(self.num_classes, 2), name="other")
        self.built = True

    def class_rows(self):
        return []


def test_what_cannot_be_carried_is_refused_and_the_model_stays_as_it_was():
    model = tfxc.ExtremeClassifier(dense_encoder(), Bare(NUM_CLASSES), class_names=NAMES)
    model.head.other.assign(tf.random.normal([NUM_CLASSES, 2]))
    before = [weight.numpy() for weight in model.weights]
    with keras.utils.custom_object_scope({"Bare": Bare}), pytest.raises(ValueError, match="class_rows"):
        tfxc.change_classes(model, OTHER)
    tf.nest.map_structure(np.testing.assert_array_equal, model.weights, before)


@pytest.mark.long
@pytest.mark.parametrize("failing", long_after(1, "rows", "disk", "sampler"))
def test_after_a_late_failure_training_goes_on_as_if_nothing_had_been(failing, monkeypatch):
    models, (x, y) = [], learnable(16)
    for _ in range(2):
        keras.utils.set_random_seed(0)
        models.append(trained(named(samplers.MIDX(6, num_codewords=4, seed=1))))
    blocks = spool.blocks_of
    written = itertools.count()

    def full(*_):
        raise OSError("no space left")

    def blocks_until_full(variable):
        return full() if next(written) == 5 else blocks(variable)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        if failing == "disk":
            patch.setattr(spool, "blocks_of", blocks_until_full)
        if failing == "sampler":
            patch.setattr(samplers.MIDX, "classes_changed", full)
        tfxc.change_classes(models[0], OTHER, new_rows=full if failing == "rows" else "mean")
    best = [model.predict(x, verbose=0) for model in models]
    for name in ("ids", "scores"):
        np.testing.assert_array_equal(best[0][name], best[1][name])
    for model in models:  # by the same draws, slots and counters
        model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    states = [[*map(tf_variable, model.weights), *model.optimizer.variables] for model in models]
    tf.nest.map_structure(np.testing.assert_array_equal, *states)


def test_errors_say_the_remedy():
    foreign = named(**HEADS["tied"]())
    foreign.head._shared = Untracked(keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items"))
    for model, message in (
        (dense_encoder(), "ExtremeClassifier, but got Sequential"),
        (make_model(), "no class names.*class_names=names"),
        (foreign, "not in this encoder"),
    ):
        with pytest.raises(ValueError, match=message):
            tfxc.change_classes(model, OTHER)


def adapted_encoder():
    number, text = keras.Input((1,), name="number"), keras.Input((), dtype="string", name="text")
    data = np.arange(30.0, dtype=np.float32)[:, np.newaxis]
    normalized, bins = keras.layers.Normalization(), keras.layers.Discretization(num_bins=3)
    words = keras.layers.TextVectorization(output_mode="tf_idf")
    normalized.adapt(3 * data)
    bins.adapt(data)
    words.adapt(np.array(["a b c", "b c", "e"]))
    of_bins = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(bins(number)))
    parts = [normalized(number), of_bins, words(text)]
    return keras.Model([number, text], keras.layers.Dense(DIM)(keras.layers.Concatenate()(parts)))


def test_what_layers_have_adapted_to_stays():
    model = named(encoder=adapted_encoder())
    x = [tf.constant([[4.0], [25.0]]), tf.constant(["a b", "e z"])]
    before = model.encoder(x).numpy()
    changed = tfxc.change_classes(model, OTHER)
    np.testing.assert_array_equal(changed.encoder(x), before)


@pytest.mark.long
def test_an_item_encoder_that_normalizes_encodes_new_classes_by_what_it_has_adapted_to():
    prices = np.arange(NUM_CLASSES, dtype=np.float32)[:, np.newaxis]
    normalized = keras.layers.Normalization()
    normalized.adapt(prices)
    item_encoder = keras.Sequential([keras.Input((1,)), normalized, keras.layers.Dense(DIM)])
    model = named(samplers.InBatch(), head=layers.EncodedHead(item_encoder, prices))
    want = item_encoder(prices).numpy()
    price = lambda names: np.float32([[3.0]] * len(names))  # noqa: E731
    changed = tfxc.change_classes(model, [*NAMES, "new"], new_rows=price)
    np.testing.assert_allclose(changed.head.class_vectors(25, 26).numpy()[0], want[3], rtol=1e-5)


def towers_that_share_a_table(names, own_table=False):
    dtype = "string" if names else "int32"
    table = keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items")
    history, item = keras.Input((3,), dtype=dtype, name="history"), keras.Input((), dtype=dtype, name="item")
    rows, row = history, item
    if names:
        lookup = keras.layers.StringLookup(vocabulary=NAMES)
        rows, row = lookup(history), keras.layers.StringLookup(vocabulary=NAMES)(item)
    encoder = keras.Model(history, keras.layers.GlobalAveragePooling1D()(table(rows)))
    of_item = keras.layers.Embedding(NUM_CLASSES + 1, DIM)(row) if own_table else table(row)
    features = np.array(NAMES) if names else np.arange(1, NUM_CLASSES + 1)
    head = layers.EncodedHead(keras.Model(item, keras.layers.Dense(DIM)(of_item)), features)
    return named(samplers.InBatch(), encoder, head)


@pytest.mark.parametrize("own_table", [False, True])
def test_items_that_an_item_encoder_finds_by_name_stay_what_they_are(own_table):
    model = towers_that_share_a_table(names=True, own_table=own_table)
    x = tf.constant([["item 1", "item 2", "item 5"]])
    before, query = model.head.encode(tf.range(NUM_CLASSES)).numpy(), model.encoder(x).numpy()
    changed = tfxc.change_classes(model, OTHER, new_rows=np.array)
    np.testing.assert_allclose(changed.head.encode(tf.constant(KEPT)), before[OLD], atol=1e-6)
    np.testing.assert_array_equal(changed.encoder(x), query)


@pytest.mark.filterwarnings("ignore:The embeddings .* count as tables of items")
def test_rows_that_move_under_features_that_stay_are_refused():
    with pytest.raises(ValueError, match=r"rows of \['items'\] move .* Give it a table of its own"):
        tfxc.change_classes(towers_that_share_a_table(names=False), NAMES[::-1])


@pytest.mark.both_keras
def test_the_average_of_a_new_class_begins_where_the_class_does():
    model = trained(named(optimizer=keras.optimizers.Adam(0.001, use_ema=True)))
    changed = tfxc.change_classes(model, [*NAMES, "new"], new_rows=lambda names: np.ones([1, DIM]))
    table = changed.head.class_rows()[0].weight
    average = slots_of(changed.optimizer, table)["average"]
    np.testing.assert_array_equal(average[-1], tf_variable(table)[-1])


def test_layers_frozen_since_the_optimizer_was_made_are_refused():
    model = trained(named())
    model.encoder.trainable = False
    with pytest.raises(ValueError, match="frozen, or unfrozen, .* Compile the model again"):
        tfxc.change_classes(model, OTHER)
    model.compile(optimizers.LazyAdam(0.05), loss=losses.SoftmaxCrossentropy())
    assert tfxc.change_classes(model, OTHER).class_names == OTHER


def test_a_mere_layer_as_item_encoder_may_change_its_classes():
    head = layers.EncodedHead(keras.layers.Dense(DIM), features(NUM_CLASSES))
    model = named(samplers.InBatch(), head=head)
    before = model.head.encode(tf.range(NUM_CLASSES)).numpy()
    changed = tfxc.change_classes(model, NAMES[::-1])
    np.testing.assert_allclose(changed.head.encode(tf.range(NUM_CLASSES)), before[::-1], rtol=1e-5)


@pytest.mark.parametrize("rows", [NUM_CLASSES + 1, 7])
def test_two_layers_of_one_name_are_refused_and_the_model_stays(rows):
    towers, inputs = [], []
    for tower, num_rows in ("left", NUM_CLASSES + 1), ("right", rows):
        history = keras.Input((2,), dtype="int32")
        embedding = keras.layers.Embedding(num_rows, DIM, name="items")
        inputs.append(keras.Input((2,), dtype="int32", name=tower))
        towers.append(keras.Model(history, embedding(history))(inputs[-1]))
    query = keras.layers.Dense(DIM)(keras.layers.Flatten()(keras.layers.Add()(towers)))
    model = named(encoder=keras.Model(inputs, query))
    x = [tf.ones([1, 2], tf.int32)] * 2
    before = model.rank(x, 3)["scores"].numpy()
    warned = pytest.warns(UserWarning, match="as many rows as there are classes, or one more")
    message = "Two layers Embedding are called 'items', .*: rename one"
    with warned, pytest.raises(ValueError, match=message):
        tfxc.change_classes(model, OTHER)
    np.testing.assert_array_equal(model.rank(x, 3)["scores"], before)
