import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import built, clustered, head_of, queries

from tfxc.layers import MACHHead
from tfxc.search import Attributes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a dict of at least one, .* but got none"),
        (["a"], "but got list"),
        ({"a b": [1]}, "letters, digits and underscores, but one is 'a b'"),
        ({"a": [1, 2], "2b": [1]}, "'2b' has values of 1 classes, but 'a' of 2"),
        ({"A": [1], "a": [1]}, r"\['A', 'a'\] would be asked for alike"),
        ({"a_min": ["x"], "a": [1.0]}, "would be asked for alike"),
    ],
)
def test_what_does_not_go_together_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Attributes(given)


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ({"where_y": [["a"]]}, ValueError, "no input where_y: .* where_x, where_p_min, where_p_max, where_n"),
        ({"where_n_max": [[3]]}, ValueError, "no input where_n_max: .* need an attribute of floats"),
        ({"where_x": [[1]]}, ValueError, r"where_x must be string \[N, V\], .* but is int32 \(1, 1\)"),
        ({"where_n": [[1 << 40]]}, ValueError, "where_n must fit into int32, but hold 1099511627776"),
        ({"where_p_max": [[True]]}, ValueError, "where_p_max must be float32"),
        ({"where_x": ["a"]}, ValueError, r"write a single row as \[\[\.\.\.\]\]"),
        ({"where_x": [["a"], [1]]}, ValueError, "where_x must be string"),
        ({"where_p_max": [["a"]]}, ValueError, "where_p_max must be float32"),
        ({"where_x": [["a"]] * 3}, tf.errors.InvalidArgumentError, "where_x must have .* rows are 3"),
    ],
)
def test_what_no_request_may_want_is_refused(where, error, message):
    head = head_of(clustered(4, 3))
    attributes = Attributes({"x": [*"abcd"], "p": [1.0, 2, 3, 4], "n": [1, 2, 3, 4]})
    with pytest.raises(error, match=message):
        head.top_k(queries(2, 3), 1, attributes=attributes, **where)


def test_a_head_ranks_exactly_those_that_pass(path):
    vectors, query, size = clustered(300, 6), queries(3, 6), np.linspace(0, 1, 300)
    head, attributes = head_of(vectors), Attributes({"size": size})
    most = tf.constant([[0.5], [0.01], [np.nan]])
    logits = np.where(size <= np.array([[0.5], [0.01], [1]], np.float32), query @ vectors.T, -np.inf)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    want = np.where(np.take_along_axis(logits, order, 1) > -np.inf, order, -1)
    best = head.top_k(query, 5, attributes=attributes, where_size_max=most)
    np.testing.assert_array_equal(best.ids, want)
    assert (want[1, 3:] == -1).all() and np.isneginf(best.scores.numpy()[1, 3:]).all()
    best = head.top_k(query, 5, want[:, :1], attributes=attributes, where_size_max=most)
    np.testing.assert_array_equal(best.ids.numpy()[:, :4], want[:, 1:])
    allow = np.array([[0, 1, 2, 299, 298]])
    best = head.top_k(query, 5, None, allow, attributes=attributes, where_size_max=most).ids.numpy()
    assert [set(row) - {-1} for row in best] == [{0, 1, 2}, {0, 1, 2}, {0, 1, 2, 298, 299}]


def test_rows_without_values_restrict_nothing_beside_others():
    head, attributes = head_of(clustered(4, 3)), Attributes({"x": [*"abcd"], "n": [1, 2, 3, 4]})
    best = head.top_k(queries(2, 3), 1, attributes=attributes, where_x=[[], []], where_n=[[3]])
    assert best.ids.numpy().tolist() == [[2], [2]]


def test_a_head_of_buckets_ranks_those_that_pass():
    head = built(MACHHead(50, num_buckets=10, num_repetitions=3, num_probes=2), None, 8)
    attributes = Attributes({"kind": np.arange(50) % 10})
    best = head.top_k(queries(2, 8), 6, attributes=attributes, where_kind=[[3]]).ids.numpy()
    assert [sorted(row) for row in best.tolist()] == [[-1, 3, 13, 23, 33, 43]] * 2


def test_attributes_are_those_of_the_classes():
    head, query = head_of(clustered(4, 3)), queries(2, 3)
    with pytest.raises(ValueError, match="'x' has values of 3 classes, but the head 4"):
        head.top_k(query, 1, attributes=Attributes({"x": [1, 2, 3]}))
    for attributes in (None, {"x": [1, 2, 3, 4]}):
        with pytest.raises(ValueError, match="where_x needs the classes' attributes. Make them once"):
            head.top_k(query, 1, attributes=attributes, where_x=[[1]])
