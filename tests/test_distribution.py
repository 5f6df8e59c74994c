"""Training on two devices comes to the same as on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("two_devices.py")


@pytest.fixture(scope="module")
def results():
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["plain", "classifier", "own"])
def test_over_all_classes_training_is_the_same(results, name):
    one, two = results[name]
    np.testing.assert_allclose(two["squares"], one["squares"], rtol=1e-4)
    if name != "own":
        np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    if name == "plain":
        np.testing.assert_allclose(two["recall"], one["recall"], rtol=1e-6)


def test_over_sampled_classes_training_comes_to_the_same_loss(results):
    one, two = results["sampled"]
    np.testing.assert_allclose(two["exact"], one["exact"], rtol=0.15)
    assert two["losses"] != one["losses"]  # other draws
    assert two["losses"][-1] < two["losses"][0] and two["exact"] < 0.9 * np.log(25)


def test_replicas_draw_differently_and_count_alike(results):
    draws = [tuple(draw) for step in results["draws"] for draw in step]
    assert len(set(draws)) == 4 and results["counter"] == 2


@pytest.mark.parametrize("kind", ["InBatch", "Unigram"])
def test_replicas_count_their_labels_together(results, kind):
    """Twice [0, 1, 0] on one, and [3, 3, 3, 1] on the other."""
    counts = results["counts"][kind]
    assert counts["occurrences"] == [4, 4, 0, 6, 0] and counts["total"] == 14
    assert counts["copies"] == [counts["occurrences"]] * 2
    share = np.array([5, 5, 1, 7, 1]) / 19
    np.testing.assert_allclose(counts["probs"], [share, share], rtol=1e-5)
    if kind == "Unigram":
        np.testing.assert_allclose(results["counts"]["refreshed"], share, rtol=1e-5)


def test_a_sampler_that_counts_while_training_trains(results):
    assert results["counting"]["losses"][-1] < results["counting"]["losses"][0]
    assert results["counting"]["exact"] < 0.9 * np.log(25)
