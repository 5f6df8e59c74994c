from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, SAMPLERS, learnable, make_model
from head_checks import (
    CLOSE,
    EVERY_CONFIGURATION,
    check_logits,
    gradient_error,
    make_head,
    numpy_logits,
    queries,
    variables_of,
)
from long_cases import long_after
from sampler_checks import built

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.optimizers import LazyAdam, LazySGD, MultiOptimizer, RowwiseAdagrad


@EVERY_CONFIGURATION
@pytest.mark.parametrize(("num_queries", "num_classes", "dim"), [(1, 1, 1), (4, 7, 3)])
def test_every_way_to_a_logit_agrees(name, num_queries, num_classes, dim):
    layer, query = make_head(name, num_classes, dim), queries(num_queries, dim)
    want = numpy_logits(layer, query)
    check_logits(layer, query, want)
    effective = layer.effective_query(query)
    assert effective.shape == (num_queries, layer.effective_dim)
    np.testing.assert_allclose(effective @ tf.transpose(layer.class_vectors(0, num_classes)), want, **CLOSE)
    last = layer.class_vectors(num_classes - 1, num_classes)
    assert last.shape == (1, layer.effective_dim)
    np.testing.assert_allclose(effective @ tf.transpose(last), want[:, -1:], **CLOSE)
    some = layer.class_vectors_of(tf.constant([num_classes - 1, 0]))
    np.testing.assert_array_equal(some, layer.class_vectors_of([num_classes - 1, 0]))
    np.testing.assert_allclose(effective @ tf.transpose(some), want[:, [-1, 0]], **CLOSE)


@EVERY_CONFIGURATION
@pytest.mark.parametrize("shared", [False, True])
def test_gradient_of_chosen_scores(name, shared):
    layer, query = make_head(name, 9, 4), tf.constant(queries(3, 4))
    ids = tf.constant([2, 8, 2, 0] if shared else [[2, 8, 2], [0, -1, 5], [7, 7, 7]])
    upstream = tf.constant(queries(3, ids.shape[-1]))
    sources = [query, *variables_of(layer)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(query)
        chosen = tf.reduce_sum(upstream * layer.score(query, ids))
        every = ids if not shared else tf.tile(ids[tf.newaxis], [3, 1])
        picked = tf.gather(layer(query), tf.maximum(every, 0), batch_dims=1) * tf.cast(every >= 0, tf.float32)
        total = tf.reduce_sum(upstream * picked)
    gradients, error = tape.gradient(chosen, sources), gradient_error(name)
    assert isinstance(gradients[1], tf.IndexedSlices)
    for both in zip(gradients, tape.gradient(total, sources), strict=True):
        np.testing.assert_allclose(*map(tf.convert_to_tensor, both), rtol=error, atol=error)


@pytest.mark.parametrize("name", ["all", "tied"])
@pytest.mark.parametrize("bad", [-2, 9, 11])
def test_ids_outside_the_range(name, bad):
    for ids in ([1, bad], [[1, bad]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
            make_head(name, 9, 4).score(queries(1, 4), tf.constant(ids))


@pytest.mark.parametrize("way", ["all classes", "own", "shared"])
def test_to_a_zero_vector_no_gradient_flows_back_when_normalized(way):
    sampler = None if way == "all classes" else tfxc.samplers.Uniform(3, shared=way == "shared", seed=0)
    head = built(DenseHead(6, normalize=True, use_bias=True), None, 3)
    table = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    table[2] = 0
    head.table.assign(table)
    query = tf.constant([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 0.0]])
    assert not head(query).numpy()[1].any() and not head(query).numpy()[:, 2].any()
    with tf.GradientTape() as tape:
        tape.watch(query)
        loss = tfxc.head_loss(head, tfxc.losses.SoftmaxCrossentropy(), query, tf.constant([1, 2, 2]), sampler)
    to_query, to_table, _ = tape.gradient(loss, [query, *head.trainable_variables])
    to_table = tf.convert_to_tensor(to_table).numpy()
    assert np.abs(to_query).max() < 10 and np.abs(to_table).max() < 10
    assert not to_query[1].numpy().any() and not to_table[2].any()


@pytest.mark.parametrize("normalize", [False, True])
def test_mixed_precision_keeps_table_and_logits_in_float32(normalize):
    policy = "mixed_bfloat16" if IS_KERAS_3 else keras.mixed_precision.Policy("mixed_bfloat16")
    layer, exact = DenseHead(5, dtype=policy, normalize=normalize), DenseHead(5, normalize=normalize)
    query = tf.cast(queries(2, 4), tf.bfloat16)
    logits = layer(query)
    exact.build((None, 4))
    tf_variable(exact.table).assign(tf_variable(layer.table))
    assert tf_variable(layer.table).dtype == logits.dtype == tf.float32
    np.testing.assert_allclose(logits, exact(tf.cast(query, tf.float32)), rtol=1e-5)
    np.testing.assert_allclose(layer.score(query, tf.constant([0, 3])), logits.numpy()[:, [0, 3]], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"temperature": bad}, r"temperature must be in \(0, inf\)") for bad in (0.0, np.nan, np.inf)),
        ({"temperature": None}, "temperature must be a number, but got None"),
        ({"row_offset": 1}, "row_offset must be 0 for a table of its own"),
        ({"row_offset": -1, "tied_to": "items"}, "row_offset must be an integer of at least 0, but got -1"),
        ({"row_offset": 2.5, "tied_to": "items"}, "row_offset must be an integer"),
        ({"table_dtype": "float16"}, "one of .'float32', 'bfloat16'., but got 'float16'"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        DenseHead(5, **options)


def test_a_boolean_of_numpy_normalizes():
    plain, given = (built(DenseHead(5, normalize=normalize), None, 4) for normalize in (True, np.True_))
    given.table_variable.assign(plain.table_variable)
    np.testing.assert_array_equal(given.top_k(queries(2, 4), 3).scores, plain.top_k(queries(2, 4), 3).scores)
    assert given.get_config()["normalize"] is True


def test_a_tied_table_must_fit():
    embedding = keras.layers.Embedding(6, 4, name="items")
    for num_classes, row_offset, dim in ((7, 0, 4), (6, 1, 4), (5, 0, 3)):
        layer = DenseHead(num_classes, tied_to=embedding, row_offset=row_offset)
        with pytest.raises(ValueError, match=r"The table of 'items' is \[6, 4\] of float32.* need \[>= "):
            layer.build((None, dim))
    with pytest.raises(ValueError, match="stands alone.*other models, and copies, .* load their weights"):
        DenseHead(5, tied_to="items").build((None, 4))
    padded = keras.layers.Embedding(6, 4, mask_zero=True, name="items")
    with pytest.raises(ValueError, match="Row 0 of 'items' is that of padding.*row_offset=1"):
        DenseHead(5, tied_to=padded).build((None, 4))
    DenseHead(6, tied_to=padded).build((None, 4))  # padding counted as a class
    DenseHead(5, tied_to=padded, row_offset=1).build((None, 4))


def test_what_has_no_table_cannot_be_tied_to():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(6, 4, name="words")], name="tokens")
    with pytest.raises(ValueError, match=r"'tokens' \(Sequential\) has no table.* in it are \['words'\]"):
        DenseHead(5, tied_to=inner)
    with pytest.raises(ValueError, match="no layer of that name with a table.* are .'words'."):
        DenseHead(5, tied_to="tokens").share(keras.Sequential([keras.Input((3,)), inner]))


@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras has no LoRA")
def test_a_table_that_is_computed_is_refused():
    embedding = keras.layers.Embedding(6, 4, name="items")
    layer = built(DenseHead(6, tied_to=embedding), None, 4)
    embedding.enable_lora(2)
    with pytest.raises(ValueError, match="table of 'items' is no weight, but computed .enable_lora"):
        layer(queries(2, 4))


def test_that_no_file_of_a_plain_tied_head_loads_is_said_when_it_is_saved(tmp_path):
    ids = keras.Input((), dtype="int32")
    embedding = keras.layers.Embedding(6, 4, name="items")
    head = DenseHead(6, tied_to=embedding)
    model = keras.Model(ids, head(embedding(ids)))
    assert not head.weights  # the table is the embedding's
    with pytest.warns(UserWarning, match="tied to 'items' without an ExtremeClassifier.*save_weights"):
        model.save(tmp_path / "model.keras")
    with pytest.raises((TypeError, ValueError), match="stands alone"):
        keras.models.load_model(tmp_path / "model.keras")


def half_model(sampler, optimizer=None, head=None, encoder=None):
    head = head or DenseHead(NUM_CLASSES, use_bias=True, table_dtype="bfloat16")
    return make_model(sampler, head=head, encoder=encoder, optimizer=optimizer or RowwiseAdagrad(0.3))


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("kind", long_after(1, "mixture", "none"))
def test_a_bfloat16_table_trains(kind, reloaded):
    model, (x, y) = half_model(SAMPLERS[kind]()), learnable(200)
    history = model.fit(x, y, batch_size=20, epochs=6, verbose=0)
    assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]
    assert model.evaluate(x, y, verbose=0) < 0.75 * np.log(NUM_CLASSES)
    loaded = reloaded(model)
    np.testing.assert_array_equal(loaded.head.table_variable.numpy(), model.head.table_variable.numpy())
    assert loaded.head.table_variable.dtype == tf.bfloat16
    for each in (model, loaded):  # on to the bit: the steps go on being counted
        each.fit(x, y, batch_size=20, shuffle=False, verbose=0)
    np.testing.assert_array_equal(loaded.head.table_variable.numpy(), model.head.table_variable.numpy())


def tied_head(dtype="bfloat16", **options):
    return DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, table_dtype=dtype, **options)


def half_items(dtype="bfloat16"):
    history = keras.Input((None,), dtype="int32")
    rows = keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items", dtype=dtype)(history)
    query = keras.layers.Dense(DIM)(keras.layers.Activation("linear", dtype="float32")(rows))
    return keras.Model(history, query)


@pytest.mark.long
@pytest.mark.parametrize("kind", long_after(1, "shared", "none"))
def test_a_tied_bfloat16_table_sums_the_gradients_of_an_items_many_lookups(kind):
    """In bfloat16 a sum of equal numbers stands still from the 256th on."""
    learnt = []
    table = np.random.default_rng(0).uniform(-0.5, 0.5, (NUM_CLASSES + 1, DIM)).astype(np.float32)
    for dtype in ("float32", "bfloat16"):
        keras.utils.set_random_seed(0)
        model = half_model(SAMPLERS[kind](), LazySGD(10.0), tied_head(dtype), half_items(dtype))
        model.head.table_variable.assign(tf.cast(tf.cast(table, tf.bfloat16), dtype))
        before = tf.cast(model.head.table_variable, tf.float32).numpy()[5]
        x, y = np.full((2048, 1), 5), np.full((2048, 1), 7)
        model.fit(x, y, batch_size=2048, verbose=0)
        learnt.append(tf.cast(model.head.table_variable, tf.float32).numpy()[5] - before)
    assert np.linalg.norm(learnt[1] - learnt[0]) < 0.03 * np.linalg.norm(learnt[0])


def test_wrong_table_dtypes():
    tied = [("bfloat16", "float32"), *(("float32", other) for other in ("bfloat16", "float16", "float64"))]
    for own, other in tied:
        with pytest.raises(ValueError, match=f"'items' is .* of {other}, but .* of {own}: change the"):
            half_model(None, head=tied_head(own), encoder=half_items(other))


def test_optimizers_that_would_lose_small_steps_are_refused():
    x, y = learnable(20)
    half, mixed = half_model(SAMPLERS["uniform"](), "adam"), half_model(SAMPLERS["uniform"]())
    multi = MultiOptimizer(LazyAdam(), (keras.optimizers.SGD(), mixed.head))
    mixed.compile(multi, loss=SoftmaxCrossentropy())
    for model, name in ((half, "Adam"), (mixed, "SGD")):
        with pytest.raises(ValueError, match=f"{name} rounds to the nearest.*RowwiseAdagrad.*table_dtype"):
            model.fit(x, y, verbose=0)
    mixed.compile(MultiOptimizer(LazyAdam(), (LazySGD(0.1), mixed.head)), loss=SoftmaxCrossentropy())
    mixed.fit(x, y, verbose=0)
    half.head.trainable = False  # then nothing is rounded
    half.compile("adam", loss=SoftmaxCrossentropy())
    half.fit(x, y, verbose=0)


@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras has no MultiOptimizer")
@pytest.mark.parametrize(("part", "refused"), [(LazySGD, False), (keras.optimizers.SGD, True)])
def test_of_a_multi_optimizer_of_keras_the_part_that_trains_the_table_counts(part, refused):
    model = half_model(SAMPLERS["uniform"]())
    parts = keras.optimizers.OptimizerMap(LazyAdam(), {f".*{model.head.name}.*": part()})
    model.compile(keras.optimizers.MultiOptimizer(parts), loss=SoftmaxCrossentropy())
    expected = pytest.raises(ValueError, match="SGD rounds to the nearest") if refused else nullcontext()
    with expected:
        model.fit(*learnable(20), verbose=0)


@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras itself refuses a gradient of another dtype")
def test_a_plain_model_refuses_them_in_its_first_step():
    model = keras.Sequential([keras.Input((DIM,)), DenseHead(NUM_CLASSES, table_dtype="bfloat16")])
    model.compile("adam", loss=SoftmaxCrossentropy())
    with pytest.raises(ValueError, match="is a table of bfloat16.*would be lost"):
        model.fit(*learnable(20), verbose=0)
