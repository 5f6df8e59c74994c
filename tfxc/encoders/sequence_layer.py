"""The base of the layers of sequence encoders."""

from tfxc._keras import keras


class SequenceLayer(keras.layers.Layer):
    """A layer from [B, T, D] to [B, T, D] that passes the mask on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape):
        return input_shape
