"""Steps that TensorFlow traces come to what they come to outside of graphs, where most tests run them."""

import itertools

import numpy as np
import pytest
from classifier_checks import item_encoder, make_model, weights_of
from test_common import HEADS, LOSSES, OPTIMIZERS, SAME_STATE, SAMPLERS, data

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
    is_tied = head == "DenseHead, tied"
    encoder, batches = item_encoder(masked=False) if is_tied else None, data(is_tied, sampler is not None)
    parts = sampler and SAMPLERS[sampler](), LOSSES[loss](), HEADS[head](), encoder
    model = make_model(*parts, optimizer=OPTIMIZERS[optimizer](), run_eagerly=eager)
    model.fit(batches, verbose=0)
    numbers = model.evaluate(batches, return_dict=True, verbose=0)
    return weights_of(model), numbers, model.predict(batches, verbose=0)["ids"]


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
