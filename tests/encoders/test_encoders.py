import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

import tfxc
from tfxc import samplers
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.layers import mask_of
from tfxc.encoders import esasrec, gru4rec, sasrec
from tfxc.encoders.sequence_layers import CausalAttention

NUM_CLASSES = 50
ENCODERS = {"esasrec": esasrec, "gru4rec": gru4rec, "sasrec": sasrec}
EVERY_ENCODER = pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS)
# Two have every layer that there is: under tf-keras they stand for the third.
BOTH_KERAS = [pytest.param(encode, marks=pytest.mark.both_keras) for encode in (esasrec, gru4rec)]
OF_BOTH_KERAS = pytest.mark.parametrize(
    "encode", [*BOTH_KERAS, pytest.param(sasrec, marks=pytest.mark.long)], ids=ENCODERS
)


def left_padded(*ids, length=8):
    return tf.constant([[0] * (length - len(ids)) + list(ids)])


@pytest.mark.long
@EVERY_ENCODER
def test_a_query_depends_on_its_past_items_alone(encode):
    encoder = encode(NUM_CLASSES, max_length=8, dim=8, num_blocks=2)
    items = left_padded(3, 1, 4, 1)
    before, later = encoder(items).numpy(), encoder(left_padded(3, 1, 4, 9)).numpy()
    np.testing.assert_allclose(later[0, 4:7], before[0, 4:7], atol=1e-6)
    assert np.abs(later[0, 7] - before[0, 7]).max() > 1e-3
    earlier = encoder(left_padded(9, 1, 4, 1)).numpy()
    assert np.abs(earlier[0, 7] - before[0, 7]).max() > 1e-4
    table = encoder.get_layer("item_embedding")
    weights = table.get_weights()
    weights[0][0] += 5  # the vector of padding
    table.set_weights(weights)
    np.testing.assert_allclose(encoder(items)[0, 4:], before[0, 4:], atol=1e-6)


@EVERY_ENCODER
def test_padding_is_masked_and_may_fill_a_whole_row(encode):
    encoder = encode(NUM_CLASSES, max_length=4, dim=8, num_blocks=1)
    query = encoder(tf.constant([[0, 0, 0, 0], [0, 2, 1, 7]]))
    assert mask_of(query).numpy().tolist() == [[False] * 4, [False, True, True, True]]
    assert np.isfinite(query).all()
    with pytest.raises(ValueError, match=r"dense, \[B, T\], but are ragged: pass keras.utils.pad_sequences"):
        encoder(tf.ragged.constant([[2, 1], [7]], dtype=tf.int32))


@EVERY_ENCODER
def test_the_side_on_which_histories_are_padded_changes_nothing(encode):
    encoder = encode(NUM_CLASSES, max_length=5, dim=8)
    items = np.array([[0, 0, 3, 1, 4], [3, 1, 4, 0, 0], [0, 3, 1, 4, 0], [3, 1, 4, 0, 0]])
    with tf.GradientTape() as tape:
        query = encoder(items).numpy()
        own = tf.reduce_sum(encoder(items[1:2]) * tf.constant([1.0, 1, 1, 0, 0])[:, tf.newaxis])
    for row, first in enumerate([2, 0, 1, 0]):
        np.testing.assert_allclose(query[row, first : first + 3], query[0, 2:], atol=1e-6)
    for gradient in tape.gradient(own, encoder.trainable_weights[1:]):
        assert tf.is_tensor(gradient) and np.isfinite(gradient).all()


@OF_BOTH_KERAS
def test_packed_histories_have_the_queries_and_gradients_of_padded_ones(encode):
    lists = [[6, 5, 3, 5, 8, 9, 2], [9, 2, 7], [3, 1, 4, 2, 8]]  # in the order of their rows
    sequences = tfxc.data.Sequences.from_lists(lists, tfxc.data.Vocabulary(range(NUM_CLASSES)))
    encoder = encode(NUM_CLASSES, max_length=8, dim=8, num_blocks=2)
    head = tfxc.layers.DenseHead(NUM_CLASSES, tied_to="item_embedding", row_offset=1)
    head.share(encoder)
    rows, queries, gradients = [], [], []
    for packed in (False, True):
        data = tfxc.data.sequence_training_dataset(sequences, 8, 8, seed=None, packed=packed)
        ((items, labels),) = data
        with tf.GradientTape() as tape:
            query = encoder(items, training=False)
            loss = tfxc.head_loss(head, tfxc.losses.SoftmaxCrossentropy(), query, labels)
        gradient = tape.gradient(loss, encoder.trainable_weights)
        rows.append(len(items))
        queries.append(query[items > 0])
        gradients.append([tf.convert_to_tensor(part) for part in gradient])
    assert rows == [3, 2]
    np.testing.assert_allclose(*queries, atol=1e-5)
    for weight, padded, packed in zip(encoder.trainable_weights, *gradients, strict=True):
        close = min(1e-5, 1e-3 * np.abs(padded).max())
        np.testing.assert_allclose(packed, padded, rtol=1e-5, atol=close, err_msg=weight.name)
        assert close > 0


@EVERY_ENCODER
@pytest.mark.parametrize(("length", "dim", "num_blocks"), [(1, 1, 1), (7, 3, 2)])
def test_odd_sizes(encode, length, dim, num_blocks):
    encoder = encode(NUM_CLASSES, length, dim=dim, num_blocks=num_blocks, dropout=0.0)
    items = tf.random.uniform([3, length], 0, NUM_CLASSES + 1, tf.int32)
    assert encoder(items, training=True).shape == (3, length, dim)
    assert encoder.output_shape == (None, length, dim)


@pytest.mark.long
@EVERY_ENCODER
def test_a_bfloat16_table_is_shared_and_trained(encode):
    encoder = encode(10, max_length=3, dim=4, table_dtype="bfloat16")
    head = tfxc.layers.DenseHead(10, tied_to="item_embedding", row_offset=1, table_dtype="bfloat16")
    model = tfxc.ExtremeClassifier(encoder, head, samplers.Uniform(4, seed=0), k=2)
    loss = tfxc.losses.SoftmaxCrossentropy()
    model.compile(tfxc.optimizers.LazyAdam(0.1), loss=loss, run_eagerly=True)
    items = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    assert encoder(items).dtype == tf.float32
    before = head.table_variable.numpy().astype(np.float32)
    model.fit(items, np.array([[1, 2, 3], [4, 5, 6]]), verbose=0)
    assert head.table_variable.dtype == tf.bfloat16
    assert (head.table_variable.numpy().astype(np.float32) != before).any()
    with pytest.raises(ValueError, match="one of .'float32', 'bfloat16'., but got 'float16'"):
        encode(10, max_length=3, table_dtype="float16")


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("encode", long_after(1, esasrec, sasrec, gru4rec))
def test_learns_from_what_came_before(encode):
    encoder = encode(10, max_length=5, dim=16, dropout=0.0)
    head = tfxc.layers.DenseHead(10, tied_to="item_embedding", row_offset=1)
    model = tfxc.ExtremeClassifier(encoder, head, k=1)
    model.compile(tfxc.optimizers.LazyAdam(0.05), tfxc.losses.SoftmaxCrossentropy())
    items = np.random.default_rng(0).integers(10, size=[64, 6])
    items[:, 2:] = items[:, :1]  # what is to come is told by the first item
    model.fit(np.tile(items[:, :-1] + 1, [20, 1]), np.tile(items[:, 1:], [20, 1]), batch_size=64, verbose=0)
    best = model.head(encoder(items[:, :-1] + 1)).numpy().argmax(-1)
    assert np.mean((best == items[:, 1:])[:, 2:]) > 0.9


@pytest.mark.both_keras
@pytest.mark.parametrize("encode", long_after(1, esasrec, gru4rec, sasrec))
def test_is_saved_loaded_and_exported(encode, served_by, reloaded):
    encoder = encode(NUM_CLASSES, max_length=4, dim=8, num_blocks=1)
    head = tfxc.layers.DenseHead(NUM_CLASSES, tied_to="item_embedding", row_offset=1)
    model = tfxc.ExtremeClassifier(encoder, head, k=3)
    items = left_padded(5, 2, 7, length=4)
    query = encoder(items)
    want = model.head.top_k(query[:, -1], 3).ids
    loaded = reloaded(model)
    np.testing.assert_allclose(loaded.encoder(items), query, atol=1e-6)
    np.testing.assert_array_equal(loaded.head.top_k(query[:, -1], 3).ids, want)
    served = served_by(model)
    np.testing.assert_array_equal(served.serve(items=items)["ids"], want)
    alone = reloaded(encoder)
    np.testing.assert_allclose(alone(items), query, atol=1e-6)


@pytest.fixture
def bfloat16():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_global_policy("float32")


@EVERY_ENCODER
def test_mixed_precision_gives_nearly_the_same_queries(encode, bfloat16):
    encoder = encode(NUM_CLASSES, max_length=6, dim=16, num_blocks=1)
    keras.mixed_precision.set_global_policy("float32")
    exact = encode(NUM_CLASSES, max_length=6, dim=16, num_blocks=1)
    exact.set_weights(encoder.get_weights())
    items = tf.constant([[0, 0, 3, 1, 4, 1], [5, 9, 2, 6, 5, 3]])
    query, want = encoder(items), exact(items).numpy()
    assert query.dtype == tf.bfloat16
    assert {tf.as_dtype(weight.dtype) for weight in encoder.weights} == {tf.float32}
    known = items.numpy() > 0
    np.testing.assert_allclose(tf.cast(query, tf.float32).numpy()[known], want[known], rtol=0.1, atol=0.1)


@EVERY_ENCODER
@pytest.mark.parametrize("argument", ["num_classes", "max_length", "dim", "num_blocks"])
def test_sizes_must_be_positive_integers(encode, argument):
    sizes = {"num_classes": 9, "max_length": 4, "dim": 8, "num_blocks": 1, argument: 0}
    with pytest.raises(ValueError, match=f"{argument} must be an integer of at least 1, but got 0"):
        encode(**sizes)


@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras tells a model's layers by other names")
def test_own_layers_are_registered_under_the_package():
    own = {type(layer) for layer in esasrec(9, 4).layers if type(layer).__module__.startswith("tfxc")}
    names = {keras.saving.get_registered_name(kind) for kind in own}
    assert names == {"tfxc>CausalAttention", "tfxc>ItemEmbedding", "tfxc>Positions", "tfxc>RMSNorm"}


def norm(x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def test_a_block_adds_gated_attention_and_a_gated_swiglu():
    dim = 6
    encoder = esasrec(num_classes=20, max_length=4, dim=dim, num_blocks=1, num_heads=2, dropout=0.0)
    items = tf.constant([[3, 1, 4, 1], [5, 9, 2, 6]])
    table, positions = encoder.get_layer("item_embedding"), encoder.get_layer("positions")
    (attention,) = (layer for layer in encoder.layers if isinstance(layer, CausalAttention))
    hidden = positions(table(items)).numpy()
    dense = [layer for layer in encoder.layers if isinstance(layer, keras.layers.Dense)]
    gates, wide = ([layer for layer in dense if layer.use_bias == biased] for biased in (True, False))
    hidden = hidden + gates[0](hidden).numpy() * attention(tf.constant(norm(hidden))).numpy()
    inner = norm(hidden)
    first, second, last = (layer.get_weights()[0] for layer in wide)
    assert first.shape == second.shape == (dim, 4 * dim)
    gate = inner @ first
    branch = (gate / (1 + np.exp(-gate)) * (inner @ second)) @ last
    hidden = hidden + gates[1](hidden).numpy() * branch
    np.testing.assert_allclose(encoder(items), norm(hidden), rtol=1e-4, atol=1e-5)
