import numpy as np
import pytest
from classifier_checks import features, make_model

import tfxc


def test_of_an_untrained_model_it_is_the_number_of_classes():
    head = tfxc.layers.DenseHead(60, embeddings_initializer="zeros")
    loss = make_model(tfxc.samplers.Uniform(5), head=head).evaluate(features(3), np.arange(3), verbose=0)
    assert tfxc.metrics.perplexity(loss) == pytest.approx(60, rel=1e-5)


def test_numbers_and_arrays_of_which_those_just_below_0_are_rounded():
    for zero in (np.float32(0.0), -1.5e-6):
        assert tfxc.metrics.perplexity(zero) == 1.0
    assert tfxc.metrics.perplexity([-1e-4, 1.0]).tolist() == [1.0, pytest.approx(np.e)]
    assert np.isnan(tfxc.metrics.perplexity(np.nan))
    for bad in ([1.0, -0.1], -2e-3):
        with pytest.raises(ValueError, match="at least 0"):
            tfxc.metrics.perplexity(bad)
