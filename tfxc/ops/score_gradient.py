"""A table's gradient in factors, query and score gradients, before it becomes rows."""

from typing import NamedTuple

import tensorflow as tf

# For each op that makes a table's gradient from scores: the scores' gradients, the slots, and its rows.
_GRADIENTS_OF_SCORES = {
    "Tfxc>CandidateScoresGrad": lambda op: (op.inputs[3], op.outputs[3], *op.outputs[1:3]),
    "Tfxc>CandidateLogSumExpGrad": lambda op: (op.outputs[1], op.inputs[6], *op.outputs[3:5]),
}


class ScoreGradient(NamedTuple):
    """The factors of a table's gradient: that of row r is the sum of ``score_gradients[n, s] * query[n]``."""

    query: tf.Tensor  # [N, D]
    score_gradients: tf.Tensor  # [N, S], the gradient of each score
    slots: tf.Tensor  # uint64, r << 32 | n * S + s of each slot (n, s) that scores row r, ascending


def score_gradient_behind(gradient):
    """The ``ScoreGradient`` of ``tf.IndexedSlices`` that come straight from scores, in a graph; else None.

    An optimizer that takes the factors instead of the rows saves a write and a read of a row for each touched
    class: the graph then does not make the rows. It is None in eager mode, for normalised scores, and where
    the gradient was changed or summed with another one.
    """
    op = getattr(gradient.values, "op", None)  # eager tensors have none
    if op is None or op.type not in _GRADIENTS_OF_SCORES or op.get_attr("normalize"):
        return None
    score_gradients, slots, row_gradients, rows = _GRADIENTS_OF_SCORES[op.type](op)
    if gradient.values is not row_gradients or gradient.indices is not rows:
        return None
    return ScoreGradient(op.inputs[1], score_gradients, slots)
