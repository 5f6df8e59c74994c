import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf
from classifier_checks import dense_encoder, learnable
from encoded_checks import DIM, FEATURES, NUM_CLASSES, head_of, tower
from sampler_checks import built

import tfxc
from tfxc._keras import keras
from tfxc.layers import EncodedHead
from tfxc.losses import SoftmaxCrossentropy


@pytest.mark.parametrize("shape", [(NUM_CLASSES,), (NUM_CLASSES, 2)])
def test_texts_take_the_space_of_their_letters_in_a_file_and_stay_to_the_byte(shape, tmp_path):
    texts = np.full(shape, b"tea\0", object)
    texts.flat[:3] = [b"x" * 20_000, b"", "Käse".encode()]
    EncodedHead(keras.layers.Layer(), {"text": texts}).save_assets(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 25_000
    loaded = EncodedHead(keras.layers.Layer(), NUM_CLASSES)
    loaded.load_assets(tmp_path)
    np.testing.assert_array_equal(loaded.features["text"].numpy(), texts)


def test_features_of_data_frames_and_lists():
    of_arrays = {"a": np.float32([1, 2]), "b": np.array(["x", "y"])}
    for features in ({"a": [1.0, 2.0], "b": ["x", "y"]}, {"a": pd.Series([1.0, 2.0], [7, 3]), "b": [*"xy"]}):
        found = EncodedHead(tower(), features).features
        assert found["a"].numpy().tolist() == [1, 2] and found["b"].numpy().tolist() == [b"x", b"y"]
    assert EncodedHead(tower(), FEATURES.tolist()).features.shape == FEATURES.shape
    frame = pd.DataFrame(of_arrays)
    assert EncodedHead(tower(), frame[["a", "a"]]).features.shape == (2, 2)
    for bad in (frame, {"a": np.array([1, None])}, [[1, 2], [3]], scipy.sparse.eye(3, format="csr")):
        message = r"Features .* cannot be one array.* columns: \{name: .*to_numpy"  # in one line
        with pytest.raises(ValueError, match=message):
            EncodedHead(tower(), bad)


def test_a_class_whose_features_are_not_finite_is_named():
    values = np.where(np.arange(NUM_CLASSES) == 2, np.nan, 1.0)
    for bad in ({"a": FEATURES, "b": values}, {"a": FEATURES, "b": values.astype(np.float16)}):
        with pytest.raises(ValueError, match="Got features that are not finite, NaN or infinity in row 2"):
            EncodedHead(tower(), bad)
    half = np.full(NUM_CLASSES, 6e4, np.float16)  # the sum is infinite
    assert EncodedHead(tower(), {"a": half}).features["a"].dtype == tf.float16


def test_a_batched_dataset_of_features_is_refused():
    batched = tf.data.Dataset.from_tensor_slices(FEATURES).batch(4)  # the last has one
    with pytest.raises(ValueError, match="If it is batched, pass features.unbatch") as told:
        EncodedHead(tower(), batched)
    assert isinstance(told.value.__cause__, tf.errors.InvalidArgumentError)
    assert EncodedHead(tower(), batched.unbatch()).num_classes == NUM_CLASSES


def test_features_that_the_item_encoder_does_not_read_are_passed_over():
    b = keras.Input((3,), name="b")
    item_encoder = keras.Model({"b": b}, keras.layers.Dense(DIM)(b))
    both = {"b": FEATURES}, {"a": -FEATURES, "b": FEATURES}
    own, more = (EncodedHead(item_encoder, features).encode(tf.range(3)) for features in both)
    np.testing.assert_array_equal(more, own)


def test_features_in_a_tuple_stay_one_in_a_file(reloaded):
    inputs = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    item_encoder = keras.Model(inputs, keras.layers.Dense(DIM)(keras.layers.Concatenate()(inputs)))
    names = [f"item {i}" for i in range(NUM_CLASSES)]
    head = EncodedHead(item_encoder, (FEATURES, np.ones([NUM_CLASSES, 2], np.float32)))
    model = tfxc.ExtremeClassifier(dense_encoder(), head, k=3, class_names=names)
    loaded = reloaded(model)
    assert isinstance(loaded.head.features, tuple)
    new = np.ones([1, 3]), np.ones([1, 2])
    with pytest.raises(ValueError, match="new_rows returned features that are not finite"):
        tfxc.change_classes(loaded, [*names, "x"], new_rows=lambda names: (new[0] * np.nan, new[1]))
    changed = tfxc.change_classes(loaded, [*names, "x"], new_rows=lambda names: new)
    assert changed.head.features[0].shape == (NUM_CLASSES + 1, 3)


def test_features_of_half_precision_are_kept_with_the_model(reloaded):
    features = tf.cast(FEATURES, tf.bfloat16)
    model = tfxc.ExtremeClassifier(dense_encoder(DIM), head_of(features=features))
    loaded = reloaded(model)
    assert loaded.head.features.dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(loaded.head.features, tf.float32), tf.cast(features, tf.float32))


def test_features_are_set_all_at_once(recwarn):
    b, c = (keras.Input((3,), name=name) for name in "bc")
    item_encoder = keras.Model({"b": b, "c": c}, keras.layers.Dense(DIM)(keras.layers.Add()([b, c])))
    head = built(EncodedHead(item_encoder, {"b": FEATURES, "c": FEATURES}), None, DIM)
    before = head.class_vectors(0, NUM_CLASSES).numpy()
    head.features["b"] = -FEATURES  # of a copy
    np.testing.assert_array_equal(head.class_vectors(0, NUM_CLASSES), before)
    head.features = {**head.features, "b": -FEATURES}
    assert type(head.features) is dict
    found = head.class_vectors(0, NUM_CLASSES).numpy()
    np.testing.assert_allclose(found, np.zeros_like(found), atol=1e-6)  # of the sum, and the bias is 0
    assert not [warning for warning in recwarn if "structure of `inputs`" in str(warning.message)]


@pytest.mark.parametrize("own", [False, True])
def test_features_that_take_the_place_of_others_train(own):
    head, encoder = EncodedHead(tower(), FEATURES), dense_encoder()
    model = keras.Sequential([*encoder.layers, head]) if own else tfxc.ExtremeClassifier(encoder, head)
    model.compile(keras.optimizers.SGD(0.0), loss=SoftmaxCrossentropy())
    x, y = learnable(16)
    assert model.fit(x, y, verbose=0).history["loss"][0] != pytest.approx(np.log(NUM_CLASSES))
    head.features = np.ones_like(FEATURES)  # all classes are the same
    np.testing.assert_allclose(model.fit(x, y, verbose=0).history["loss"], np.log(NUM_CLASSES), rtol=1e-5)


@pytest.mark.traced
@pytest.mark.both_keras
def test_functions_that_were_traced_read_features_that_are_set_later():
    head = head_of()
    vectors = tf.function(lambda: head.encode(tf.range(NUM_CLASSES)))
    for features in (FEATURES, FEATURES[::-1] + 1, np.float64(FEATURES)):
        head.features = features
        np.testing.assert_allclose(vectors(), head.item_encoder(np.float32(features)), rtol=1e-5)
    assert vectors.experimental_get_tracing_count() == 1


@pytest.mark.traced
@pytest.mark.parametrize("bad", [FEATURES[:, :2], FEATURES.astype(int), {"a": FEATURES}])
def test_features_of_other_shapes_than_what_was_traced_reads_are_refused(bad):
    head = EncodedHead(tower(), FEATURES)
    with pytest.raises(ValueError, match=r"were traced read float\[25, 3\].*Make an EncodedHead of the new"):
        head.features = bad
    np.testing.assert_array_equal(head.features, FEATURES)


@pytest.mark.traced
@pytest.mark.both_keras
def test_features_are_no_weights_but_a_saved_model_has_them(tmp_path):
    head = built(EncodedHead(tower(), FEATURES), None, DIM)
    assert not any(weight.shape == FEATURES.shape for weight in head.weights)
    path = tf.train.Checkpoint(head=head).write(str(tmp_path / "checkpoint"))
    shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map().values()
    assert list(FEATURES.shape) not in shapes
    module = tf.Module()
    module.head, query = head, tf.ones([2, DIM])
    module.logits = tf.function(lambda query: head(query), [tf.TensorSpec([None, DIM])], autograph=False)
    tf.saved_model.save(module, tmp_path / "served")
    loaded = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(loaded.logits(query), head(query), rtol=1e-5)
