import numpy as np
import pytest
import tensorflow as tf

from tfxc.search import exact
from tfxc.search.exact import BlockTopK, grouped_top_k, not_inlined


def tied_logits(num_queries, width, num_values, seed=0):
    return np.random.default_rng(seed).integers(num_values, size=(num_queries, width)).astype(np.float32)


def ranked_in_blocks(k, exclude, size):
    """A function of logits [N, L] to the k best, which are found in blocks of so many classes."""

    def best(logits):
        ranking = BlockTopK(tf.constant(k), exclude)
        carry = ranking.initial(logits.shape[0])
        for start in range(0, logits.shape[1], size):
            carry = ranking.fold(carry, logits[:, start : start + size], start)
        return ranking.finish(carry)

    return best


def check_best(found, logits, k, ids_of_nothing=True):
    """Scores and ids are of the k best logits: NaN counts as -inf, which has its own id or -1."""
    scores, ids = tf.math.top_k(np.where(np.isnan(logits), -np.inf, logits), k)
    np.testing.assert_array_equal(found[0], scores)
    np.testing.assert_array_equal(found[1], ids if ids_of_nothing else np.where(np.isneginf(scores), -1, ids))


@pytest.mark.parametrize("width", [1, 3, 4, 17, 64, 67])
@pytest.mark.parametrize("num_values", [1, 3, 1000])
def test_grouped_equals_plain_at_ties_too(monkeypatch, width, num_values):
    monkeypatch.setattr(exact, "GROUP", 4)
    logits = tied_logits(6, width, num_values)
    logits[0] = -np.inf
    logits[1, ::2] = -np.inf
    for k in {1, min(2, width), min(5, width), width}:
        check_best(grouped_top_k(tf.constant(logits), tf.constant(k)), logits, k)


@pytest.mark.traced
@pytest.mark.parametrize(("column", "k"), [(0, 1), (6, 5), (66, 60)])  # 66 belongs to no group
def test_grouped_passes_nan_over(monkeypatch, column, k):
    monkeypatch.setattr(exact, "GROUP", 4)
    logits = tied_logits(6, 67, 1000)
    logits[2, column], logits[3, column] = np.nan, np.inf
    for ranking in grouped_top_k, tf.function(grouped_top_k):
        check_best(ranking(tf.constant(logits), tf.constant(k)), logits, k)


def test_grouped_at_its_own_group_size():
    logits = tied_logits(3, 8192 + 13, 40)
    check_best(grouped_top_k(tf.constant(logits), tf.constant(10)), logits, 10)


@pytest.mark.parametrize("block", [1, 2, 7, 40])
def test_folding_blocks_equals_the_whole_row(block):
    logits = tied_logits(4, 30, 6)
    assert BlockTopK(tf.constant(5)).initial(4)[1].numpy().tolist() == [[-1] * 5] * 4
    check_best(ranked_in_blocks(5, None, block)(tf.constant(logits)), logits, 5)


IN_GRAPH = [pytest.mark.traced, pytest.mark.long]


@pytest.mark.parametrize(
    ("k", "block", "rising", "in_graph"),
    [
        (5, 7, False, False),
        (5, 320, False, False),
        (100, 40, False, False),  # so many are collected, and ranked in the end
        (100, 40, True, False),
        pytest.param(5, 80, False, True, marks=IN_GRAPH),
        pytest.param(100, 40, True, True, marks=IN_GRAPH),
    ],
)
def test_nan_and_excluded_classes_are_passed_over(monkeypatch, k, block, rising, in_graph):
    monkeypatch.setattr(exact, "GROUP", 4)
    logits = tied_logits(5, 320, 1000 if k == 5 else 120)
    logits = np.sort(logits, axis=1) if rising else logits
    logits[:, 4] = logits[1, 90:319] = logits[2] = np.nan
    logits[3, 5] = np.inf
    best = ranked_in_blocks(k, tf.constant([[3, 200, -1]] * 5), block)
    found = (tf.function(best) if in_graph else best)(tf.constant(logits))
    logits[:, [3, 200]] = np.nan
    check_best(found, logits, k, ids_of_nothing=False)


def test_excluded_classes_by_hand():
    exclude = tf.constant([[1, -1, 1], [0, 3, 9], [-1, -1, -1]])
    scores, ids = ranked_in_blocks(3, exclude, 3)(tf.constant([[4.0, 3, 2, 1]] * 3))
    assert ids.numpy().tolist() == [[0, 2, 3], [1, 2, -1], [0, 1, 2]]
    assert scores.numpy().tolist() == [[4, 2, 1], [3, 2, -np.inf], [4, 3, 2]]


@pytest.mark.traced
@pytest.mark.parametrize("taken", [True, False])
def test_a_rare_branch_is_a_function_of_its_own(taken):
    start = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.bool)])
    def choose(taken):
        rare = not_inlined(lambda: start + 2)
        return tf.cond(taken, rare, lambda: start + 0)

    assert choose(tf.constant(taken)).numpy() == (3 if taken else 1)
    functions = choose.get_concrete_function().graph.as_graph_def().library.function
    assert sum(function.attr["_noinline"].b for function in functions) == 1
