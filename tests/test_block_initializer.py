import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import Subclassed

import tfxc
from tfxc import block_initializer
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import constant, tf_variable
from tfxc.block_initializer import in_blocks, some_rows
from tfxc.encoders.sequence_layers import ItemEmbedding
from tfxc.layers import DenseHead, EmbeddingBag
from tfxc.losses import SoftmaxCrossentropy

ROWS, DIM = 1000, 16


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(block_initializer, "_BLOCK_ELEMENTS", 300 * DIM)


def made(initializer, shape=(ROWS, DIM), dtype="bfloat16"):
    table = in_blocks(initializer)(shape, dtype=dtype)
    assert table.dtype == dtype and table.shape == shape
    return table.numpy().astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["GlorotUniform", "GlorotNormal", "HeNormal", "LecunUniform", "RandomNormal", "TruncatedNormal"]
)
def test_the_numbers_of_the_whole(name, dtype):
    initializer = getattr(keras.initializers, name)(seed=1)
    found, whole = made(initializer, dtype=dtype), np.asarray(initializer((ROWS, DIM)))
    for first in range(0, ROWS, 300):  # each block
        np.testing.assert_allclose(found[first : first + 100].std(), whole.std(), rtol=0.1)
    np.testing.assert_allclose(np.abs(found).max(), np.abs(whole).max(), rtol=0.3)
    assert len(np.unique(found, axis=0)) == ROWS
    np.testing.assert_array_equal(made(initializer, dtype=dtype), found)
    assert (made(getattr(keras.initializers, name)(seed=2), dtype=dtype) != found).mean() > 0.9


def test_one_block_is_as_keras_makes_it():
    initializer = keras.initializers.GlorotUniform(seed=1)
    np.testing.assert_array_equal(made(initializer, (300, DIM), "float32"), initializer((300, DIM)))


def test_some_rows_have_the_scale_of_the_whole_and_no_seed():
    scaled = keras.initializers.VarianceScaling(2.0, "fan_out", "uniform", seed=3)
    np.testing.assert_allclose(np.abs(made(scaled)).max(), np.sqrt(3 * 2.0 / DIM), rtol=0.01)
    rows = some_rows(keras.initializers.GlorotUniform(), (ROWS, DIM), 200)
    np.testing.assert_allclose(np.abs(rows).max(), np.sqrt(6 / (ROWS + DIM)), rtol=0.01)
    np.testing.assert_array_equal(rows, some_rows(keras.initializers.GlorotUniform(), (ROWS, DIM), 200))
    given = keras.initializers.Constant(np.ones([ROWS, DIM]))
    assert some_rows(given, (ROWS, DIM), 3) is some_rows(None, (ROWS, DIM), 3) is None


def shards(initializer, sizes):
    starts = np.cumsum([0, *sizes[:-1]])
    return [
        in_blocks(initializer)((ROWS, DIM), partition_shape=(size, DIM), partition_offset=(start, 0)).numpy()
        for start, size in zip(starts, sizes, strict=True)
    ]


@pytest.mark.parametrize("name", ["GlorotUniform", "HeNormal", "TruncatedNormal"])
@pytest.mark.parametrize("seed", [1, None])
def test_shards_have_numbers_of_the_size_of_the_whole_and_of_their_own(name, seed):
    initializer = getattr(keras.initializers, name)(seed=seed)
    parts = shards(initializer, [700, 100, 200])
    assert [len(part) for part in parts] == [700, 100, 200]
    for part in parts:
        np.testing.assert_allclose(part.std(), np.asarray(initializer((ROWS, DIM))).std(), rtol=0.1)
    assert len(np.unique(np.concatenate(parts))) > 0.99 * ROWS * DIM
    if seed is not None:
        for part, again in zip(parts, shards(initializer, [700, 100, 200]), strict=True):
            np.testing.assert_array_equal(again, part)


def test_without_a_seed_two_tables_differ():
    normal = keras.initializers.RandomNormal
    assert (made(normal()) != made(normal())).mean() > 0.9


@pytest.mark.parametrize("name", ["GlorotUniform", "RandomNormal"])
@pytest.mark.parametrize(
    "seed",
    [lambda: -1, lambda: keras.random.SeedGenerator(7) if IS_KERAS_3 else np.int64(7)],
    ids=["negative", "of a kind that one Keras takes"],
)
def test_each_seed_that_keras_takes_is_that_of_the_table(name, seed):
    found, again = (made(getattr(keras.initializers, name)(seed=seed())) for _ in range(2))
    np.testing.assert_array_equal(again, found)
    assert len(np.unique(found, axis=0)) == ROWS  # no block like another
    assert (made(getattr(keras.initializers, name)(seed=2**62)) != found).mean() > 0.9


def test_other_initializers_are_asked_for_the_whole():
    values = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM) % 128  # bfloat16 holds these
    found = made(lambda shape, dtype: tf.constant(values))
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(np.concatenate(shards(constant(values), [600, 400])), values)

    class Descending(keras.initializers.GlorotUniform):
        def __call__(self, shape, dtype=None, **options):
            return -tf.sort(-super().__call__(shape, dtype=dtype, **options), axis=0)

    found = made(Descending(seed=1), dtype="float32")
    np.testing.assert_array_equal(found, -np.sort(-found, axis=0))


LAYERS = {
    "head": lambda: DenseHead(ROWS),
    "bfloat16": lambda: DenseHead(ROWS, table_dtype="bfloat16"),
    "items": lambda: ItemEmbedding(ROWS, DIM),
    "bag": lambda: EmbeddingBag(ROWS, DIM),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layers_table_is_never_drawn_whole(layer, monkeypatch):
    drawn = []
    for kind in block_initializer._RANDOM:

        def draw(self, shape, *args, _whole=kind.__call__, **options):
            drawn.append(shape[0])
            return _whole(self, shape, *args, **options)

        monkeypatch.setattr(kind, "__call__", draw)
    built = layer()
    built.build((None, DIM))
    assert drawn == [300, 300, 300, 100]
    assert [tf_variable(weight).shape for weight in built.weights] == [(ROWS, DIM)]


@pytest.mark.traced
def test_a_table_that_is_built_while_a_step_is_traced_has_the_same_numbers():
    def built(run):
        head = DenseHead(ROWS, embeddings_initializer=keras.initializers.GlorotUniform(seed=1))
        query, labels = tf.ones([2, DIM]), tf.constant([1, 2])
        loss = run(lambda: tfxc.head_loss(head, SoftmaxCrossentropy(), query, labels))()
        return loss, tf_variable(head.table)

    (eager, wanted), (traced, found) = built(lambda step: step), built(tf.function)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(traced, eager, rtol=1e-5)


@pytest.mark.long
def test_a_model_that_the_first_batch_of_a_generator_builds():
    model = tfxc.ExtremeClassifier(Subclassed(layer=EmbeddingBag(ROWS, DIM)), DenseHead(ROWS))
    model.compile(tfxc.optimizers.LazyAdam(0.1), loss=SoftmaxCrossentropy())
    ids = np.arange(8)
    batches = ((ids[:, np.newaxis], ids) for _ in range(20))
    history = model.fit(batches, epochs=2, steps_per_epoch=10, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0] < 1.1 * np.log(ROWS)
