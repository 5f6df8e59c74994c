import pytest
import tensorflow as tf

from tfxc.require import clean_errors, finite_rows, in_range, require, sentence_of

FRAMES = '  File "a.py", line 1, in f\n\n  File "b.py", line 2, in g\n\n  File "c.py", line 3, in h\n\n'
GRAPH = f"Graph execution error:\n\nDetected at node x defined at (most recent call last):\n{FRAMES}"
UNAVAILABLE = "<stack traces unavailable>\n"
RAISED = '  File "d.py", line 4, in rows\n    raise ValueError(\n\nValueError: '
NODE = "\n\t [[{{node x}}]] [Op:__inference_step_7]"


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


@pytest.mark.parametrize(
    "report",
    [
        "Too large: 5 of 3",
        f"{GRAPH}Too large: 5 of 3{NODE}",
        f"Graph execution error:\n\nToo large: 5 of 3{NODE}",
        f"{GRAPH.replace(FRAMES, UNAVAILABLE)}assertion failed: [Too large: 5] [of] [3]{NODE}",
        f"{GRAPH}Node: 'x/y'\nToo large: 5 of 3{NODE}",
        f"{GRAPH}{RAISED}Too large: 5 of 3\n\n{NODE}",
        f"{GRAPH}assertion failed: [Too large:] [5] [of] [3]{NODE}",
        f"{GRAPH}2 root error(s) found.\n  (0) INVALID_ARGUMENT:  Too large: 5 of 3{NODE}",
        "Exception encountered when calling A.\n\n\x1b[1mToo large: 5 of 3\x1b[0m\n\nArguments received",
    ],
)
@pytest.mark.parametrize("num_frames", [2, 3])
def test_the_sentence_is_found(report, num_frames):
    report = report.replace(FRAMES, "\n\n".join(FRAMES.split("\n\n")[:num_frames]) + "\n\n")
    assert sentence_of(report) == "Too large: 5 of 3"


def test_a_plain_error_is_left_alone():
    plain = tf.errors.InvalidArgumentError(None, None, "Too large.")
    with pytest.raises(tf.errors.InvalidArgumentError) as error, clean_errors():
        raise plain
    assert error.value is plain and error.value.__cause__ is None
