import pytest
import tensorflow as tf

from tfxc.layers import DenseHead
from tfxc.losses import SOFTPLUS, SoftmaxCrossentropy
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp
from tfxc.ops.candidate_scores import candidate_scores
from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits, sparse_head_reduce

TABLE, SPARSE, NO_BIAS = (
    tf.Variable(tf.ones([3, 2])),
    (tf.Variable([[2.0]]), tf.Variable([[1]])),
    tf.zeros([0]),
)


def over_all_classes(query, filter_below=None):
    head = DenseHead(3)
    head.build((None, 2))
    return head.reduce(query, tf.constant([[0]]), SoftmaxCrossentropy(filter_below=filter_below))[0]


OPS = {
    "CandidateScores": lambda query: candidate_scores(TABLE, query, [[1]], normalize=True) ** 2,
    "CandidateLogSumExp": lambda query: candidate_log_sum_exp(TABLE, query, [[0]], [[1]], [[0.0]]),
    "SparseHeadLogits": lambda query: sparse_head_logits(query, *SPARSE, NO_BIAS, 0, 1),
    "SparseHeadReduce": lambda query: sparse_head_reduce(query, *SPARSE, NO_BIAS, [[0]], SOFTPLUS)[0],
    "SparseHeadCandidates": lambda query: sparse_head_candidates(query, *SPARSE, [[0]]),
    "DenseScan": over_all_classes,
    "DenseScanFiltered": lambda query: over_all_classes(query, filter_below=0.5),
}


@pytest.mark.kernels
@pytest.mark.parametrize("op", OPS)
def test_a_second_derivative_is_refused(op):
    query = tf.Variable([[1.0, 2.0]])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            found = OPS[op](query)
        gradient = inner.gradient(found, query)
    with pytest.raises(NotImplementedError, match=f"{op}Grad has no derivative: .*TFXC_DISABLE_OPS"):
        outer.gradient(gradient, query)
