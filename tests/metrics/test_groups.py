import json

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from classifier_checks import features, make_model

from tfxc._keras import keras
from tfxc.layers import DenseHead
from tfxc.metrics import ClassGroups, CoverageAtK, MRRAtK, NDCGAtK, PSPAtK, RecallAtK

GROUPS = np.array(["b", "a", "b", "a", "c", "b"])


@pytest.mark.both_keras
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5, 2.0, 0.0]])
@pytest.mark.parametrize("kind", [NDCGAtK, MRRAtK, RecallAtK])
def test_a_group_is_the_metric_of_its_labels_alone(kind, weights):
    labels = np.array([[0, 2, 1], [3, 4, -1], [-1, -1, -1], [5, 5, 0], [1, -1, 4]])
    ranked = np.array([[2, 1], [4, 0], [1, 2], [0, 5], [3, 1]])
    metric = kind(2, by=GROUPS)
    for rows in (slice(0, 2), slice(2, 5)):
        metric.update_state(labels[rows], ranked[rows], weights and weights[rows])
    for group in "abc":
        alone = kind(2)
        of_group = np.where((labels >= 0) & (GROUPS[labels] == group), labels, -1)
        alone.update_state(of_group, ranked, weights)
        assert float(metric.result()[f"{metric.name}/{group}"]) == pytest.approx(float(alone.result()))
    whole = kind(2)
    whole.update_state(labels, ranked, weights)
    assert float(metric.result()[metric.name]) == pytest.approx(float(whole.result()))
    metric.reset_state()
    assert np.isnan(float(metric.result()[f"{metric.name}/a"]))  # no example has such a label


@pytest.mark.parametrize(
    "by",
    [
        [1, 0, 1, 0, -1, 1],
        np.array([7, 3, 7, 3, -4, 7]),
        pd.Series([1, 0, 1, 0, -1, 1]),
        ClassGroups([1, 0, 1, 0, -1, 1], ["no", "yes"]),
    ],
    ids=["list", "array", "series", "named"],
)
def test_forms_of_groups_and_their_config(by):
    metric = RecallAtK(1, by=by)
    again = RecallAtK.from_config(json.loads(json.dumps(metric.get_config())))
    for own in (metric, again):
        own.update_state([0, 1, 2, 4], [[0], [0], [2], [4]])
        whole, low, high = (float(value) for value in own.result().values())
        assert (whole, low, high) == (0.75, 0.0, 1.0)


def test_other_classes():
    config = RecallAtK(1, by=GROUPS).config_for(np.array([4, -1, 1]))
    assert RecallAtK.from_config(config).by.ids.tolist() == [2, -1, 0]
    assert RecallAtK(1).config_for(np.array([0])) == RecallAtK(1).get_config()
    config = PSPAtK(1, np.full(6, 0.5), by=GROUPS).config_for(np.array([4, -1]))
    assert PSPAtK.from_config(config).by.ids.tolist() == [2, -1]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ([True, False], r'an integer or a string .*bool of shape \(2,\).*np.where\(is_new, "new", "old"\)'),
        (["a", None], 'is object .*a name such as "unknown"'),
        ([0.0, 1.0], "float64"),
        ([[0, 1]], r"shape \(1, 2\)"),
        ([], r"shape \(0,\)"),
        ({0: "a", 1: "b"}, r"by must hold a value for each class, .* but are a dict"),
        (pd.Series([1, 0], index=[3, 4]), "by come from pandas"),
        (np.arange(1001), "by makes 1001 groups, but a metric takes 1000"),
        (ClassGroups([0, 2], ["a", "b"]), r"a name of its own for each id.*got \[0 2\] .*'a', 'b'"),
        (ClassGroups(["a", "b"], ["a", "b"]), r"each id, an integer, but got \['a' 'b'\]"),
        (ClassGroups([0, 1], ["a", "a"]), "a name of its own"),
    ],
)
def test_bad_groups(by, message):
    with pytest.raises(ValueError, match=message):
        RecallAtK(1, by=by)


def test_what_does_not_fit_groups():
    with pytest.raises(ValueError, match='need average="labelled"'):
        RecallAtK(1, average="all", by=GROUPS)
    with pytest.raises(ValueError, match="by holds 6 classes, but there are 2 propensities"):
        PSPAtK(1, [0.5, 0.5], by=GROUPS)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label id is outside \[0, 6\)"):
        RecallAtK(1, by=GROUPS).update_state([6], [[0]])


@pytest.mark.traced
@pytest.mark.both_keras
def test_in_fit_and_evaluate(reloaded):
    with pytest.raises(ValueError, match="recall_at_2 is made for 2 classes, but the head has 6"):
        make_model(head=DenseHead(6), metrics=[RecallAtK(2, by=["a", "b"])])
    metrics, weighted = [RecallAtK(2, by=GROUPS), CoverageAtK(2, 6)], [MRRAtK(2, by=GROUPS)]
    model = make_model(head=DenseHead(6), k=2, metrics=metrics, weighted_metrics=weighted)
    x, y = features(20), np.arange(20) % 6
    logs = model.fit(x, y, 8, validation_data=(x, y), verbose=0).history
    result = model.evaluate(x, y, 8, return_dict=True, verbose=0)
    found = RecallAtK(2).values(y, model.predict(x, verbose=0)).numpy()
    for group in "abc":
        own = found[GROUPS[y] == group].mean()
        assert result[f"recall_at_2/{group}"] == pytest.approx(own)
        assert logs[f"val_recall_at_2/{group}"] == [pytest.approx(own)]
        assert f"mrr_at_2/{group}" in result
    assert result["recall_at_2"] == pytest.approx(found.mean())
    assert len(model.evaluate(x, y, 8, verbose=0)) == len(result)
    again = reloaded(model)
    assert again.evaluate(x, y, 8, return_dict=True, verbose=0) == pytest.approx(result)


@pytest.mark.both_keras
def test_callbacks_find_the_direction_or_refuse():
    model = make_model(head=DenseHead(6), k=2, metrics=[RecallAtK(2, by=GROUPS)])
    x, y = features(4), np.arange(4)
    stop = keras.callbacks.EarlyStopping("val_recall_at_2/a")
    with pytest.raises(ValueError, match="mode|monitor"):
        model.fit(x, y, validation_data=(x, y), callbacks=[stop], verbose=0)
