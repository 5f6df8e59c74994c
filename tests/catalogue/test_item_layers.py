import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc.catalogue.class_map import ClassMap
from tfxc.catalogue.item_layers import item_layers
from tfxc.layers import EmbeddingBag

NAMES, OTHER = ["3", "5", "8"], ["8", "9", "3", "1"]
CLASSES = ClassMap(NAMES, OTHER)


def found(layers, dtype="int32", width=2):
    inputs = keras.Input((width,), dtype=dtype)
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    encoder = keras.Model(inputs, outputs)
    return {item.layer.name: item for item in item_layers(encoder, [], NAMES, CLASSES)}


@pytest.mark.filterwarnings("ignore:The embeddings .* count as tables of items")
def test_embeddings_are_told_by_their_rows():
    for rows, offset in ((3, 0), (4, 1), (7, None)):
        items = found([keras.layers.Embedding(rows, 2, name="own")])
        assert bool(items) == (offset is not None)
        if items:
            assert items["own"].config["input_dim"] == rows + 1
            assert items["own"].class_rows[0].row_offset == offset
    bag = found([EmbeddingBag(4, 2, name="bag")])["bag"]
    assert bag.config["num_features"] == 5 and bag.class_rows[0].row_offset == 1


def test_a_table_that_only_its_rows_tell_is_named():
    for rows in (3, 4):
        with pytest.warns(
            UserWarning, match=r"embeddings \['users'\] have as many rows as there are classes"
        ):
            found([keras.layers.Embedding(rows, 2, name="users")])
    with warnings.catch_warnings(action="error"):
        lookup = keras.layers.StringLookup(vocabulary=NAMES)
        found([lookup, keras.layers.Embedding(4, 2, name="own")], "string")
        encoder = tfxc.encoders.gru4rec(3, max_length=2, dim=2)  # says of itself that they are items
        assert len(item_layers(encoder, [], NAMES, CLASSES)) == 1


@pytest.mark.both_keras
def test_a_lookup_of_the_names_gets_the_new_ones_and_tells_the_rows_before_them():
    lookup = keras.layers.IntegerLookup(vocabulary=[3, 5, 8], mask_token=0, name="ids")
    items = found([lookup, keras.layers.Embedding(5, 2, name="own")], "int64")
    assert items["own"].class_rows[0].row_offset == 2
    again = keras.layers.IntegerLookup.from_config(items["ids"].config)
    assert again([8, 9, 3, 1, 7]).numpy().tolist() == [2, 3, 4, 5, 1]
    with pytest.raises(ValueError, match="lookup 'ids' .* integers, but the new name '1.5' is not one"):
        encoder = keras.Sequential([keras.Input((2,), dtype="int64"), lookup])
        item_layers(encoder, [], NAMES, ClassMap(NAMES, ["8", "-4", "1.5"]))
    other = keras.layers.IntegerLookup(vocabulary=[3, 5, 9], name="ids")
    assert found([other], "int64") == {}


@pytest.mark.both_keras
@pytest.mark.parametrize("between", [[], [keras.layers.Reshape((1, 2))]])
def test_a_table_that_reads_a_lookup_of_the_names_is_one_of_items_whatever_its_rows(between):
    lookup = keras.layers.StringLookup(vocabulary=NAMES)
    item = found([lookup, *between, keras.layers.Embedding(9, 2, name="own")], "string")["own"]
    assert item.class_rows[0].row_offset == 1 and item.config["input_dim"] == 10
    tower = keras.Sequential([keras.layers.Embedding(9, 2, name="own"), keras.layers.Flatten()])
    assert found([lookup, tower], "string")["own"].class_rows[0].row_offset == 1


def test_what_reads_a_lookup_of_the_names_but_would_stay_is_refused():
    lookup = keras.layers.StringLookup(vocabulary=NAMES, name="names")
    one_hot, own = keras.ops.one_hot if IS_KERAS_3 else tf.one_hot, keras.layers.Embedding(9, 2, name="own")
    for readers, message in (
        (
            [keras.layers.CategoryEncoding(7, name="own")],
            "'own' makes a column of each class name.*Embedding",
        ),
        ([keras.layers.CategoryEncoding(4, name="own")], "'own' makes a column of each class name"),
        ([lambda ids: one_hot(ids, 7)], "one_hot.* makes a column of each class name"),
        ([lambda ids: ids + 1, own], "'own' has 9 rows and reads the ids of 'names', but not as they are"),
        ([OwnTable(name="own")], r"'own' reads the ids of 'names'.*class_rows\(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            found([lookup, *readers], "string")
    with warnings.catch_warnings(action="error"):
        masks = [lambda ids: ids[:, :1], keras.layers.Embedding(4, 2, name="own"), keras.layers.Dense(4)]
        assert found([lookup, *masks], "string")["own"].class_rows[0].row_offset == 1


def test_what_is_told_from_the_ids_of_names_is_no_table_of_items():
    names = keras.Input((2,), dtype="string")
    ids = keras.layers.StringLookup(vocabulary=NAMES)(names)
    known = keras.layers.Lambda(lambda ids: tf.cast(ids > 0, tf.int32), output_shape=(2,))(ids)
    parts = [keras.layers.Embedding(9, 2, name="own")(ids), keras.layers.Embedding(2, 2)(known)]
    parts.append(keras.layers.CategoryEncoding(2)(known))
    encoder = keras.Model(names, parts)
    with warnings.catch_warnings(action="error"):
        items = item_layers(encoder, [], NAMES, CLASSES)
    assert [item.layer.name for item in items][1:] == ["own"]


def test_names_as_columns_are_refused_unless_a_bag_reads_them():
    for mode in ("multi_hot", "count"):
        lookup = keras.layers.StringLookup(vocabulary=NAMES, output_mode=mode, name="names")
        with pytest.raises(ValueError, match=f"lookup 'names' .* output_mode='{mode}'.*output_mode=\"int\""):
            found([lookup, keras.layers.Dense(2)], "string")
    weights = {"output_mode": "tf_idf", "idf_weights": [1.0, 2.0, 3.0], "sparse": True}
    for mode, is_right in (({"output_mode": "multi_hot", "sparse": True}, True), (weights, False)):
        layers = [keras.layers.StringLookup(vocabulary=NAMES, **mode), EmbeddingBag(4, 2, name="bag")]
        if is_right:
            assert found(layers, "string")["bag"].class_rows[0].row_offset == 1
        else:
            with pytest.raises(ValueError, match="output_mode='tf_idf'"):
                found(layers, "string")


def test_ids_as_columns_that_may_be_of_classes_are_told():
    with pytest.warns(UserWarning, match=r"CategoryEncoding layers \['own'\] have as many columns"):
        assert not found([keras.layers.CategoryEncoding(3, name="own"), keras.layers.Dense(2)])
    with warnings.catch_warnings(action="error"):
        assert not found([keras.layers.CategoryEncoding(7), keras.layers.Dense(2)])


def test_weights_of_the_columns_of_an_input_as_wide_as_the_classes_are_named():
    def found_of(width, layers):
        encoder = keras.Sequential([keras.Input((width,)), *layers])
        return item_layers(encoder, [], NAMES, CLASSES)

    for width in (3, 4):
        layers = [keras.layers.Dropout(0.1, name="one_hot_some"), keras.layers.Dense(2, name="own")]
        with pytest.warns(UserWarning, match=r"layers \['own'\] read an input .*EmbeddingBag"):
            assert not found_of(width, layers)
    with warnings.catch_warnings(action="error"):
        assert not found_of(7, [keras.layers.Dense(3), keras.layers.Dense(2)])
        for width, num_moved in ((3, 2), (None, 1)):  # the input, too
            sparse = keras.Input((width,), sparse=True)
            encoder = keras.Model(sparse, EmbeddingBag(3, 2)(sparse))
            with pytest.warns(UserWarning, match="count as tables of items"):
                assert len(item_layers(encoder, [], NAMES, CLASSES)) == num_moved


def test_the_words_of_a_text_stay_and_so_do_the_rows_behind_them():
    def text(**options):
        return keras.layers.TextVectorization(vocabulary=NAMES, **options)

    assert not found([text(output_sequence_length=2), keras.layers.Embedding(5, 2)], "string", 1)
    with pytest.raises(ValueError, match="'own' would be moved .* that of a TextVectorization"):
        found([text(output_mode="multi_hot", sparse=True), EmbeddingBag(4, 2, name="own")], "string", 1)


class OwnTable(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(9, 2), name="table")

    def call(self, inputs):
        return tf.gather(tf.convert_to_tensor(self.table), inputs)


class Own(keras.layers.Layer):
    def class_rows(self):
        return ["its rows"]

    def config_for(self, old_ids):
        return {"classes": old_ids.tolist()}

    def call(self, inputs):
        return inputs


def test_a_layer_may_answer_for_itself():
    item = found([Own(name="own")])["own"]
    assert item.class_rows == ["its rows"] and item.config == {"classes": [2, -1, 0, -1]}
    assert np.array_equal(CLASSES.old_ids, item.config["classes"])


def test_a_lookup_in_another_order_and_rows_that_nobody_explains_are_told():
    shuffled = keras.layers.StringLookup(vocabulary=["8", "3", "5"], name="names")
    with pytest.raises(ValueError, match="'own' would be moved .* 'names' knows the class names in another"):
        found([shuffled, keras.layers.Embedding(4, 2, name="own")], "string")
    assert not found([shuffled, keras.layers.Embedding(7, 2, name="own")], "string")  # not a row a class
    with pytest.warns(UserWarning, match=r"embeddings \['own'\] have two or three rows more"):
        assert not found([keras.layers.Embedding(5, 2, name="own")])
    other = keras.layers.StringLookup(vocabulary=["a", "b", "c", "d"])
    with warnings.catch_warnings(action="error"):
        assert not found([other, keras.layers.Embedding(5, 2, name="own")], "string")  # that of other words
