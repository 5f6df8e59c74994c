"""The sparse head's compiled kernels where most gradients are 0, on both sides of every vector and tile."""

import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE
from sparse_head_checks import Problem, check_gradients, check_reduction

from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits

pytestmark = pytest.mark.kernels
EVERY_PLACE = pytest.mark.parametrize("place", ["queries", "inputs", "classes", "fan_in"])


def zero_but_one(random, shape):
    gradient = np.zeros(shape, np.float32)
    if gradient.size:
        gradient.flat[random.integers(gradient.size)] = random.normal()
    return gradient


def problem_of_size(place, size, num_queries, *options):
    sizes = {"queries": num_queries, "inputs": 9, "classes": 21, "fan_in": 4, place: size}
    sizes["inputs"] = max(sizes["inputs"], sizes["fan_in"]) if place != "inputs" else size
    sizes["fan_in"] = min(sizes["fan_in"], sizes["inputs"])
    return Problem(*sizes.values(), *options)


@EVERY_SIZE
@EVERY_PLACE
@pytest.mark.parametrize("group_size", [1, 5])
def test_one_gradient_at_every_size(place, size, group_size):
    problem, random = problem_of_size(place, size, 20, True, group_size), np.random.default_rng(size)
    gradient = zero_but_one(random, problem.logits.shape)

    def logits(query):
        given = query, *problem.given, 0, gradient.shape[1], group_size
        return tf.reduce_sum(sparse_head_logits(*given) * gradient)

    check_gradients(problem, logits, gradient)
    for reduction in ("squared_hinge", "softplus", "logsumexp"):
        upstream, for_labels = (
            zero_but_one(random, shape) for shape in (len(problem.query), problem.ids.shape)
        )
        check_reduction(problem, reduction, upstream, for_labels)


@EVERY_SIZE
@EVERY_PLACE
def test_candidates_with_one_gradient_at_every_size(place, size):
    problem = problem_of_size(place, size, 5, False)
    upstream = zero_but_one(np.random.default_rng(size), problem.ids.shape)

    def total(query):
        chosen = sparse_head_candidates(query, problem.weights, problem.indices, problem.ids)
        np.testing.assert_allclose(chosen, problem.chosen(), rtol=1e-4, atol=1e-5)
        return tf.reduce_sum(chosen * upstream)

    check_gradients(problem, total, problem.of_chosen(upstream))
