"""Heads and samplers as a model asks them; on servers, see test_servers.py."""

import importlib

import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import keras
from tfxc.cluster.place import check_data, check_placed, place, require_one_machine
from tfxc.cluster.sharded_head import ShardedHead
from tfxc.cluster.sharded_sampler import ShardedMIDX, ShardedSampler
from tfxc.layers import DenseHead, MACHHead, UniformSparseHead
from tfxc.samplers import MIDX, InBatch, LearnedMIDX, Mixture, Uniform

MODULE = importlib.import_module("tfxc.cluster.place")  # the package has a function of that name


@pytest.fixture
def servers(monkeypatch):
    monkeypatch.setattr(MODULE, "with_servers", lambda: True)


def test_on_one_machine_everything_stays():
    head, sampler = DenseHead(10), MIDX(2)
    assert place(head, sampler) == (head, sampler)
    check_placed(head, sampler)


def test_a_head_and_samplers_that_are_cut_are_wrapped(servers):
    head, sampler = place(DenseHead(10), Mixture([Uniform(2), MIDX(2), InBatch()]))
    assert type(head) is ShardedHead
    assert [type(own) for own in sampler.samplers] == [ShardedSampler, ShardedMIDX, InBatch]
    again = place(head, sampler)
    assert again[0] is head and [*map(id, again[1].samplers)] == [*map(id, sampler.samplers)]
    check_placed(head, sampler)


@pytest.mark.parametrize("sampler", [None, Mixture([Uniform(2), InBatch()])], ids=["none", "mixture"])
def test_a_head_or_sampler_that_is_not_wrapped_is_refused(servers, sampler):
    heads = [DenseHead(10)] if sampler is None else [DenseHead(10), place(DenseHead(10), None)[0]]
    for head in heads:
        with pytest.raises(ValueError, match="head, sampler = tfxc.cluster.place"):
            check_placed(head, sampler)


@pytest.mark.parametrize(
    ("head", "sampler", "remedy"),
    [
        (MACHHead(10, num_buckets=4, num_repetitions=2), None, "Take DenseHead"),
        (UniformSparseHead(10, fan_in=2, group_size=4), None, "group_size=1"),
        (DenseHead(10, table_dtype="bfloat16"), None, "Parameter servers.*Leave it out"),
        (DenseHead(10), tfxc.samplers.LSH(2), "Take one of"),
        (DenseHead(10), LearnedMIDX(2), "LearnedMIDX does not train"),
    ],
    ids=["head", "groups", "bfloat16", "sampler", "learned"],
)
def test_what_cannot_work_is_refused_with_a_remedy(servers, head, sampler, remedy):
    with pytest.raises(ValueError, match=remedy):
        place(head, sampler)


def test_a_dataset_whose_order_python_tells_is_refused():
    def batches(seed):
        return tfxc.data.row_batches(8, 4, lambda rows: (tf.zeros([4, 2]), rows), seed=seed)

    with pytest.raises(ValueError, match="Make it with seed=None"):
        check_data(batches(0).repeat())
    for data in (batches(None).repeat(), [1, 2], tf.data.Dataset.range(3)):
        check_data(data)


def test_a_model_on_servers_names_what_keeps_it(monkeypatch):
    require_one_machine(keras.Sequential(), "and do not change")
    monkeypatch.setattr(MODULE, "is_on_servers", lambda model: True)
    with pytest.raises(ValueError, match="servers, and do not change. .*tfxc.cluster.Checkpoint.*export"):
        require_one_machine(keras.Sequential(), "and do not change")
