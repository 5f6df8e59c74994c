import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import keras
from tfxc.encoders import sasrec
from tfxc.encoders.items import ItemEmbedding, item_vectors

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
