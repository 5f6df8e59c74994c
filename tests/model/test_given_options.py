"""Options of Keras's that a classifier does not take: what each error says to do instead."""

import numpy as np
import pytest
from classifier_checks import NUM_CLASSES, features, make_model

from tfxc._keras import IS_KERAS_3, keras
from tfxc.losses import SoftmaxCrossentropy
from tfxc.metrics import CoverageAtK, NDCGAtK, PSPAtK
from tfxc.samplers import Uniform


def test_xla_is_switched_off_with_a_warning():
    with pytest.warns(UserWarning, match="jit_compile=True has no effect"):
        model = make_model(Uniform(4), jit_compile=True)
    model.fit(features(4), np.arange(4), verbose=0)


def test_a_model_that_refused_an_optimizer_is_not_trained_by_it():
    model = make_model(Uniform(4))
    with pytest.raises(ValueError, match="scales the loss, as the mixed_float16 policy has it"):
        model.compile(keras.optimizers.SGD(1.0, loss_scale_factor=128.0), loss=SoftmaxCrossentropy())
    with pytest.raises(ValueError, match="call compile"):
        model.fit(features(4), np.arange(4), verbose=0)


@pytest.mark.both_keras
def test_class_weights_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match=r"sample_weight=weights\[labels\]"):  # the tenth argument
        model.fit(features(4), np.arange(4), 4, 1, 0, None, 0.0, None, True, {0: 2.0})
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=r"sample_weight=weights\[labels\]"):
            train(features(4), np.arange(4), class_weight={0: 2.0})


def test_metrics_that_do_not_take_ranked_ids_are_refused():
    model = make_model()
    for metric in ("accuracy", keras.metrics.AUC()):
        for metrics in (metric, [metric]):
            with pytest.raises(
                ValueError, match=r"metrics must be of tfxc\.metrics.* got .*(accur|AUC).*PrecisionAtK\(1\)"
            ):
                model.compile("sgd", loss=SoftmaxCrossentropy(), metrics=metrics)
    for name in ("metrics", "weighted_metrics"):
        with pytest.raises(ValueError, match=rf"{name} must be a list, \[NDCGAtK\(10\)\], but got .'ids'"):
            model.compile("sgd", loss=SoftmaxCrossentropy(), **{name: {"ids": NDCGAtK(5)}})


@pytest.mark.both_keras
@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_metrics_of_other_classes_are_refused(argument):
    for metric in (CoverageAtK(5, num_classes=40), PSPAtK(3, np.full(NUM_CLASSES + 1, 0.5))):
        with pytest.raises(
            ValueError,
            match=rf"{metric.name} is made for {metric.num_classes} classes, but the head has {NUM_CLASSES}",
        ):
            make_model().compile("adam", SoftmaxCrossentropy(), **{argument: [metric]})
    make_model(metrics=[CoverageAtK(5, num_classes=NUM_CLASSES), PSPAtK(3, np.full(NUM_CLASSES, 0.5))])


@pytest.mark.both_keras
@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has none of them")
def test_legacy_optimizers_are_refused():
    with pytest.raises(
        ValueError, match=r"tfxc\.optimizers, such as LazyAdam\(1e-3\).*but got Adam of .*legacy"
    ):
        make_model(optimizer=keras.optimizers.legacy.Adam())


def test_loss_weights_are_refused():
    for given in (3.0, [0.5]):
        with pytest.raises(ValueError, match=r"loss_weights .*sample_weight=.*head_loss"):
            make_model(loss_weights=given)
