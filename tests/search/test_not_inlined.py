import pytest
import tensorflow as tf

from tfxc.search.not_inlined import not_inlined


@pytest.mark.traced
@pytest.mark.parametrize("taken", [True, False])
def test_the_branch_is_a_function_of_its_own(taken):
    start = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.bool)])
    def choose(taken):
        rare = not_inlined(lambda: start + 2)
        return tf.cond(taken, rare, lambda: start + 0)

    assert choose(tf.constant(taken)).numpy() == (3 if taken else 1)
    functions = choose.get_concrete_function().graph.as_graph_def().library.function
    assert sum(function.attr["_noinline"].b for function in functions) == 1
