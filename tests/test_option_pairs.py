"""Every two options work together: what comes out is what the plain ones give, or a refusal names a remedy.

As a program it makes two logical CPU devices, for two replicas, runs all cases, or the quick ones without
"long", and prints what came of each.
"""

import contextlib
import functools
import itertools
import json
import random
import re
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from backup_checks import Stop
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features
from long_cases import long_after
from processes import Process

import tfxc
from tfxc._keras import IS_KERAS_3, keras

FACTORS = {
    "call": ("fit", "evaluate", "predict", "export", "resume", "change_classes"),
    "head": ("dense", "sparse", "mach", "encoded"),
    "labels": ("padded", "ragged", "sparse"),
    "steps": (1, 3),
    "replicas": (1, 2),
    "eager": (True, False),
    "policy": ("float32", "mixed_bfloat16"),
    "table": ("float32", "bfloat16"),
    "tied": (False, True),
    "clipnorm": (None, 1e6),
    "weights": (False, True),
    "last_batch": ("whole", "short"),
}
SEED = 609  # of a thousand, the one whose cases take least time
QUICK = 10  # of the cases, which have five in six of the pairs
PLAIN = {name: values[0] for name, values in FACTORS.items()}
GIVEN = "head", "table", "tied", "last_batch"  # of which the plain way is another model, or has other data
# What is refused, and the remedy that it names.
REFUSED = (
    ({"steps": 3, "replicas": 2}, "compile with steps_per_execution=1"),
    ({"call": "change_classes", "replicas": 2}, "load it outside the strategy's scope"),
    ({"table": "bfloat16", "tied": True, "replicas": 2}, 'make the table with dtype="float32"'),
)


def is_possible(case):
    """Whether nothing refuses the options, and the head is a DenseHead if its table is told of."""
    if any(options.items() <= case.items() for options, _ in REFUSED):
        return False
    is_dense = case.get("head", "dense") == "dense"
    return is_dense or (case.get("table", "float32") == "float32" and not case.get("tied", False))


def pairs_of(case):
    return set(itertools.combinations(((name, case[name]) for name in FACTORS if name in case), 2))


@functools.cache
def covering_cases(seed=SEED):
    """Cases with all pairs of values that are possible, and these pairs."""
    missing = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(FACTORS, 2)
        for a, b in itertools.product(FACTORS[one], FACTORS[other])
        if is_possible({one: a, other: b})
    }
    every, cases, order = frozenset(missing), [], sorted(missing, key=repr)
    random.Random(seed).shuffle(order)
    while missing:
        case = dict(next(pair for pair in order if pair in missing))
        for name in FACTORS:
            options = [{**case, name: value} for value in FACTORS[name] if name not in case]
            options = [option for option in options if is_possible(option)]
            case = max(options, key=lambda option: len(pairs_of(option) & missing), default=case)
        missing -= pairs_of(case)
        cases.append({name: case[name] for name in FACTORS})
    return cases, every


def cases():
    """Those that are run: all of them under Keras 3, some under tf-keras."""
    return covering_cases()[0][slice(None) if IS_KERAS_3 else slice(2, None, 5)]


def made(case):
    keras.mixed_precision.set_global_policy(case["policy"])
    keras.utils.set_random_seed(1)
    half = {"dtype": "bfloat16"} if case["tied"] and case["table"] == "bfloat16" else {}
    tied = {"tied_to": "items", "row_offset": 1} if case["tied"] else {}
    inputs = keras.Input((3,), dtype="int32", name="history")
    items = keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items", **half)(inputs)
    encoder = keras.Model(inputs, keras.layers.Dense(DIM)(keras.layers.Flatten()(items)))

    head = {
        "dense": lambda: tfxc.layers.DenseHead(NUM_CLASSES, table_dtype=case["table"], **tied),
        "sparse": lambda: tfxc.layers.UniformSparseHead(NUM_CLASSES, fan_in=4, seed=1),
        "mach": lambda: tfxc.layers.MACHHead(NUM_CLASSES, 8, 3, seed=1),
        "encoded": lambda: tfxc.layers.EncodedHead(dense_encoder(), features(NUM_CLASSES, 5)),
    }[case["head"]]()
    names = [f"item {i}" for i in range(NUM_CLASSES)]
    model = tfxc.ExtremeClassifier(encoder, head, k=5, class_names=names)
    rate = 0.1 if case["head"] == "encoded" else 3.0
    optimizer = tfxc.optimizers.LazySGD(rate, clipnorm=case["clipnorm"], seed=1)
    loss, metric = tfxc.losses.SoftmaxCrossentropy(), tfxc.metrics.RecallAtK(5)
    options = {"run_eagerly": case["eager"], "steps_per_execution": case["steps"]}
    model.compile(optimizer, loss=loss, weighted_metrics=[metric], **options)
    num_rows = 16 if case["last_batch"] == "whole" else 13
    x = np.random.default_rng(0).integers(0, NUM_CLASSES + 1, (num_rows, 3))
    ragged = tf.ragged.constant([[i] if i % 3 else [i, i + 1] for i in range(len(x))])
    forms = {"padded": lambda: ragged.to_tensor(-1), "ragged": lambda: ragged, "sparse": ragged.to_sparse}
    data = x, forms[case["labels"]](), *([np.ones(len(x), np.float32)] if case["weights"] else [])
    return model, x, tf.data.Dataset.from_tensor_slices(data).batch(8)


@functools.cache
def two_replicas():
    """One strategy for all cases: the collective operations of a second one would meet those of the first."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def outcome(case):
    """What a case gives: losses, or names of the best classes."""
    scope = two_replicas().scope if case["replicas"] == 2 else contextlib.nullcontext
    with scope():
        model, x, data = made(case)
    call, folder = case["call"], tempfile.mkdtemp()
    if call == "resume":
        backup = tfxc.callbacks.BackupAndRestore(folder)
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data, epochs=2, callbacks=[backup, Stop(3)], verbose=0)
        with scope():
            model, x, data = made(case)
        backup = tfxc.callbacks.BackupAndRestore(folder)
        return model.fit(data, epochs=2, callbacks=[backup], verbose=0).history["loss"]
    if call in ("fit", "change_classes", "predict trained"):
        losses = model.fit(data, epochs=2 if call == "fit" else 1, verbose=0).history["loss"]
    if call == "fit":
        return losses
    if call == "evaluate":
        return model.evaluate(data, verbose=0)
    if call == "change_classes" and case["head"] != "mach":  # whose ids have to stay
        model = tfxc.change_classes(model, model.class_names[::-1])
        x = np.where(x, len(model.class_names) + 1 - x, 0)  # the rows of items move, too
    if call == "export":
        model.export(f"{folder}/1")
        served = tf.saved_model.load(f"{folder}/1")
        return np.char.decode(served.serve(tf.constant(x, tf.int32))["names"].numpy().astype(bytes)).tolist()
    ids = model.predict(tf.data.Dataset.from_tensor_slices(x).batch(8), verbose=0)["ids"]
    return np.asarray(model.class_names)[ids].tolist()


def plain(case):
    alike = {"export": "predict", "change_classes": "predict trained", "resume": "fit"}
    return {**PLAIN, **{name: case[name] for name in GIVEN}, "call": alike.get(case["call"], case["call"])}


def attempted(case):
    try:
        return outcome(case)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


@pytest.fixture(scope="module")
def results(with_long_tests):
    process = Process("test_option_pairs.py", *["long"] * with_long_tests)
    return json.loads(process.output().splitlines()[-1])


def test_every_pair_of_options_is_among_the_cases():
    covering, every = covering_cases()
    assert set().union(*map(pairs_of, covering)) >= every and all(map(is_possible, covering))
    assert len(covering) < 40


@pytest.mark.both_keras
@pytest.mark.traced
@pytest.mark.parametrize("number", long_after(QUICK, *range(len(cases()))))
def test_the_outcome_is_that_of_the_plain_way(number, results):
    case, found = cases()[number], results["found"][number]
    assert "error" not in found, (case, found)
    wanted = results["wanted"][number]
    is_half = "mixed_bfloat16" in case.values() or case["table"] == "bfloat16"
    # Each replica takes the mean of its own examples, as Keras does: of 5, the mean of 3 and that of 2.
    is_uneven = case["replicas"] == 2 and case["last_batch"] == "short"
    error = 0.03 if is_half else 2e-3 if is_uneven else 1e-4
    if isinstance(found[0], list):
        share = np.mean([len({*one} & {*other}) / 5 for one, other in zip(found, wanted, strict=True)])
        assert share > (0.7 if is_half else 0.99), (case, share)
    else:
        np.testing.assert_allclose(found, wanted, rtol=error, err_msg=str(case))


def test_what_is_refused_names_a_remedy(results):
    for (_, remedy), found in zip(REFUSED, results["refused"], strict=True):
        assert "error" in found and re.search(remedy, found["error"]), found


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    run = cases()[: None if "long" in sys.argv else QUICK]
    wanted = {json.dumps(own): own for own in map(plain, run)}
    wanted = {key: attempted(own) for key, own in wanted.items()}
    results = {
        "found": [attempted(case) for case in run],
        "wanted": [wanted[json.dumps(plain(case))] for case in run],
        "refused": [attempted({**PLAIN, **options}) for options, _ in REFUSED if IS_KERAS_3],
    }
    print(json.dumps(results))
