from pathlib import Path

import numpy as np
from classifier_checks import dense_encoder, features

import tfxc

PACKAGE = Path(tfxc.__file__).parent


def replaced_methods(item):
    """The names of methods of a class for which an object has a function of the package's own."""
    return [
        name
        for name, value in vars(item).items()
        if callable(getattr(type(item), name, None))
        and str(PACKAGE) in getattr(getattr(value, "__code__", None), "co_filename", "")
    ]


def test_no_object_has_a_method_of_its_own(tmp_path):
    x = features(64)
    head = tfxc.layers.EncodedHead(dense_encoder(4), x[:20])
    sampler = tfxc.samplers.Mixture([tfxc.samplers.LearnedMIDX(4, num_codewords=2), tfxc.samplers.InBatch()])
    names = [f"class {i}" for i in range(20)]
    model = tfxc.ExtremeClassifier(dense_encoder(4), head, sampler, k=3, class_names=names)
    model.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.SoftmaxCrossentropy())
    callbacks = [
        tfxc.callbacks.SamplerRefresh(),
        tfxc.callbacks.SamplerDiagnostics(x[:8], np.arange(8)),
        tfxc.callbacks.BackupAndRestore(tmp_path / "backup"),
    ]
    model.fit(x, np.arange(64) % 20, batch_size=64, verbose=0, callbacks=callbacks)
    model.predict(x[:4], verbose=0)
    model.export(tmp_path / "served")
    for item in (model, head, sampler, *sampler.samplers, model.optimizer, *callbacks):
        assert replaced_methods(item) == [], item
    consumed = tfxc.ExtremeClassifier(dense_encoder(4), tfxc.layers.DenseHead(3), class_names=["a", "b", "c"])
    consumed.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.SoftmaxCrossentropy())
    new = tfxc.change_classes(consumed, ["b", "c", "d"])
    for item in (consumed, consumed.head, new, new.head):
        assert replaced_methods(item) == [], item


def test_a_replaced_method_is_found():
    head = tfxc.layers.DenseHead(3)
    assert replaced_methods(head) == []
    head.score = tfxc.layers.Head.score
    assert replaced_methods(head) == ["score"]
