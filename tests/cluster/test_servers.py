import json

import numpy as np
import pytest
import tensorflow as tf
from processes import Process

import tfxc
from tfxc._keras import IS_KERAS_3
from tfxc.model.memory import MemoryReport
from tfxc.ops import library

pytestmark = [pytest.mark.both_keras, pytest.mark.traced]

LONG = pytest.mark.long
NO_SERVERS = "Keras 3 has no parameter servers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def results(folder, with_long_tests):
    if IS_KERAS_3:
        pytest.skip(NO_SERVERS)
    printed = Process("cluster/in_process.py", folder, *["long"] * with_long_tests).output()
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize(
    "name", ["midx", *(pytest.param(own, marks=LONG) for own in ("mixture", "none", "sparse shared"))]
)
def test_it_trains(results, name):
    """Measured by an evaluation on the servers with "midx" and the sparse head, else by the whole table."""
    loss, recall = results[name]["evaluated"]
    assert loss < 0.95 * np.log(20_001) and recall > 0.5


def test_shards_their_slots_and_their_index_lie_together(results):
    places = results["places"]
    assert places["rows"] == [10_001, 10_000] * 2
    assert len(set(places["weights"])) == 2 and places["weights"][:2] == places["weights"][2:]
    assert places["slots"] == [[place] * 2 for place in places["weights"]]
    assert places["index"] == [[place] * 13 for place in places["weights"][:2]]
    assert len(results["places of a small index"]) == 1


@LONG
def test_shards_begin_as_the_whole_table_would(results):
    glorot = (2 / (20_001 + 8)) ** 0.5
    np.testing.assert_allclose(results["begun"]["spread"], [glorot] * 2, rtol=0.02)
    assert results["begun"]["differ"] > 0.98 * 20_001 * 8


@LONG
def test_what_samplers_of_a_mixture_keep_for_each_class_is_cut(results):
    counted = results["counted"]
    for labels, total in zip(counted["labels"], counted["totals"], strict=True):
        assert total == 40 * 64 and min(labels) > 0  # steps of 64 labels
    for places in [*counted["places"], [index[0] for index in counted["index"]]]:
        assert len(set(places)) == 2
    assert [len(set(index)) for index in counted["index"]] == [1, 1]
    assert counted["drawn"] == pytest.approx(1, rel=1e-5)


def test_scores_and_rankings_are_those_of_the_whole_table(results):
    answers = results["answers"]
    np.testing.assert_allclose(answers["scores"], answers["wanted scores"], rtol=1e-4, atol=1e-5)
    assert answers["best"] == answers["wanted best"]


@LONG
def test_what_servers_draw_from_follows_weights_that_were_loaded(results):
    np.testing.assert_allclose(results["followed"]["got"], results["followed"]["wanted"], rtol=1e-5)


def test_no_draw_is_made_twice(results):
    assert results["counter"] == 40  # steps


@pytest.mark.parametrize(("name", "num_weights"), [("alone", 2), pytest.param("four shards", 8, marks=LONG)])
def test_a_checkpoint_of_two_shards_loads_elsewhere(results, name, num_weights):
    epoch, number, scores, log_probs = results[name]
    assert epoch == 2 and number == num_weights and scores < 1e-6 and log_probs < 1e-6


@LONG
def test_callbacks_of_epochs_move_connections_and_measure(results):
    logs, known = results["evolved"]["logs"], results["evolved"]["known"]
    assert logs["rewire/moved"] == [0, 20_001] and 0 < logs["sampler/effective_sample_size"][0] <= 500
    assert results["evolved"]["new"] == [10_001, 10_000] and known == [0, 0]


@LONG
def test_a_frozen_head_stays_until_it_thaws(results):
    assert results["frozen"] == [[False, True], [True, True]]  # of the table, of the encoder


@LONG
def test_the_directions_of_many_inputs_lie_whole(results):
    places, lengths = results["projected"]
    assert places[0] == places[1] and min(lengths) > 0


@LONG
def test_memory_is_that_of_one_machine_but_for_codebooks(results):
    servers, alone = (dict(zip(MemoryReport._fields, own, strict=True)) for own in results["memory"])
    for name in ("encoder", "tables", "slots", "step"):
        assert servers[name] == alone[name] > 0
    assert 1 < servers["indices"] / alone["indices"] < 1.1


def test_a_draw_outside_of_graphs(results):
    drawn = results["drawn outside"]
    assert np.shape(drawn["ids"]) == (2, 20) and 0 <= np.min(drawn["ids"]) <= np.max(drawn["ids"]) <= 20_000
    assert drawn["differ"] and drawn["loss"] > 0 and drawn["counted"] == 3


def saved(path):
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    names = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name: reader.get_tensor(name) for name in names}


@LONG
def test_an_export_from_shards_is_that_of_one_machine(results, folder):
    of_shards, alone = saved(folder / "shards"), saved(folder / "alone")
    assert of_shards.keys() == alone.keys() and len(alone) == 4
    for name, weight in alone.items():
        np.testing.assert_array_equal(of_shards[name], weight)
    loaded = [tf.saved_model.load(str(folder / name)) for name in ("shards", "alone")]
    answers = [own.serve(tf.ones([2, 8]), k=5, exclude=tf.constant([[3]])) for own in loaded]
    for name in ("ids", "scores"):
        np.testing.assert_array_equal(answers[0][name], answers[1][name])


@LONG
def test_an_export_from_shards_knows_what_layers_have_adapted_to(results, folder):
    loaded = tf.saved_model.load(str(folder / "words"))
    answer = loaded.serve(word=tf.constant([["tea"], ["rum"]]), number=tf.constant([[1.0], [5.0]]))
    np.testing.assert_array_equal(answer["ids"], results["exported"]["words"])


@LONG
def test_nothing_is_left_of_an_export_that_was_broken_off(results, folder):
    names = ["alone", "counts", "epoch-000002", "shards", "words"]
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.parametrize(
    ("name", "remedy"),
    {
        "head": "Take DenseHead",
        "tied": "Leave tied_to out",
        "data": "seed=None",
        "export": "after the scope",
        "model": "tfxc.cluster.Checkpoint",
        "folder": "tfxc.cluster.Checkpoint",
        "weights": "tfxc.cluster.Checkpoint",
        "classes": "outside of the strategy's scope",
    }.items(),
)
def test_what_cannot_work_is_refused_with_a_remedy(results, name, remedy):
    assert remedy in results["refused"][name]


def resolver(num_servers=2, task_type=None):
    spec = tf.train.ClusterSpec({"worker": ["localhost:1"], "ps": ["localhost:2"] * num_servers})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type=task_type)


@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras has them")
def test_keras_3_is_told_that_it_has_no_parameter_servers():
    with pytest.raises(ValueError, match="TF_USE_LEGACY_KERAS=1"):
        tfxc.cluster.strategy(resolver())


@pytest.mark.skipif(IS_KERAS_3, reason=NO_SERVERS)
@pytest.mark.parametrize(
    ("num_servers", "num_shards", "message"), [(2, 3, "multiple"), (0, None, 'no job "ps"')]
)
def test_shards_that_do_not_fit_the_servers_are_refused(num_servers, num_shards, message):
    with pytest.raises(ValueError, match=message):
        tfxc.cluster.strategy(resolver(num_servers), num_shards)


def test_the_coordinator_is_no_server():
    with pytest.raises(ValueError, match="calls tfxc.cluster.strategy"):
        tfxc.cluster.start_server(resolver(task_type="chief"))


def test_a_server_without_the_compiled_ops_says_so(monkeypatch):
    monkeypatch.delenv("TFXC_DISABLE_OPS", raising=False)
    monkeypatch.setattr(library, "_load", lambda: None)
    with pytest.raises(RuntimeError, match="needs the compiled ops.*TFXC_DISABLE_OPS=1 in every process"):
        tfxc.cluster.start_server(resolver(task_type="worker"))

    def started(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.distribute, "Server", started)
    monkeypatch.setenv("TFXC_DISABLE_OPS", "1")
    with pytest.warns(RuntimeWarning, match="every process"), pytest.raises(KeyboardInterrupt):
        tfxc.cluster.start_server(resolver(task_type="worker"))
