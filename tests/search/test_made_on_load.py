"""What is made of a weight when a SavedModel is loaded."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc.search.made_on_load import MadeOnLoad


def saved(path, weight):
    module = tf.Module()
    module.made = MadeOnLoad(weight)
    module.serve = tf.function(lambda x: {"y": x @ module.made()}, input_signature=[tf.TensorSpec([None, 3])])
    tf.saved_model.save(module, path, signatures={"serving_default": module.serve})
    return path


def weight_of(numbers, dtype):
    if dtype == "bfloat16":
        return tf.Variable(tf.bitcast(tf.cast(numbers, tf.bfloat16), tf.uint16))
    return tf.Variable(tf.cast(numbers, dtype))


NUMBERS = np.array([[1.0, -2.0], [0.0, 5.0], [-127.0, 64.0]], np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_file_holds_few_bits_and_the_graph_reads_float32(tmp_path, dtype):
    numbers = np.tile(NUMBERS, [1, 20_000])
    path = saved(str(tmp_path), weight_of(numbers, dtype))
    size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert size < numbers.nbytes * (0.6 if dtype == "bfloat16" else 0.35)
    loaded = tf.saved_model.load(path)
    np.testing.assert_array_equal(loaded.serve(tf.eye(3))["y"], numbers)
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    ops = {node.op for function in graph.library.function for node in function.node_def}
    assert "MatMul" in ops and "Cast" not in ops


def test_a_session_as_of_a_server_makes_it_too(tmp_path):
    path = saved(str(tmp_path), weight_of(NUMBERS, "int8"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        signature = meta.signature_def["serving_default"]
        y = session.run(signature.outputs["y"].name, {signature.inputs["x"].name: np.eye(3)})
    np.testing.assert_array_equal(y, NUMBERS)


def test_two_saved_models_in_a_process_have_numbers_of_their_own(tmp_path):
    paths = [saved(str(tmp_path / str(i)), weight_of(NUMBERS * i, "int8")) for i in (0, 1)]
    one, other, again = (tf.saved_model.load(path) for path in (*paths, paths[1]))
    del again
    np.testing.assert_array_equal(one.serve(tf.eye(3))["y"], 0 * NUMBERS)
    np.testing.assert_array_equal(other.serve(tf.eye(3))["y"], NUMBERS)
