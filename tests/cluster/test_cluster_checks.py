import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import keras
from tfxc.cluster import checks
from tfxc.cluster.checks import check_data, require_one_machine


def test_a_dataset_whose_order_python_tells_is_refused():
    def batches(seed):
        return tfxc.data.row_batches(8, 4, lambda rows: (tf.zeros([4, 2]), rows), seed=seed)

    with pytest.raises(ValueError, match="Make it with seed=None"):
        check_data(batches(0).repeat())
    for data in (batches(None).repeat(), [1, 2], tf.data.Dataset.range(3)):
        check_data(data)


def test_a_model_on_servers_names_what_keeps_it(monkeypatch):
    require_one_machine(keras.Sequential(), "and do not change")
    monkeypatch.setattr(checks, "is_on_servers", lambda model: True)
    with pytest.raises(ValueError, match="servers, and do not change. .*tfxc.cluster.Checkpoint.*export"):
        require_one_machine(keras.Sequential(), "and do not change")
