"""Trains on one and on two logical CPU devices, and prints as JSON what came of it.

For test_distribution.py, and less of it without "long".

A program of its own, because devices are configured before TensorFlow starts, and because the collective
operations of a second strategy in one process would meet those of the first.
"""

import json
import sys
import tempfile
from functools import partial

import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from classifier_checks import DIM, NUM_CLASSES, dense_encoder, learnable, make_model  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402
from tfxc._keras.weights import tf_variable  # noqa: E402
from tfxc.samplers import MIDX, InBatch, Step, Unigram  # noqa: E402

RATE, BATCH = 0.5, 16
ONE, TWO = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def plain():
    head = tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True)
    model = keras.Sequential([*dense_encoder().layers, head])
    model.build((None, DIM))
    metrics = [tfxc.metrics.RecallAtK(3), tfxc.metrics.CoverageAtK(3, NUM_CLASSES)]
    model.compile(tfxc.optimizers.LazySGD(RATE), tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    return model


def summed():
    return make_model(
        loss=tfxc.losses.SoftmaxCrossentropy(reduction="sum"), optimizer=tfxc.optimizers.LazySGD(RATE / BATCH)
    )


def sampled():
    sampler = tfxc.samplers.Mixture([MIDX(200, num_codewords=4, seed=3), InBatch(4, seed=3)])
    descent = tfxc.optimizers.LazySGD(RATE, weight_decay=0.01)  # its steps scale with the gradient
    return make_model(sampler, optimizer=descent)


class HeadLoss(keras.Model):
    def __init__(self):
        super().__init__()
        head = tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True)  # first, as everywhere: seeds go in order
        self.encoder = dense_encoder()
        self.head = head
        self.head.build((None, DIM))
        self.total = tfxc.losses.SoftmaxCrossentropy(reduction="sum")

    def call(self, inputs):
        return self.encoder(inputs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tfxc.head_loss(self.head, self.total, y_pred, y)


def own():
    model = HeadLoss()
    model.compile(tfxc.optimizers.LazySGD(RATE / BATCH))
    return model


def trained(make, strategy, epochs):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make()
    model.run_eagerly = strategy is ONE
    x, y = learnable(64)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    callbacks = [tfxc.callbacks.SamplerRefresh()] if getattr(model, "sampler", None) else []
    history = model.fit(data, epochs=epochs, callbacks=callbacks, verbose=0).history
    result = {"losses": history.get("loss"), "recall": history.get("recall_at_3")}
    result["squares"] = [float(tf.reduce_sum(tf.square(tf_variable(w)))) for w in model.trainable_weights]
    if hasattr(model, "head"):
        result["exact"] = float(tfxc.losses.SoftmaxCrossentropy()(y, model.head(model.encoder(x))))
    return result


def draws_of_replicas():
    with TWO.scope():
        sampler = tfxc.samplers.Uniform(20, seed=1)
        sampler.build((NUM_CLASSES, DIM))

    def draw():
        return sampler.sample(Step(tf.zeros([1, DIM]), tf.zeros([1, 1], tf.int32))).ids[0]

    step = tf.function(lambda: TWO.run(draw))
    draws = [[part.numpy().tolist() for part in TWO.experimental_local_results(step())] for _ in range(2)]
    return {"draws": draws, "counter": int(tf_variable(sampler.counter).numpy())}


def counts_of_replicas():
    results = {}
    for kind in (InBatch, Unigram):
        with TWO.scope():
            sampler = kind(4, seed=1)
            sampler.build((5, DIM))

        def count(sampler=sampler):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            labels = tf.where(replica == 0, [[0, 1], [0, -1]], [[3, 3], [3, 1]])
            sampler.sample(Step(tf.zeros([2, DIM]), labels))
            return sampler.running_counts.log_probs(tf.range(5))

        step = tf.function(lambda count=count: TWO.run(count))
        step()
        parts = TWO.experimental_local_results(step())
        occurrences = tf_variable(sampler.running_counts.occurrences)
        results[kind.__name__] = {
            "occurrences": occurrences.numpy().tolist(),
            "copies": [part.numpy().tolist() for part in TWO.experimental_local_results(occurrences)],
            "total": int(tf_variable(sampler.running_counts.total).numpy()),
            "probs": [tf.exp(part).numpy().tolist() for part in parts],
        }
        if kind is Unigram:
            sampler.refresh(None)
            every = sampler.log_prob(tf.zeros([1, DIM]), tf.range(5)[tf.newaxis])
            results["refreshed"] = tf.exp(every)[0].numpy().tolist()
    return {"counts": results}


def refreshed_replicas():
    kinds = [getattr(tfxc.samplers, name) for name in ("LSH", "Sphere", "RFF", "Softmax")]
    kinds += partial(MIDX, num_codewords=4), partial(tfxc.samplers.SearchedHardNegatives, 3)
    results = {}
    with TWO.scope():
        head = tfxc.layers.DenseHead(NUM_CLASSES)
        head.build((None, DIM))
        for kind in kinds:
            sampler = kind(4, seed=1)
            sampler.build((NUM_CLASSES, DIM))
            sampler.refresh(head)
            copies = [TWO.experimental_local_results(tf_variable(own)) for own in sampler.weights]
            apart = [np.max(np.abs(np.subtract(*(part.numpy() for part in own)))) for own in copies]
            results[type(sampler).__name__] = float(max(apart))
    return {"refreshed": results}


def kept_by_replicas():
    keras.utils.set_random_seed(1)
    x, y = learnable(64)

    def made():
        sampler, optimizer = MIDX(8, num_codewords=4, seed=1), tfxc.optimizers.LazyAdam(0.1)
        return make_model(sampler, optimizer=optimizer, run_eagerly=True)

    with TWO.scope():
        model, restored = made(), made()
    model.fit(x, y, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        with TWO.scope():
            loaded = keras.models.load_model(f"{folder}/model.keras")
        loaded.run_eagerly = True
        tfxc.cluster.Checkpoint(model, folder).save(1)
        tfxc.cluster.Checkpoint(restored, folder).restore()
    one_more = [own.fit(x, y, shuffle=False, verbose=0).history["loss"] for own in (model, loaded, restored)]
    return {"kept": dict(zip(("model", "file", "checkpoint"), one_more, strict=True))}


def optimizers_of_parts():
    x, y = learnable(64)
    losses = []
    for strategy in (ONE, TWO):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = make_model()
            parts = tfxc.optimizers.LazyAdam(0.01), (tfxc.optimizers.LazySGD(0.1), model.head)
            model.compile(tfxc.optimizers.MultiOptimizer(*parts), loss=tfxc.losses.SoftmaxCrossentropy())
        losses.append(model.fit(x, y, epochs=2, shuffle=False, verbose=0).history["loss"])
    return {"parts": losses}


def uneven():
    """The losses of 13 examples by 4, of which one device gets 7, without training."""
    x, y = learnable(64)
    data = tf.data.Dataset.from_tensor_slices((x[:13], y[:13])).batch(4)
    losses = []
    for strategy in (ONE, TWO):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = make_model(optimizer=tfxc.optimizers.LazySGD(0.0), metrics=[tfxc.metrics.RecallAtK(3)])
        losses.append(model.fit(data, epochs=2, verbose=0).history["loss"])
    return {"uneven": losses}


def main(is_long):
    results = {"one": trained(plain, ONE, 2), "plain": trained(plain, TWO, 2)}
    results |= draws_of_replicas() | counts_of_replicas() | kept_by_replicas()
    if is_long:
        results |= {make.__name__: trained(make, TWO, 2) for make in (summed, own)}
        results["sampled"] = [trained(sampled, ONE, 4), trained(sampled, TWO, 4)]
        results |= refreshed_replicas() | optimizers_of_parts() | uneven()
    print(json.dumps(results))


if __name__ == "__main__":
    main("long" in sys.argv[1:])
