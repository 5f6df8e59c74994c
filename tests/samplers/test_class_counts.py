"""Counts that are kept in weights, not in the config."""

import pytest
import tensorflow as tf

from tfxc.samplers import MIDX, InBatch, Unigram
from tfxc.samplers.class_counts import gather_counts


def test_padding_reads_class_0():
    assert gather_counts(tf.Variable([5.0, 6.0]), tf.constant([[1, -1]]), "it").numpy().tolist() == [
        [6.0, 5.0]
    ]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Unigram(2, "saved"),
        lambda: InBatch(2, counts="saved"),
        lambda: MIDX(2, 2, cells="frequency", counts="saved"),
    ],
)
def test_saved_counts_that_were_never_loaded_fail(make, traced):
    sampler = make()
    sampler.build((6, 4))
    log_prob = tf.function(sampler.log_prob) if traced else sampler.log_prob
    with pytest.raises(tf.errors.InvalidArgumentError, match="load the weights it was saved with"):
        log_prob(tf.zeros([1, 4]), tf.constant([[1]]))


def test_nor_can_an_index_be_built_from_them():
    sampler = MIDX(2, 2, cells="frequency", counts="saved")
    sampler.build((6, 4))
    with pytest.raises(tf.errors.InvalidArgumentError, match="load the weights it was saved with"):
        sampler.refresh(None)
