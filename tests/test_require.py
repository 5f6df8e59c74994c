import pytest
import tensorflow as tf

from tfxc.model.fit import clean_errors
from tfxc.require import finite_rows, in_range, require


def at_most_three(x):
    checked = require(tf.reduce_all(x <= 3), "The largest number is", tf.reduce_max(x), "here.")
    with tf.control_dependencies(checked):
        return tf.identity(x)


@pytest.mark.traced
@pytest.mark.parametrize("compiled", [False, True])
def test_what_holds_changes_nothing_and_what_does_not_is_told(compiled):
    check = tf.function(at_most_three, autograph=False) if compiled else at_most_three
    assert check(tf.constant([1.5, 3.0])).numpy().tolist() == [1.5, 3.0]
    message = r"^The largest number is 4.5 here\.$"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message), clean_errors():
        check(tf.constant([4.5, 3.0]))


@pytest.mark.traced
def test_tensors_are_shown_alike_in_a_graph_and_outside():
    def fail():
        texts = "texts", tf.constant(["a", "b"]), tf.constant("c")
        require(tf.constant(False), "Numbers", tf.range(5), *texts)

    sentences = []
    for call in (fail, tf.function(fail, autograph=False)):
        with pytest.raises(tf.errors.InvalidArgumentError) as error, clean_errors():
            call()
        sentences.append(error.value.message)
    assert sentences[0] == sentences[1]


@pytest.mark.traced
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("limit", "end"), [(4, r"\[-1, 4\)$"), (tf.constant(4), r"\[-1, n\) with n = 4$")], ids=["int", "tensor"]
)
def test_the_first_id_out_of_range_is_named(compiled, limit, end):
    def check(ids):
        with tf.control_dependencies(in_range(ids, -1, limit, "the id")):
            return tf.identity(ids)

    check = tf.function(check, autograph=False) if compiled else check
    assert check(tf.constant([[-1, 3]])).shape == (1, 2) and check(tf.zeros([0], tf.int32)).shape == 0
    for bad in (4, -2):
        message = rf"^the id {bad} at position \D*1\D*0\D* is outside {end}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message), clean_errors():
            check(tf.constant([[0, 0], [bad, -3]]))


@pytest.mark.traced
@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_row_that_is_not_finite_is_named(compiled):
    def check(values):
        with tf.control_dependencies(finite_rows(values, "logits")):
            return tf.identity(values)

    check = tf.function(check, autograph=False) if compiled else check
    assert check(tf.zeros([2, 3])).shape == (2, 3) and check(tf.zeros([0, 3])).shape == (0, 3)
    nan, inf = float("nan"), float("inf")
    message = "^logits must be finite, but .* row of query 1$"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message), clean_errors():
        check(tf.constant([[0.0, 0.0], [-inf, 0.0], [0.0, nan]]))


@pytest.mark.traced
def test_in_a_graph_it_is_one_op_that_runs_though_nobody_reads_it():
    @tf.function(autograph=False)
    def function(x):
        require(x < 3, "Too large:", x)
        return x

    concrete = function.get_concrete_function(tf.TensorSpec([], tf.int64))
    kinds = [op.type for op in concrete.graph.get_operations()]
    assert kinds.count("Assert") == 1 and not concrete.graph.as_graph_def().library.function
    with pytest.raises(tf.errors.InvalidArgumentError, match="Too large"):
        concrete(tf.constant(7, tf.int64))
