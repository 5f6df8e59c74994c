import timeit

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, learnable, make_model
from long_cases import long_after
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable
from tfxc.ops import row_updates
from tfxc.ops.row_updates import score_gradient_behind
from tfxc.optimizers import LazyAdam, LazySGD, RowwiseAdagrad

OPTIMIZERS = [LazyAdam, LazySGD, RowwiseAdagrad]


@pytest.fixture(params=OPTIMIZERS)
def optimizer_class(request):
    return request.param


def sparse(values, ids, id_dtype="int32"):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids, id_dtype))


def embedding_model(id_dtype="int32"):
    inputs = keras.Input([3], dtype=id_dtype)
    embedded = keras.layers.Embedding(11, 4, name="table")(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(embedded))
    return keras.Model(inputs, outputs)


def training_data():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 10, size=(40, 3))  # row 10 never occurs
    return ids, ids.sum(axis=1, keepdims=True).astype("float32") / 10


def check_goes_on_alike(model, loaded):
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for own in (model, loaded):
        own.fit(*training_data(), batch_size=20, verbose=0, shuffle=False)
    for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    tf.nest.map_structure(np.testing.assert_array_equal, model.get_weights(), loaded.get_weights())


@pytest.mark.parametrize("option", ["use_ema", "ema_momentum", "loss_scale_factor", "amsgrad"])
def test_options_that_touch_every_row_are_refused_with_a_remedy(optimizer_class, option):
    with pytest.raises(ValueError, match=f"does not take '{option}': .*[a-z]"):
        optimizer_class(0.1, **{option: 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.9}, "unknown option 'momentum'; it takes weight_decay, seed, clipnorm"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "at most one of"),
        ({"clipnorm": -1.0}, r"clipnorm must be in \(0, inf\), but got -1.0"),
        ({"clipvalue": "1.0"}, "clipvalue must be a number, but got '1.0'"),
        *(({"weight_decay": bad}, r"weight_decay must be in \[0, inf\)") for bad in (-0.1, np.nan, np.inf)),
        *(({"learning_rate": bad}, r"learning_rate must be in \[0, inf\)") for bad in (-1.0, np.nan, np.inf)),
        ({"learning_rate": None}, "learning_rate must be a number, but got None"),
    ],
)
def test_wrong_options_are_refused(optimizer_class, options, message):
    with pytest.raises(ValueError, match=message):
        optimizer_class(**options)


@pytest.mark.both_keras
def test_a_constraint_on_a_table_is_refused_and_on_a_dense_variable_kept(optimizer_class):
    table = tf.Variable(tf.ones([3, 2]), constraint=lambda x: tf.clip_by_value(x, 0.0, 0.5), name="table")
    with pytest.raises(ValueError, match="constraint"):
        optimizer_class(0.1).apply_gradients([(sparse([[1, 1]], [0]), table)])
    np.testing.assert_array_equal(table.numpy(), np.ones([3, 2]))
    optimizer_class(0.1).apply_gradients([(tf.zeros([3, 2]), table)])
    np.testing.assert_array_equal(table.numpy(), np.full([3, 2], 0.5))


# The rows sum to [6, 8] (row 2) and [0, 5] (row 0); the other variable's gradient is [10].
@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("option", "table", "other"),
    [
        ({}, [[0, 5], [0, 0], [6, 8]], [10]),
        ({"clipvalue": 5.5}, [[0, 5], [0, 0], [5.5, 5.5]], [5.5]),
        ({"clipnorm": 1.0}, np.array([[0, 5], [0, 0], [6, 8]]) / np.sqrt(125), [1]),
        ({"global_clipnorm": 3.0}, np.array([[0, 5], [0, 0], [6, 8]]) * 0.2, [2]),
        ({"global_clipnorm": 30.0}, [[0, 5], [0, 0], [6, 8]], [10]),
    ],
)
def test_clipping_sees_summed_rows(option, table, other):
    variables = [tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([1]))]
    gradients = [sparse([[1, 8], [0, 5], [5, 0]], [2, 0, 2]), tf.constant([10.0])]
    LazySGD(1.0, **option).apply_gradients(zip(gradients, variables, strict=True))
    np.testing.assert_allclose(variables[0].numpy(), -np.array(table), rtol=1e-6)
    np.testing.assert_allclose(variables[1].numpy(), -np.array(other), rtol=1e-6)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("optimizer_class", "wrap", "clipping"),
    long_after(
        2,
        (LazyAdam, tf.function, {}),
        (LazySGD, lambda f: f, {"clipnorm": 1.0}),
        (RowwiseAdagrad, tf.function, {"clipnorm": 1.0}),
    ),
)
def test_weight_decay_shrinks_a_row_once_at_each_step_that_touches_it(optimizer_class, wrap, clipping):
    rng = np.random.default_rng(0)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.02])
    starts = [rng.normal(size=shape) for shape in [(6, 2), (4, 2), (3,), (6, 2)]]
    ids = rng.integers(0, 5, [4, 7])  # rows occur several times, and the last never

    def weights(starts, **options):
        variables = [tf.Variable(start, dtype=tf.float32) for start in starts]
        optimizer = optimizer_class(schedule, **clipping, **options)
        optimizer.exclude_from_weight_decay(variables[3:])
        optimizer.build(variables)

        @wrap
        def step(ids, values, dense, vector):
            rows = tf.IndexedSlices(values, ids)
            optimizer.apply_gradients(zip([rows, dense, vector, rows], variables, strict=True))

        steps = np.random.default_rng(1)
        for row_ids in ids:
            given = (steps.normal(size=shape) for shape in [(7, 2), (4, 2), (3,)])
            step(tf.constant(row_ids), *(tf.constant(values, tf.float32) for values in given))
            yield [variable.numpy().astype("float64") for variable in variables]

    # Steps do not depend on the weights: without decay, from zeros, they are the differences.
    zeros = [0 * start for start in starts]
    plain = [zeros, *weights(zeros)]
    for step, found in enumerate(weights(starts, weight_decay=0.5)):
        kept = 1 - 0.5 * [0.1, 0.1, 0.02, 0.02][step]
        starts[0][np.unique(ids[step])] *= kept
        starts[1:3] = [kept * start for start in starts[1:3]]
        for start, before, after, end in zip(starts, *plain[step : step + 2], found, strict=True):
            start += after - before
            np.testing.assert_allclose(end, start, atol=2e-6)


def test_weight_decay_of_bfloat16_is_exact_in_the_mean():
    table, optimizer = tf.Variable(tf.ones([1100, 8], tf.bfloat16)), LazySGD(2.0**-4, weight_decay=2.0**-6)
    gradient = sparse(np.full([1000, 8], 2.0**-6), np.arange(1000))
    expected = 1.0
    for step in range(32):
        optimizer.apply_gradients([(gradient, table)])
        values = tf.cast(table, tf.float32).numpy()
        if not step:  # decay and gradient each move to the next number with a chance of 1/4, on their own
            shares = [np.mean(values[:1000] == 1 - places / 256) for places in (0, 1, 2)]
            np.testing.assert_allclose(shares, [9 / 16, 6 / 16, 1 / 16], atol=0.02)
        expected -= 2.0**-10 * expected + 2.0**-10
    np.testing.assert_allclose(values[:1000].mean(), expected, atol=5e-4)
    assert (values[1000:] == 1).all()


@pytest.mark.traced
@pytest.mark.parametrize("option", long_after(1, "clipnorm", "clipvalue", "global_clipnorm"))
def test_clipped_steps_inside_xla_are_those_outside(optimizer_class, option):
    results = []
    for jit_compile in (False, True):
        rng, table = np.random.default_rng(0), tf.Variable(tf.ones([8, 2]))
        optimizer = optimizer_class(0.1, weight_decay=0.5, **{option: 1.0})
        optimizer.build([table])

        @tf.function(jit_compile=jit_compile)
        def step(values, ids, optimizer=optimizer, table=table):
            optimizer.apply_gradients([(tf.IndexedSlices(values, ids, tf.constant([8, 2])), table)])

        for _ in range(4):  # a first step would hide slots that are written twice
            gradient = sparse(rng.normal(size=(6, 2)), rng.integers(0, 8, 6))
            step(gradient.values, gradient.indices)
        results.append([table.numpy(), *(slot.numpy() for slot in optimizer.slots_of(table).values())])
    for outside, inside in zip(*results, strict=True):
        np.testing.assert_allclose(inside, outside, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (tf.ones([], tf.bfloat16), r'weight w.* bfloat16 \(\), has no rows to round.*dtype="float32"'),
        (tf.ones([2, 2], tf.float16), r'weight w.* float16 \(2, 2\), loses small steps.*dtype="float32"'),
    ],
)
def test_weights_that_would_not_train_are_refused(optimizer_class, weight, message):
    with pytest.raises(ValueError, match=message):
        optimizer_class(0.1).build([tf.Variable([1.0]), tf.Variable(weight, name="w")])
    optimizer_class(0.1).build([tf.Variable(1.0)])


def test_a_norm_of_shards_is_refused(optimizer_class):
    table = ShardedVariable([tf.Variable(tf.ones([2 - i, 2]), name=f"table/part_{i}") for i in (0, 1)])
    with pytest.raises(ValueError, match="some of the rows of a table.*Take global_clipnorm"):
        optimizer_class(0.1, clipnorm=1.0).build(table.variables)
    for option in ("clipvalue", "global_clipnorm"):
        optimizer_class(0.1, **{option: 1.0}).build(table.variables)


@pytest.mark.both_keras
def test_saved_in_keras_format_it_continues_where_it_stopped(optimizer_class, reloaded):
    model = embedding_model()
    accumulating = {"gradient_accumulation_steps": 3} if IS_KERAS_3 else {}  # the fourth batch begins a group
    model.compile(optimizer_class(0.05, clipvalue=1.0, weight_decay=0.5, **accumulating), "mse")
    model.fit(*training_data(), batch_size=10, verbose=0, shuffle=False)
    loaded = reloaded(model)
    assert type(loaded.optimizer) is optimizer_class
    check_goes_on_alike(model, loaded)


@pytest.mark.traced
@pytest.mark.both_keras
@pytest.mark.usefixtures("path")
def test_learning_rate_schedule_and_assignment(optimizer_class):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.0])
    table = tf.Variable(tf.zeros([2, 1]))
    optimizer = optimizer_class(schedule)
    gradient = sparse([[1]], [0])
    optimizer.apply_gradients([(gradient, table)])
    moved = table.numpy()
    assert moved[0, 0] < -0.1
    optimizer.apply_gradients([(gradient, table)])  # the rate is 0 from here on
    np.testing.assert_array_equal(table.numpy(), moved)
    restored = optimizer_class.from_config(optimizer.get_config())
    assert restored.get_config() == optimizer.get_config()

    assigned = optimizer_class(0.5)
    step = tf.function(lambda: assigned.apply_gradients([(gradient, table)]))
    step()
    moved = table.numpy()
    assigned.learning_rate = 0.0
    step()
    np.testing.assert_array_equal(table.numpy(), moved)


RATE = tf.Variable(0.5, trainable=False)


@keras.saving.register_keras_serializable(package="tests")
def rate_of_now():
    return RATE.read_value()


@pytest.mark.both_keras
@pytest.mark.traced
def test_a_callable_as_learning_rate(optimizer_class, reloaded):
    if not IS_KERAS_3:
        with pytest.raises(ValueError, match="calls a learning rate once only: give a LearningRateSchedule"):
            optimizer_class(rate_of_now)
        return
    table, gradient = tf.Variable(tf.zeros([2, 1])), sparse([[1]], [0])
    optimizer = optimizer_class(rate_of_now)
    step = tf.function(lambda: optimizer.apply_gradients([(gradient, table)]))
    RATE.assign(0.5)
    step()
    moved = table.numpy()
    assert moved[0, 0] < -0.1
    RATE.assign(0.0)
    step()
    np.testing.assert_array_equal(table.numpy(), moved)

    RATE.assign(0.05)
    model = embedding_model()
    model.compile(optimizer_class(rate_of_now), "mse", run_eagerly=True)
    model.fit(*training_data(), batch_size=20, verbose=0, shuffle=False)
    loaded = reloaded(model)
    RATE.assign(0.2)
    check_goes_on_alike(model, loaded)


@pytest.mark.long
@pytest.mark.traced
def test_a_step_costs_far_less_than_one_copy_of_the_table(optimizer_class):
    table = tf.Variable(tf.zeros([200_000, 64]))
    optimizer = optimizer_class(0.1)
    optimizer.build([table])
    gradient = sparse(np.ones([100, 64]), np.random.default_rng(0).integers(0, 200_000, size=100))
    step = tf.function(lambda: optimizer.apply_gradients([(gradient, table)]))
    fastest = min(timeit.repeat(step, number=1, repeat=20))
    assert fastest < min(timeit.repeat(lambda: table + 1.0, number=1, repeat=5)) / 5


def bfloat16_steps(optimizer, gradients):
    table = tf.Variable(tf.ones([50, 4], tf.bfloat16))
    for gradient in gradients:
        optimizer.apply_gradients([(gradient, table)])
    return table


def test_a_bfloat16_table_is_rounded_by_seed_and_step(optimizer_class):
    gradient = sparse(np.ones([50, 4]), np.arange(50))
    first, same, other = (optimizer_class(1e-3, seed=seed) for seed in (1, 1, 2))
    tables = [bfloat16_steps(optimizer, [gradient] * 3) for optimizer in (first, same, other)]
    np.testing.assert_array_equal(*tables[:2])
    assert (tables[0].numpy() != tables[2].numpy()).any()
    assert len(np.unique(tables[0].numpy(), axis=0)) > 1  # rows of one gradient, each rounded on its own
    assert optimizer_class.from_config(other.get_config()).seed == 2
    assert all(variable.dtype != tf.bfloat16 for variable in map(tf_variable, other.variables))
    assert {slot.dtype for slot in other.slots_of(tables[2]).values()} <= {tf.float32}


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_several_tables_are_rounded_whatever_the_seed(seed):
    tables = [tf.Variable(tf.ones([50, 4], tf.bfloat16)) for _ in range(2)]
    gradient = sparse(np.ones([50, 4]), np.arange(50))
    tfxc.optimizers.LazySGD(1e-3, seed=seed).apply_gradients([(gradient, table) for table in tables])
    assert (tables[0].numpy() != tables[1].numpy()).any()


@pytest.mark.both_keras
def test_a_dense_gradient_rounds_every_row_of_bfloat16(optimizer_class):
    values = np.random.default_rng(0).normal(size=(50, 4))
    gradients = [tf.constant(values, tf.float32), sparse(values, np.arange(50))]
    dense, rows = (bfloat16_steps(optimizer_class(1e-2), [gradient] * 2).numpy() for gradient in gradients)
    np.testing.assert_array_equal(dense, rows)


def test_gradients_of_two_dtypes_are_clipped_together(optimizer_class):
    for rows, dense in (("bfloat16", "float32"), ("float32", "float64")):
        table, other = tf.Variable(tf.ones([2, 1], rows)), tf.Variable(tf.ones([1], dense))
        gradient = tf.IndexedSlices(tf.constant([[6.0], [2.0]], rows), tf.constant([1, 1]))
        steps = [(gradient, table), (tf.constant([6.0], dense), other)]
        optimizer = optimizer_class(1.0, global_clipnorm=1.0)
        clipped = optimizer._clip([gradient for gradient, _ in steps])
        np.testing.assert_allclose(clipped[0].values, [[0.8]])
        np.testing.assert_allclose(clipped[1], [0.6])
        optimizer.apply_gradients(steps)
        assert other.numpy() < 1 and table.numpy()[0] == 1 and table.numpy()[1] < 1


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.kernels
@pytest.mark.parametrize(
    ("optimizer_class", "head", "options", "direct"),
    long_after(
        2,
        (LazyAdam, {}, {}, True),
        (LazyAdam, {"normalize": True}, {}, False),
        (LazyAdam, {}, {"clipnorm": 1.0}, False),
        (LazySGD, {}, {}, True),
        (RowwiseAdagrad, {}, {}, True),
    ),
)
def test_fit_makes_no_gradient_rows_of_plain_scores(optimizer_class, head, options, direct, monkeypatch):
    found = []
    seen = lambda gradient: found.append(score_gradient_behind(gradient)) or found[-1]  # noqa: E731
    monkeypatch.setattr(row_updates, "score_gradient_behind", seen)
    head, rule = tfxc.layers.DenseHead(NUM_CLASSES, **head), optimizer_class(0.1, **options)
    model = make_model(tfxc.samplers.Uniform(5, seed=0), head=head, optimizer=rule)
    model.fit(*learnable(40), batch_size=8, verbose=0)
    assert found
    assert all((one is not None) == direct for one in found)
