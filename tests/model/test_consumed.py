"""A model that gave its weights away says so, whatever it is asked."""

import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, dense_encoder, features, learnable, make_model

import tfxc
from tfxc import layers, losses, optimizers
from tfxc.model.consumed import consume

NAMES = [f"item {i}" for i in range(NUM_CLASSES)]
MESSAGE = r"change_classes consumed this model; use what it returned: model = tfxc.change_classes\(model"


@pytest.mark.both_keras
def test_after_change_classes_each_use_of_the_old_model_says_so(tmp_path):
    model = tfxc.ExtremeClassifier(dense_encoder(), layers.DenseHead(NUM_CLASSES), class_names=NAMES)
    model.compile(optimizers.LazyAdam(0.05), loss=losses.SoftmaxCrossentropy())
    x, y = learnable(8)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    checkpoint = tf.train.Checkpoint(model=model)
    good = (tmp_path / "model.keras").read_bytes()
    changed = tfxc.change_classes(model, NAMES[3:])
    uses = {
        "fit": lambda: model.fit(x, y, verbose=0),
        "evaluate": lambda: model.evaluate(x, y, verbose=0),
        "predict": lambda: model.predict(x, verbose=0),
        "train_on_batch": lambda: model.train_on_batch(x, y),
        "predict_on_batch": lambda: model.predict_on_batch(x),
        "call": lambda: model(x),
        "rank": lambda: model.rank(x, 3),
        "get_weights": model.get_weights,
        "set_weights": lambda: model.set_weights(changed.get_weights()),
        "compile": lambda: model.compile("sgd", loss=losses.SoftmaxCrossentropy()),
        "save": lambda: model.save(tmp_path / "model.keras"),
        "save_weights": lambda: model.save_weights(tmp_path / "model.weights.h5"),
        "export": lambda: model.export(tmp_path / "served"),
        "memory_report": lambda: tfxc.memory_report(model),
        "change_classes": lambda: tfxc.change_classes(model, NAMES),
        "checkpoint": lambda: checkpoint.write(tmp_path / "checkpoint"),
    }
    for use in uses.values():
        with pytest.raises(ValueError, match=MESSAGE):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
    assert (tmp_path / "model.keras").read_bytes() == good
    changed.fit(x, y % changed.head.num_classes, verbose=0)
    changed.save(tmp_path / "model.keras")


def test_another_model_goes_on():
    model, other = make_model(), make_model()
    consume(model)
    assert other.predict(features(2), verbose=0)["ids"].shape == (2, 5)
