import numpy as np
import pytest

import tfxc
from tfxc._keras import keras


def test_of_an_untrained_model_it_is_the_number_of_classes():
    encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    head = tfxc.layers.DenseHead(60, embeddings_initializer="zeros")
    model = tfxc.ExtremeClassifier(encoder, head, tfxc.samplers.Uniform(5), k=5)
    model.compile("sgd", tfxc.losses.SoftmaxCrossentropy())
    loss = model.evaluate(np.ones([3, 4], "float32"), np.arange(3), verbose=0)
    assert tfxc.metrics.perplexity(loss) == pytest.approx(60, rel=1e-5)


def test_numbers_and_arrays():
    assert tfxc.metrics.perplexity(np.float32(0.0)) == 1.0
    assert tfxc.metrics.perplexity([0.0, 1.0]).tolist() == [1.0, pytest.approx(np.e)]
    with pytest.raises(ValueError, match="at least 0"):
        tfxc.metrics.perplexity([1.0, -0.1])


def test_a_loss_just_below_0_is_rounding():
    assert tfxc.metrics.perplexity(-1.5e-6) == 1.0
    assert tfxc.metrics.perplexity([-1e-4, 1.0]).tolist() == [1.0, pytest.approx(np.e)]
    assert np.isnan(tfxc.metrics.perplexity(np.nan))
    with pytest.raises(ValueError, match="at least 0"):
        tfxc.metrics.perplexity(-2e-3)
