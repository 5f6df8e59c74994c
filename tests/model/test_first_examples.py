"""The first examples of data of every form."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import tfxc
from tfxc._keras import keras
from tfxc.data import row_batches
from tfxc.model.first_examples import first_examples

ROWS = np.arange(6.0, dtype=np.float32).reshape(3, 2)


class Batches(keras.utils.Sequence):
    """Two batches of inputs and labels."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"x": ROWS[index:]}, np.zeros(3 - index)


@pytest.mark.parametrize(
    "rows", [ROWS, tf.constant(ROWS), scipy.sparse.csr_matrix(ROWS), scipy.sparse.coo_matrix(ROWS)]
)
def test_of_rows_it_is_the_first(rows):
    found = first_examples([{"x": rows}, None])
    dense = tf.sparse.to_dense(found[0]["x"]) if scipy.sparse.issparse(rows) else found[0]["x"]
    assert dense.numpy().tolist() == [[0.0, 1.0]] and found[1] is None


def test_sparse_and_ragged_tensors_keep_their_kind():
    sparse, ragged = tf.sparse.from_dense(ROWS), tf.ragged.constant([[1, 2], [3]])
    found = first_examples({"sparse": sparse, "ragged": ragged})
    assert tf.sparse.to_dense(found["sparse"]).numpy().tolist() == [[0.0, 1.0]]
    assert found["ragged"].to_list() == [[1, 2]]


def test_of_batches_it_is_the_first():
    data = tf.data.Dataset.from_tensor_slices(({"x": ROWS}, [0, 1, 2])).batch(2)
    assert first_examples(data)["x"].numpy().tolist() == ROWS[:2].tolist()
    assert first_examples(Batches())["x"].tolist() == ROWS.tolist()


def test_the_order_of_shuffled_data_is_not_spent():
    rows = row_batches(100, 10, lambda rows: rows, seed=0)
    rows.epoch_order.next = 3
    for data in (rows, tf.data.Dataset.zip(rows.map(lambda rows: rows + 1), rows).prefetch(1), rows.repeat()):
        first_examples(data)
        assert rows.epoch_order.next == 3


@pytest.mark.both_keras
def test_a_subclassed_encoder_trains_on_the_orders_of_others():
    class Encoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, x):
            return self.dense(x)

    for encoder in (Encoder(), keras.Sequential([keras.Input([2]), keras.layers.Dense(4)])):
        data = row_batches(6, 2, lambda rows: (tf.gather(np.tile(ROWS, [2, 1]), rows), rows), seed=0)
        model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(6))
        model.compile("sgd", loss=tfxc.losses.SoftmaxCrossentropy())
        model.fit(data, epochs=2, verbose=0)
        assert data.epoch_order.next == 2


def test_a_generator_is_not_read():
    batches = iter([(ROWS, [0, 1, 2])])
    assert first_examples(batches) is None
    assert len(list(batches)) == 1


def test_a_data_set_without_a_batch_is_told_and_counts_no_epoch():
    data = row_batches(3, 2, lambda rows: rows, seed=0)
    empty = data.filter(lambda rows: tf.size(rows) > 2)
    with pytest.raises(ValueError, match="has no batch.*drop_remainder"):
        first_examples(empty)
    assert data.epoch_order.next == 0
