"""AutoGraph rewrites what users write, as ever, and nothing that it calls here."""

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl.conversion import is_allowlisted

import tfxc


@tf.function
def total(head, loss, sampler, queries, labels):
    result = 0.0
    for i in tf.range(len(labels)):
        if labels[i] >= 0:
            one = slice(i, i + 1)
            result += tfxc.head_loss(head, loss, queries[one], labels[one], sampler=sampler)
    return result


@pytest.mark.parametrize("sampler", [None, tfxc.samplers.Softmax(3, seed=1), tfxc.samplers.MIDX(3, seed=1)])
def test_a_step_inside_control_flow_over_tensors(sampler, caplog):
    head, loss = tfxc.layers.DenseHead(40), tfxc.losses.SoftmaxCrossentropy()
    head.build((None, 4))
    if sampler is not None:
        sampler.build((40, 4))
    queries, labels = tf.random.normal([3, 4]), tf.constant([1, -1, 2])
    with caplog.at_level("WARNING", "tensorflow"):
        found = total(head, loss, sampler, queries, labels)
    assert not caplog.records
    if sampler is None:
        exact = tfxc.head_loss(head, loss, queries, labels)  # the mean of the three
        assert float(found) == pytest.approx(3 * float(exact), rel=1e-5)
    assert float(found) > 0


def test_functions_here_are_left_alone_and_those_of_users_are_not():
    assert is_allowlisted(tfxc.head_loss)
    assert is_allowlisted(tfxc.samplers.MIDX.prepare)
    assert not is_allowlisted(total.python_function)
