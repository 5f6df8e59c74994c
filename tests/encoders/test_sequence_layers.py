import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc.encoders import esasrec, sasrec
from tfxc.encoders.sequence_layers import CausalAttention, ItemEmbedding, Positions, RMSNorm, item_vectors

ITEMS = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
MESSAGE = r"^Items must be class ids \+ 1, in \[1, 7\], and 0 for padding: .* pass ids \+ 1. They range from"


def test_the_table_has_a_row_for_padding_first():
    items, vectors = item_vectors(num_classes=7, max_length=3, dim=2, table_dtype="float32")
    model = keras.Model(items, vectors)
    table = model.get_layer("item_embedding").get_weights()[0]
    assert table.shape == (8, 2)
    np.testing.assert_array_equal(model(tf.constant([[0, 7, 1]]))[0], table[[0, 7, 1]])


def model_of_items():
    head = tfxc.layers.DenseHead(7, tied_to="item_embedding", row_offset=1)
    model = tfxc.ExtremeClassifier(sasrec(7, max_length=3, dim=4), head, k=2)
    model.compile(tfxc.optimizers.LazyAdam(0.1), loss=tfxc.losses.SoftmaxCrossentropy())
    return model


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_ids_padded_with_minus_1_do_not_train(reloaded):
    model, labels = model_of_items(), np.array([[1, 2, 3], [4, 5, 6]])
    model.fit(ITEMS, labels, verbose=0)
    loaded = reloaded(model)
    for own in (model, loaded):
        message = f"{MESSAGE} -1 to 4. It was batch 1 of epoch 1"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            own.fit(ITEMS - 1, labels, verbose=0)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{MESSAGE} 3 to 8"):
            own.predict(ITEMS + 3, verbose=0)
        assert own.predict(ITEMS, verbose=0)["ids"].shape == (2, 2)


@pytest.mark.long
@pytest.mark.traced
def test_an_exported_model_checks_them_too_and_passes_unknown_names_over(served_by):
    model = model_of_items()
    served = served_by(model)
    assert served.serve(tf.constant(ITEMS))["ids"].shape == (2, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="pass ids"):
        served.serve(tf.constant(ITEMS - 1))
    names = [f"item {i}" for i in range(7)]
    named = tfxc.ExtremeClassifier(model.encoder, model.head, k=2, class_names=names)
    served = served_by(named, strings=True)
    known, unknown = tf.constant([["", "item 1", "item 3"]]), tf.constant([["item 1", "beer", "item 3"]])
    np.testing.assert_array_equal(served.serve(known)["ids"], served.serve(unknown)["ids"])


def test_a_batch_of_nothing_has_no_bad_id():
    assert ItemEmbedding(3, 2)(tf.zeros([0, 4], tf.int32)).shape == (0, 4, 2)


def slow_attention(inputs, project, combine, num_heads):
    """[T, D] to [T, D], query by query and head by head."""
    length, dim = inputs.shape
    query, key, value = np.split(inputs @ project, 3, axis=1)
    out = np.zeros_like(inputs)
    for position in range(length):
        for part in np.split(np.arange(dim), num_heads):
            seen = np.arange(position + 1)[:, np.newaxis]
            scores = key[seen, part] @ query[position, part] / np.sqrt(len(part))
            weights = np.exp(scores - scores.max())
            out[position, part] = weights @ value[seen, part] / weights.sum()
    return out @ combine


@pytest.mark.parametrize(("length", "dim", "num_heads"), [(1, 1, 1), (5, 6, 1), (7, 6, 3)])
def test_equals_a_slow_attention(length, dim, num_heads):
    inputs = np.random.default_rng(0).normal(size=(2, length, dim))
    num_padded = [0, length // 2]
    mask = np.arange(length) >= np.array(num_padded)[:, np.newaxis]
    layer = CausalAttention(num_heads)
    got = layer(tf.constant(inputs, tf.float32), mask=tf.constant(mask)).numpy()
    project, combine = layer.get_weights()
    for row, start in enumerate(num_padded):
        want = slow_attention(inputs[row, start:], project, combine, num_heads)
        np.testing.assert_allclose(got[row, start:], want, atol=1e-5)


def test_without_a_mask_every_position_counts():
    layer, inputs = CausalAttention(2), tf.random.normal([2, 4, 6], seed=0)
    np.testing.assert_allclose(layer(inputs), layer(inputs, mask=tf.ones([2, 4], tf.bool)), atol=1e-6)


@pytest.mark.both_keras
def test_a_position_that_may_look_nowhere_is_finite_in_half_precision():
    layer = CausalAttention(1, dtype="float16")
    out = layer(tf.ones([1, 3, 2], tf.float16), mask=tf.constant([[False, False, True]]))
    assert out.dtype == tf.float16 and np.isfinite(out).all()


@pytest.mark.both_keras
def test_config():
    layer = CausalAttention(3, name="own")
    assert CausalAttention.from_config(layer.get_config()).get_config() == layer.get_config()
    with pytest.raises(ValueError, match="num_heads must be an integer of at least 1, but got 0"):
        CausalAttention(0)
    with pytest.raises(ValueError, match="4 heads do not divide 6: use dim=8"):
        esasrec(9, 4, dim=6, num_heads=4)


def test_adds_a_vector_for_each_position_to_the_scaled_items():
    layer, inputs = Positions(), tf.random.normal([2, 3, 4], seed=1)
    out = layer(inputs).numpy()
    (vectors,) = layer.get_weights()
    assert vectors.shape == (3, 4)
    np.testing.assert_allclose(out, 2 * inputs.numpy() + vectors, rtol=1e-5)


@pytest.mark.traced
def test_sequences_of_another_length_are_refused():
    message = "made for sequences of max_length=3 items, but these have 4 items: pad them"
    layer = Positions()
    layer(tf.zeros([2, 3, 4]))
    for call in (layer, tf.function(layer)):
        with pytest.raises(ValueError, match=message):
            call(tf.zeros([2, 4, 4]))


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("make", long_after(1, esasrec, sasrec))
def test_a_model_says_which_length_it_was_made_for(make):
    encoder = make(10, max_length=3, dim=4)
    encode = tf.function(encoder, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    assert encode(tf.ones([2, 3], tf.int32)).shape == (2, 3, 4)
    for _ in range(50):  # ops of a graph run in any order: none may fail before the check
        with pytest.raises(tf.errors.InvalidArgumentError, match="these have"):
            encode(tf.ones([2, 4], tf.int32))


def test_divides_by_the_root_mean_square():
    inputs = np.random.default_rng(0).normal(size=(2, 3, 5)) * 7
    layer = RMSNorm()
    layer.build((None, 3, 5))
    scale = np.arange(1.0, 6.0)
    layer.set_weights([scale])
    want = inputs / np.sqrt(np.mean(inputs**2, axis=-1, keepdims=True)) * scale
    np.testing.assert_allclose(layer(tf.constant(inputs, tf.float32)), want, rtol=1e-4)
    assert np.all(layer(tf.zeros([1, 3, 5])) == 0)


def test_squares_of_halves_do_not_overflow():
    out = RMSNorm(dtype="float16")(tf.fill([1, 1, 4], tf.constant(1000.0, tf.float16)))
    assert out.dtype == tf.float16
    np.testing.assert_allclose(out, 1, rtol=1e-3)
