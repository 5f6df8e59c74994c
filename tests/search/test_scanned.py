import numpy as np
import pytest
from sampler_checks import head_of, queries

from tfxc.search.scanned import Answers, most_promising


def answering(vectors, query, k):
    scores = query @ vectors.T
    best = np.argsort(-scores, axis=1)[:, :k]
    return np.bincount(best.ravel(), minlength=len(vectors)), np.sort(scores, axis=1)[:, -k]


def test_few_classes_hold_most_answers():
    random = np.random.default_rng(0)
    lengths = 6 / np.sqrt(10 + np.arange(3000))
    vectors = (random.standard_normal((3000, 8)) * lengths[:, np.newaxis]).astype(np.float32)
    seen, unseen = np.split(queries(800, 8) * np.linspace(0.3, 3, 8, dtype=np.float32), 2)
    _, last = answering(vectors, seen, 10)
    often, _ = answering(vectors, unseen, 10)
    head = head_of(vectors)
    best = most_promising(head, Answers.of(seen, last), 60)
    longest = most_promising(head, Answers.of_any(head), 60)
    assert often[best].sum() > 0.87 * often.sum() > often[longest].sum()
    np.testing.assert_array_equal(longest, np.argsort(-np.linalg.norm(vectors, axis=1))[:60])


@pytest.mark.parametrize("shift", [-12, 0, 12])
def test_rare_classes_of_large_negative_biases_are_not_mistaken_for_frequent_ones(shift):
    random = np.random.default_rng(0)
    vectors, biases = random.standard_normal((500, 4)), -np.linspace(0, 8, 500)
    query = np.column_stack([queries(300, 4), np.ones(300)])
    often, last = answering(np.column_stack([vectors, biases]), query, 5)
    head = head_of(vectors.astype(np.float32), use_bias=True)
    head.bias.assign(biases + shift)
    for answers in Answers.of(query, last + shift), Answers.of_any(head):  # what all queries share is known
        best = most_promising(head, answers, 100)
        assert often[best].sum() > 0.8 * often.sum() and biases[best].min() > -5


def test_one_query_and_vectors_of_length_zero():
    vectors = np.zeros((3, 2), np.float32)
    vectors[1] = 1
    one = Answers.of(np.ones((1, 2), np.float32), np.array([2.0]))
    assert most_promising(head_of(vectors), one, 1).tolist() == [1]
    assert most_promising(head_of(vectors), Answers.of_any(head_of(vectors)), 3).tolist() == [1, 0, 2]
    assert most_promising(head_of(vectors), one, 0).shape == (0,)
