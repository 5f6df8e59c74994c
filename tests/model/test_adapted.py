"""What layers have adapted to goes from one to another."""

import numpy as np
import pytest

from tfxc._keras import keras
from tfxc.model.adapted import copy_adapted


@pytest.mark.parametrize(
    ("kind", "data", "asked"),
    [
        ("StringLookup", ["tea", "milk", "tea"], ["milk", "rum"]),
        ("IntegerLookup", [7, 9, 7], [9, 8]),
        ("Discretization", [[0.0], [1.0], [5.0], [9.0]], [[0.5], [8.0]]),
    ],
)
def test_it_answers_as_the_other(kind, data, asked):
    options = {"num_bins": 3} if kind == "Discretization" else {}
    source, layer = (getattr(keras.layers, kind)(**options) for _ in range(2))
    source.adapt(np.array(data))
    copy_adapted(source, layer)
    np.testing.assert_array_equal(layer(np.array(asked)), source(np.array(asked)))


def test_other_layers_have_nothing_to_copy():
    copy_adapted(keras.layers.Dense(2), keras.layers.Dense(2))
