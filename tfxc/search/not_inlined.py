"""Keeps a branch that is seldom taken out of the graph that calls it."""

import tensorflow as tf


def not_inlined(branch):
    """A branch of ``tf.cond`` as a function that TensorFlow does not inline into the graph that calls it.

    An executor visits the ops of both branches, also of the one that is not taken. Where that branch is most
    of the graph, a query of a millisecond takes a fifth longer.
    """
    return tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})
