"""Steps that TensorFlow traces come to what they come to outside of graphs, where most tests run them."""

import itertools

import numpy as np
import pytest
from classifier_checks import NUM_CLASSES, item_encoder, learnable, make_model, weights_of
from test_common import HEADS, LOSSES, OPTIMIZERS, SAME_STATE, SAMPLERS

from tfxc._keras import keras

pytestmark = [pytest.mark.traced, pytest.mark.optimized]
pytestmark += [pytest.mark.filterwarnings("ignore:HardNegatives has no table")]
SAMPLED = [name for name in HEADS if not name.startswith("MACH")]
DRAWING = [name for name in SAMPLERS if name not in SAME_STATE]
OF_ALL = [name for name in LOSSES if not LOSSES[name]().needs_sampler]
OF_ALL_CLASSES = [("MACHHead", None, "SoftmaxCrossentropy")]
OF_ALL_CLASSES += [("MACHHead, all options", None, "BinaryCrossentropy")]
OF_ALL_CLASSES += [("DenseHead, all options", None, loss) for loss in OF_ALL]
BY_DRAWS = [name for name in LOSSES if "filtered" not in name]
ROWS = [*zip(itertools.cycle(SAMPLED), DRAWING, itertools.cycle(BY_DRAWS), strict=False), *OF_ALL_CLASSES]
RULES = [name for name in OPTIMIZERS if name != "MultiOptimizer"]


def results(eager, head, sampler, loss, optimizer):
    keras.utils.set_random_seed(7)
    encoder, (x, y) = None, learnable(16)
    if head == "DenseHead, tied":
        encoder = item_encoder(masked=False)
        x = np.random.default_rng(0).integers(1, NUM_CLASSES + 1, size=(16, 3))
        y = x % NUM_CLASSES
    elif sampler is not None:
        x = {"features": x, "example_ids": np.arange(16)}
    parts = sampler and SAMPLERS[sampler](), LOSSES[loss](), HEADS[head](), encoder
    model = make_model(*parts, optimizer=OPTIMIZERS[optimizer](), run_eagerly=eager)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    numbers = model.evaluate(x, y, batch_size=8, return_dict=True, verbose=0)
    return weights_of(model), numbers, model.predict(x, verbose=0)["ids"]


@pytest.mark.parametrize(
    ("head", "sampler", "loss", "optimizer"),
    [  # every eighth has each rule, and a step with draws and without
        pytest.param(*row, rule, marks=() if i % 8 == 2 else pytest.mark.long)
        for i, (row, rule) in enumerate(zip(ROWS, itertools.cycle(RULES), strict=False))
    ],
)
def test_they_come_to_the_same(head, sampler, loss, optimizer):
    (eager, logs, ids), (traced, traced_logs, traced_ids) = (
        results(way, head, sampler, loss, optimizer) for way in (True, False)
    )
    for one, other in zip(eager, traced, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert traced_logs == pytest.approx(logs, rel=1e-4)
    assert np.mean(ids == traced_ids) > 0.9  # scores may be equal up to rounding
