import numpy as np
import pytest
import tensorflow as tf

from tfxc.search.made_on_load import MadeOnLoad


def halved(codes, scales):
    return tf.cast(codes, tf.float32) * scales


def saved(path, numbers):
    module = tf.Module()
    codes = tf.Variable(tf.cast(2 * numbers, tf.int16))
    module.made = MadeOnLoad(halved, codes, tf.Variable(tf.fill(numbers.shape[1:], 0.5)))
    module.serve = tf.function(lambda x: {"y": x @ module.made()}, input_signature=[tf.TensorSpec([None, 3])])
    tf.saved_model.save(module, path, signatures={"serving_default": module.serve})
    return path


NUMBERS = np.array([[1.5, -2.0], [0.0, 5.0], [-127.0, 64.0]], np.float32)


@pytest.mark.traced
def test_the_file_holds_few_bits_and_the_graph_reads_float32(tmp_path):
    numbers = np.tile(NUMBERS, [20_000, 1]).reshape(3, -1)
    path = saved(str(tmp_path), numbers)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert size < numbers.nbytes * (1 / 2 + 1 / 3) + 20_000  # codes, scales, and the graph
    loaded = tf.saved_model.load(path)
    np.testing.assert_array_equal(loaded.serve(tf.eye(3))["y"], numbers)
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    ops = {node.op for function in graph.library.function for node in function.node_def}
    assert "MatMul" in ops and "Cast" not in ops


@pytest.mark.traced
def test_a_session_as_of_a_server_makes_it_too(tmp_path):
    path = saved(str(tmp_path), NUMBERS)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        signature = meta.signature_def["serving_default"]
        y = session.run(signature.outputs["y"].name, {signature.inputs["x"].name: np.eye(3)})
    np.testing.assert_array_equal(y, NUMBERS)


@pytest.mark.traced
def test_two_saved_models_in_a_process_have_numbers_of_their_own(tmp_path):
    paths = [saved(str(tmp_path / str(i)), NUMBERS * i) for i in (0, 1)]
    one, other, again = (tf.saved_model.load(path) for path in (*paths, paths[1]))
    del again
    np.testing.assert_array_equal(one.serve(tf.eye(3))["y"], 0 * NUMBERS)
    np.testing.assert_array_equal(other.serve(tf.eye(3))["y"], NUMBERS)
