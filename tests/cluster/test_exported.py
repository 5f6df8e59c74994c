"""Models without values; that they export well is in tests/cluster/test_servers.py."""

import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, item_encoder, make_model

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import variables_of
from tfxc.cluster.exported import declared

pytestmark = pytest.mark.both_keras


@pytest.mark.skipif(IS_KERAS_3, reason="has no parameter servers, for which it is")
def test_weights_have_shapes_and_no_values():
    names = [f"item {i}" for i in range(NUM_CLASSES)]
    head = tfxc.layers.DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, use_bias=True)
    model = tfxc.ExtremeClassifier(item_encoder(), head, tfxc.samplers.Uniform(4), k=3, class_names=names)
    alone, pairs = declared(model)
    assert alone.k == 3 and list(alone.class_names) == names and alone.sampler is None
    assert alone.head.get_config() == model.head.get_config()
    assert len(pairs) == len(variables_of(model.encoder)) + 1  # the bias; the table is the encoder's
    for variable, table in pairs:
        assert not variable.is_initialized() and tuple(variable.shape) == table.shape
    assert alone.head.table_variable is pairs[0][0]


def test_an_encoder_that_is_not_made_of_layers_is_named():
    class Own(keras.Model):
        def call(self, inputs):
            return tf.identity(inputs)

    with pytest.raises(ValueError, match=r"is a Own.*Wrap it"):
        declared(make_model(encoder=Own()))
