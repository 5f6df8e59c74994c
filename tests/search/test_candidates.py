import numpy as np
import pytest
import tensorflow as tf

from tfxc.search.candidates import best_allowed, best_candidates, search_or_allowed

NONE = tf.zeros([1, 0], tf.int32)


def test_by_hand():
    scores = tf.constant([[1.0, 3.0, np.nan, 3.0, 9.0, 2.0]])
    ids = tf.constant([[6, 8, 1, 5, -1, 7]])
    best = best_candidates(scores, ids, tf.constant(3), tf.constant([[7, -1, 99]]))
    assert best.ids.numpy().tolist() == [[5, 8, 6]] and best.scores.numpy().tolist() == [[3, 3, 1]]
    best = best_candidates(scores, ids, 8, NONE)
    assert best.ids.numpy().tolist() == [[5, 8, 7, 6, -1, -1, -1, -1]]
    assert np.isneginf(best.scores.numpy()[0, 4:]).all()


def test_no_candidates_leave_empty_slots():
    best = best_candidates(tf.zeros([2, 0]), tf.zeros([2, 0], tf.int32), 2, tf.zeros([2, 0], tf.int32))
    assert best.ids.numpy().tolist() == [[-1, -1]] * 2


@pytest.mark.parametrize("allow", [[[4, 1, 4, -1]], [[4, 1, 4, -1], [0, -1, -1, 3]]])
def test_allowed_classes_rank_once(allow):
    logits = tf.constant([[0.0, 1, 2, 3, 4], [4.0, 3, 2, 1, 0]])

    def score(ids):
        ids = tf.maximum(ids, 0)
        return tf.gather(logits, ids, axis=1) if ids.shape.rank == 1 else tf.gather(logits, ids, batch_dims=1)

    best = best_allowed(score, tf.constant(allow), 5, 2, 3, tf.zeros([2, 0], tf.int32))
    assert best.ids.numpy().tolist() == [[4, 1, -1], [1, 4, -1] if len(allow) == 1 else [0, 3, -1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="allowed class id is outside"):
        best_allowed(score, tf.constant([[5]]), 5, 2, 3, NONE)


@pytest.mark.traced
def test_a_width_of_zero_allows_every_class():
    search, ranked = lambda: tf.constant("all"), lambda: tf.constant("allowed")
    choose = tf.function(
        lambda allow: search_or_allowed(search, ranked, allow),
        input_signature=[tf.TensorSpec([None, None], tf.int32)],
    )
    for allow, want in ((NONE, b"all"), (tf.constant([[-1]]), b"allowed")):
        assert search_or_allowed(search, ranked, allow).numpy() == choose(allow).numpy() == want
    assert search_or_allowed(search, ranked, None).numpy() == b"all"
