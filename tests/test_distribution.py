"""Training on two devices, or in two processes, comes to the same as on one."""

import json

import numpy as np
import pytest
import two_processes
from long_cases import long_after
from processes import Process, free_addresses

from tfxc._keras import IS_KERAS_3

LONG = pytest.mark.long
pytestmark = [pytest.mark.both_keras, pytest.mark.traced]


def end(process):
    return json.loads(process.output().splitlines()[-1])


@pytest.fixture(scope="module")
def results(with_long_tests):
    return end(Process("two_devices.py", *["long"] * with_long_tests))


@pytest.fixture(scope="module")
def processes():
    cluster = {"worker": free_addresses(2)}
    configs = [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)]
    together = [Process("two_processes.py", TF_CONFIG=json.dumps(config)) for config in configs]
    try:
        alone = {"loop": two_processes.looped(), "fit": None if IS_KERAS_3 else two_processes.fitted()}
        return alone, [end(process) for process in together]
    finally:
        for process in together:
            process.kill()


def assert_same_weights(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@LONG
def test_two_processes_train_the_same_weights_and_move_the_same_connections(processes):
    alone, (one, other) = processes
    for found in (one, other):
        assert_same_weights(found["loop"], alone["loop"])
    assert one["rewired"] == other["rewired"]


@LONG
def test_two_processes_fit_the_same_weights_or_keras_3_names_the_remedy(processes):
    alone, (one, other) = processes
    for found in (one, other):
        if IS_KERAS_3:
            assert "TF_USE_LEGACY_KERAS=1" in found["fit"] and "head_loss" in found["fit"]
        else:
            assert_same_weights(found["fit"], alone["fit"])
            before, after = found["sampled"]
            assert after < 0.9 * before and one["sampled"] == other["sampled"]


@pytest.mark.parametrize("name", long_after(1, "plain", "summed", "own"))
def test_over_all_classes_training_is_the_same(results, name):
    one, two = results["one"], results[name]
    np.testing.assert_allclose(two["squares"], one["squares"], rtol=1e-4)
    if name != "own":
        batch = 16 if name == "summed" else 1
        np.testing.assert_allclose(two["losses"], np.multiply(batch, one["losses"]), rtol=1e-4)
    if name == "plain":
        np.testing.assert_allclose(two["recall"], one["recall"], rtol=1e-6)


@LONG
def test_uneven_batches_and_optimizers_of_parts_come_to_the_same(results):
    np.testing.assert_allclose(*results["uneven"], rtol=1e-6)  # means over all examples of all replicas
    one, two = results["parts"]
    np.testing.assert_allclose(two, one, rtol=1e-4)
    assert one[1] < one[0]


@LONG
def test_over_sampled_classes_training_comes_to_the_same_loss(results):
    one, two = results["sampled"]
    np.testing.assert_allclose(two["exact"], one["exact"], rtol=0.15)
    assert two["losses"] != one["losses"]  # other draws
    # Sampled losses vary more from draw to draw than they fall; the loss over all classes tells.
    assert two["exact"] < 0.9 * np.log(25)


def test_replicas_draw_differently_and_count_alike(results):
    draws = [tuple(draw) for step in results["draws"] for draw in step]
    assert len(set(draws)) == 4 and results["counter"] == 2


@pytest.mark.parametrize("kind", ["InBatch", "Unigram"])
def test_replicas_count_their_labels_together(results, kind):
    counts = results["counts"][kind]
    assert counts["occurrences"] == [4, 4, 0, 6, 0] and counts["total"] == 14
    assert counts["copies"] == [counts["occurrences"]] * 2
    np.testing.assert_allclose(counts["probs"], [np.array([4, 4, 1, 6, 1]) / 14] * 2, rtol=1e-5)
    if kind == "Unigram":
        np.testing.assert_allclose(results["counts"]["refreshed"], np.array([5, 5, 1, 7, 1]) / 19, rtol=1e-5)


@LONG
def test_replicas_have_the_same_index(results):
    assert len(results["refreshed"]) == 6
    assert set(results["refreshed"].values()) == {0.0}, results["refreshed"]


def test_replicas_go_on_where_they_were_kept(results):
    for losses in results["kept"].values():
        np.testing.assert_allclose(losses, results["kept"]["model"], rtol=1e-6)
