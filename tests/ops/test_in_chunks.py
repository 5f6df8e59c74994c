import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfxc.ops.in_chunks import in_chunks

ROWS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


@pytest.mark.traced
@pytest.mark.parametrize("run", [lambda function: function, tf.function], ids=["eager", "traced"])
def test_chunks_add_up_to_the_gradient_of_the_whole(run):
    table, scale = tf.Variable(tf.random.normal([5, 3])), tf.Variable(tf.random.normal([3]))
    unread, count = tf.Variable(1.0), tf.Variable(0, dtype=tf.int64, trainable=False)
    variables = [table, scale, unread]

    def whole(floats, ids):
        count.assign_add(tf.size(ids, tf.int64))
        rows = tf.gather(floats, tf.range(tf.size(ids)))  # its gradient has rows of the chunk
        return [tf.sin(tf.gather(table, ids) * scale + rows), ids]

    def chunks(floats, ids):
        return in_chunks(whole, [floats, ids], variables, 3)

    def gradients(function, floats, ids):
        with tf.GradientTape() as tape:
            tape.watch(floats)
            output, same_ids = function(floats, ids)
            loss = tf.reduce_sum(tf.square(output))
        return output, same_ids, tape.gradient(loss, [floats, *variables])

    given = tf.constant(ROWS), tf.constant([4, 0, 0, 2, 4, 1, 0])
    want, ids, wanted = gradients(whole, *given)
    found, same_ids, got = run(lambda *given: gradients(chunks, *given))(*given)
    assert count.numpy() == 2 * 7  # the second run of a chunk counts nothing
    np.testing.assert_allclose(found, want, rtol=1e-6)
    np.testing.assert_array_equal(same_ids, ids)
    assert wanted[3] is None and got[3] is None
    np.testing.assert_array_equal(got[1].indices, [4, 0, 2, 1])  # each row once
    for own, other in zip(got[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(own), tf.convert_to_tensor(other), rtol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize("run", [lambda function: function, tf.function], ids=["eager", "traced"])
def test_a_tensor_that_all_chunks_read_gets_the_sum_of_their_gradients(run):
    ids = tf.constant([1, 3, 1, 0, 0, 3, 1])

    @run
    def gradients(queries, vectors, table, chunked):
        def products(queries, ids):
            return [tf.matmul(queries, tf.sin(vectors), transpose_b=True) + tf.gather(table, ids)]

        with tf.GradientTape() as tape:
            tape.watch([vectors, table])
            given = products, [queries, ids]
            (output,) = in_chunks(*given, [vectors, table], 3) if chunked else products(queries, ids)
            loss = tf.reduce_sum(tf.square(output))
        return tape.gradient(loss, [vectors, table])

    given = [tf.random.normal([size, 3]) for size in (7, 3, 4)]
    for own, other in zip(gradients(*given, True), gradients(*given, False), strict=True):
        assert type(own) is type(other)
        np.testing.assert_allclose(*map(tf.convert_to_tensor, (own, other)), rtol=1e-5, atol=1e-5)


@pytest.mark.traced
def test_a_graph_runs_one_after_the_other():
    def sines(rows):
        return [tf.sin(rows)]

    def gradient(rows):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            total = in_chunks(sines, [rows], [], 3)[0] + in_chunks(sines, [2 * rows], [], 3)[0]
        return tape.gradient(total, rows)

    step = tf.function(lambda rows: tf.distribute.get_strategy().run(gradient, [rows]))  # as in fit
    ops = step.get_concrete_function(tf.constant(ROWS)).graph.get_operations()
    calls = [op for op in ops if op.type.endswith("PartitionedCall")]
    assert len(calls) == 4  # each forward and backward
    for before, after in itertools.pairwise(calls):
        assert before in [*after.control_inputs, *(part.op for part in after.inputs)]


def test_random_states_are_those_of_the_first_run():
    weight, random = tf.Variable(1.0), tf.random.Generator.from_seed(3)

    def noisy(rows):
        return [rows * weight * random.normal(tf.shape(rows))]

    with tf.GradientTape() as tape:
        (output,) = in_chunks(noisy, [tf.constant(ROWS)], [weight], 2)
    after = random.state.numpy()
    np.testing.assert_allclose(tape.gradient(output, weight), np.sum(output), rtol=1e-5)
    np.testing.assert_array_equal(random.state, after)


def test_a_function_that_would_differ_in_its_second_run_is_refused():
    moving = tf.Variable(0.0, trainable=False, name="moving")

    def moves(rows):
        moving.assign(0.9 * moving + tf.reduce_mean(rows))
        return [rows]

    def draws(rows):
        dropped = lambda x: [tf.nn.dropout(x, 0.5)]  # noqa: E731
        return list(tf.while_loop(lambda _: True, dropped, [rows], maximum_iterations=2))

    for function, message in ((moves, "A step changes moving:0"), (draws, "keeps no state")):
        with pytest.raises(ValueError, match=message):
            in_chunks(function, [tf.constant(ROWS)], [], 2)
