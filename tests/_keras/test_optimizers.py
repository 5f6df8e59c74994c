"""What tfxc asks of Keras's optimizers beyond their public interface, under either of the two."""

from tfxc._keras import keras
from tfxc._keras.optimizers import learning_rate_variable


def test_the_variable_of_a_learning_rate():
    optimizer = keras.optimizers.SGD(0.5)
    learning_rate_variable(optimizer).assign(0.25)
    assert float(optimizer.learning_rate) == 0.25
    follows = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))
    assert learning_rate_variable(follows) is None
