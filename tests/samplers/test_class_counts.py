"""Counts that are kept in weights, not in the config."""

import pytest
import tensorflow as tf

from tfxc.samplers import MIDX, InBatch, Step, Unigram
from tfxc.samplers.class_counts import gather_counts


def test_padding_reads_class_0():
    assert gather_counts(tf.Variable([5.0, 6.0]), tf.constant([[1, -1]]), "it").numpy().tolist() == [
        [6.0, 5.0]
    ]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Unigram(2, counts="saved"),
        lambda: InBatch(2, counts="saved"),
        lambda: MIDX(2, num_codewords=2, cells="frequency", counts="saved"),
    ],
)
def test_saved_counts_that_were_never_loaded_fail(make, traced):
    sampler = make()
    sampler.build((6, 4))
    ask = tf.function(sampler.sample) if traced else sampler.sample
    with pytest.raises(tf.errors.InvalidArgumentError, match="load the weights it was saved with"):
        ask(Step(tf.zeros([2, 4]), tf.constant([[1], [0]])))


def test_nor_can_an_index_be_built_from_them():
    sampler = MIDX(2, num_codewords=2, cells="frequency", counts="saved")
    sampler.build((6, 4))
    with pytest.raises(tf.errors.InvalidArgumentError, match="load the weights it was saved with"):
        sampler.refresh(None)
