import collections
import functools
import inspect
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfxc
from tfxc.arguments import (
    by_class,
    count_tensor,
    integers,
    lists_as_tensors,
    local_path,
    number_in,
    one_of,
    positions,
    positive_int,
    real_number,
    require_count,
    seed_int,
)
from tfxc.callbacks import BackupAndRestore, HardNegativeMining
from tfxc.data import Vocabulary
from tfxc.data.sequence_folder import scratch
from tfxc.labels import as_array, weights_as_array
from tfxc.model.inputs import plain_inputs


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.int32([3])[0]])
def test_integers_of_any_kind_become_pythons(value):
    for least, most in ((1, None), (3, None), (-1, 3)):
        found = positive_int(value, "k", least, most)
        assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [0, -2, True, np.bool_(True), 8.5, 3.0, np.float32(3), "3", None, [3]])
def test_anything_else_is_named(value):
    for least, most, wanted in ((1, None, "of at least 1"), (4, None, "of at least 4"), (1, 7, "in [1, 7]")):
        with pytest.raises(ValueError) as error:
            positive_int(value, "k", least, most)
        assert str(error.value) == f"k must be an integer {wanted}, but got {value!r}."
    with pytest.raises(ValueError, match=r"in \[1, 7\], but got 8"):
        positive_int(8, "k", most=7)


def test_a_choice_is_told_by_what_equals_it():
    choices = {"float32": 0, "bfloat16": 1}
    for value in ("bfloat16", np.str_("bfloat16"), tf.bfloat16):
        found = one_of(value, "dtype", choices)
        assert found == "bfloat16" and type(found) is str
    for value in ("float16", None, ["float32"]):
        with pytest.raises(ValueError) as error:
            one_of(value, "dtype", choices)
        assert str(error.value) == f"dtype must be one of ('float32', 'bfloat16'), but got {value!r}."


def test_numbers_of_any_kind_become_pythons():
    for value in (3, 3.0, np.float32(3), np.int64(3), np.array(3), tf.constant(3.0)):
        found = real_number(value, "alpha")
        assert found == 3 and type(found) is float
    for value in (None, "3", b"3", True, np.bool_(True), [3.0], 3j, 10**400, tf.constant([1.0, 2.0])):
        with pytest.raises(ValueError, match="alpha must be a number, but got "):
            real_number(value, "alpha")


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", (1e-9, 0.5, 1), (0, 1.1, -1, np.nan)),
        ("[0, 1)", (0, np.float32(0.5)), (1, -1e-9, np.inf)),
        ("[3, inf)", (3, 1e30), (2.9, np.inf, np.nan)),
    ],
)
def test_numbers_outside_of_an_interval_are_named(interval, inside, outside):
    assert [number_in(value, "alpha", interval) for value in inside] == list(inside)
    for value in outside:
        with pytest.raises(ValueError, match=f"alpha must be in {re.escape(interval)}, but got "):
            number_in(value, "alpha", interval)


@pytest.mark.parametrize("value", [None, "0.5"])
@pytest.mark.parametrize(
    "named",
    [
        lambda temperature: tfxc.layers.DenseHead(5, temperature=temperature),
        lambda temperature: tfxc.losses.SoftmaxAtK(temperature=temperature),
        lambda calibration: tfxc.losses.GBCE(calibration),
        lambda smoothing: tfxc.samplers.Unigram(4, smoothing=smoothing),
        lambda smoothing: tfxc.samplers.InBatch(smoothing=smoothing),
        lambda power: tfxc.samplers.Unigram(4, power=power),
        lambda alpha: tfxc.samplers.Sphere(4, alpha=alpha),
        lambda nu: tfxc.samplers.RFF(4, nu=nu),
        lambda uniform_fraction: tfxc.samplers.LSH(4, uniform_fraction=uniform_fraction),
        lambda fraction: tfxc.samplers.HardNegatives(2, 2).set_hard_fraction(fraction),
        lambda fraction: tfxc.layers.UniformSparseHead(5, 2).rewire(fraction),
        lambda fraction: tfxc.callbacks.SparseEvolution(fraction),
        lambda growth: tfxc.callbacks.SamplerRefresh(50, growth),
        lambda share: tfxc.callbacks.SamplerRefresh("auto", share=share),
        lambda beta_1: tfxc.optimizers.LazyAdam(beta_1=beta_1),
        lambda beta_2: tfxc.optimizers.LazyAdam(beta_2=beta_2),
        lambda epsilon: tfxc.optimizers.LazyAdam(epsilon=epsilon),
        lambda epsilon: tfxc.optimizers.RowwiseAdagrad(epsilon=epsilon),
        lambda num_points: tfxc.metrics.propensities([1, 2], num_points),
        lambda a: tfxc.metrics.propensities([1, 2], 10, a=a),
        lambda memory: tfxc.layers.suggest_mach(10, 4, memory),
        lambda collision: tfxc.layers.suggest_mach(10, 4, 1e6, collision),
    ],
)
def test_a_number_that_is_none_is_named_wherever_it_is_given(named, value):
    (name,) = inspect.signature(named).parameters
    with pytest.raises(ValueError, match=f"^{name} must be a number, but got {value!r}"):
        named(value)


OTHER_PATHS = ["gs://bucket/run", Path("s3://bucket/run"), "hdfs://host/run", "C:\\run", Path("d:/run")]


@pytest.mark.parametrize("path", OTHER_PATHS)
def test_paths_of_other_storage_or_of_windows_are_refused(path, monkeypatch):
    mining = functools.partial(HardNegativeMining, num_examples=8)
    for makes in (local_path, BackupAndRestore, mining, Vocabulary(["a"]).save, Vocabulary.load):
        with pytest.raises(ValueError, match="run' is not a path of this machine.*/mnt/c/run .* under WSL"):
            makes(path)
    with pytest.raises(ValueError, match="is not a path of this machine"), scratch(path):
        pass
    monkeypatch.setattr("tfxc.arguments.os.name", "nt")
    if path in OTHER_PATHS[-2:]:
        assert local_path(path) is path
    else:
        with pytest.raises(ValueError, match="run' is not a path of this machine"):
            local_path(path)


@pytest.mark.parametrize("path", [None, 5, np.zeros(3), b"runs"])
def test_what_is_no_path_is_named(path):
    for makes in (BackupAndRestore, Vocabulary(["a"]).save, Vocabulary.load):
        with pytest.raises(ValueError, match=f"path must be .* but is of {type(path).__name__}"):
            makes(path)


def test_folders_of_this_machine_stay_as_given(tmp_path):
    for path in (tmp_path, str(tmp_path), "runs:1", "//runs"):
        assert local_path(path) is path


def test_counts():
    for value in (1, 5, np.int64(3), np.array(3), tf.constant(3, tf.int64), tf.constant(9)):
        require_count(value, "k", num_classes=5)
    require_count(10**12, "num_probes")
    for value in (2.5, 3.0, np.float32(3), tf.constant(2.5), True, "3", None, [3], np.array([3])):
        with pytest.raises(ValueError, match="k must be an int or an integer scalar tensor, but got "):
            require_count(value, "k", num_classes=5)
    for value in 0, 6:
        with pytest.raises(ValueError, match=rf"k must be an integer in \[1, 5\], but got {value}"):
            require_count(value, "k", num_classes=5)
    with pytest.raises(ValueError, match="num_probes must be an integer of at least 1, but got 0"):
        require_count(0, "num_probes")


def test_a_count_is_clamped_before_it_is_cast():
    for value in (3, np.int64(3), tf.constant(3, tf.uint8), np.array(3)):
        assert count_tensor(value, 5).dtype == tf.int32 and int(count_tensor(value, 5)) == 3
    for value in (2**70, tf.constant(2**31, tf.int64), np.array(2**32 + 1)):
        assert int(count_tensor(value, 5)) == 5


def test_seeds():
    for value in (0, -1, np.uint8(3), 2**63 - 1, -(2**63)):
        assert seed_int(value) == value and type(seed_int(value)) is int
    for value in (1.7, 3.0, True, "3", None, 2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"seed must be an integer in \[-2\^63, 2\^63\), but got "):
            seed_int(value)


def test_integers_keep_their_type():
    for values in ([1, 2], np.array([[3]], np.uint8), np.array([2**40]), []):
        found = integers(values, "ids")
        assert found.dtype.kind in "iu" and found.tolist() == np.asarray(values).tolist()
    for values in ([0.5], [True], ["1"], np.array(["2024"], "datetime64[Y]")):
        with pytest.raises(ValueError, match="ids must be integers, but are"):
            integers(values, "ids")


def test_positions_that_choose_nothing():
    assert positions([], 3, "index").tolist() == positions([False] * 3, 3, "index").tolist() == []
    assert positions([], 0, "index").dtype == np.int64
    with pytest.raises(ValueError, match=r"index must be integers in \[-3, 3\), but range from -4 to 0"):
        positions([0, -4], 3, "index")


def test_what_is_mapped_from_disk_stays_mapped(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(3))
    assert isinstance(integers(np.load(tmp_path / "ids.npy", mmap_mode="r"), "ids"), np.memmap)


@pytest.mark.parametrize(
    "index", [[1, 0, 2], [0, 1, 3], ["a", "b", "c"], pd.MultiIndex.from_tuples([(0,), (1,), (2,)])]
)
def test_a_pandas_index_that_is_not_that_of_the_class_ids_is_refused(index):
    numbers = pd.Series([5, 4, 3], index)
    with pytest.raises(ValueError, match=r"counts .* index is not 0, 1, 2, .*counts.reindex\(.*to_numpy"):
        by_class(numbers, "counts")
    assert by_class(numbers.reset_index(drop=True), "counts").dtype == np.float64
    assert by_class(numbers.to_numpy(), "counts").tolist() == by_class([5, 4, 3], "counts").tolist()


def test_counts_by_class_id_are_refused_with_the_way_to_a_list():
    with pytest.raises(ValueError, match=r"counts .* but are a Counter: pass .counts.get\(i, 0\) for i in"):
        by_class(collections.Counter([0, 2, 2]), "counts")


def test_lists_of_numbers_and_texts_are_tensors_and_those_of_arrays_stay():
    rows, array = [[1.0, 2.0], [3.0, 4.0]], np.zeros([2, 3])
    found = lists_as_tensors({"rows": rows, "both": (["tea", "milk"], [array, array]), "none": None})
    assert found["rows"].shape == (2, 2) and found["both"][0].numpy().tolist() == [b"tea", b"milk"]
    assert found["both"][1] == [array, array] and found["none"] is None
    assert lists_as_tensors(array) is array and lists_as_tensors("tea") == "tea"


@pytest.mark.parametrize(
    "call",
    [
        lambda own: tfxc.data.Sequences(own, [0, 2], Vocabulary("ab")),
        lambda own: tfxc.data.Sequences([0, 1], [0, 2], Vocabulary("ab"), times=own * 1.0),
        lambda own: Vocabulary("ab").decode(own),
        tfxc.data.Column,
        lambda own: tfxc.data.LabeledPoints(own[np.newaxis], [[1]]),
        lambda own: tfxc.data.LabeledPoints([[1]], own[np.newaxis]),
        lambda own: tfxc.metrics.propensities(own, 10),
        lambda own: tfxc.metrics.RecallAtK(1).update_state(own, [[0], [1]]),
        lambda own: tfxc.search.Attributes({"x": own}),
        as_array,
        weights_as_array,
        lambda own: plain_inputs({"x": own}),
    ],
)
def test_masked_values_are_refused(call):
    with pytest.raises(ValueError, match="hold masked values, 1 of 2: leave them out, or .* filled()"):
        call(np.ma.array([0, 1], mask=[False, True]))
