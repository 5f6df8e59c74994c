"""Where in the sequence an item stands."""

from tfxc._keras import register
from tfxc.encoders.sequence_layer import SequenceLayer


@register
class Positions(SequenceLayer):
    """Scales item vectors by √D and adds a learnt vector for each of the T positions.

    Example:
        >>> Positions()(tf.zeros([2, 5, 8])).shape
        TensorShape([2, 5, 8])
    """

    def build(self, input_shape):
        self.vectors = self.add_weight(name="vectors", shape=input_shape[1:], initializer="uniform")
        super().build(input_shape)

    def call(self, inputs):
        return inputs * inputs.shape[-1] ** 0.5 + self.vectors
