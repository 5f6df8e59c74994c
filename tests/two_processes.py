"""Trains in one of two processes, or alone without TF_CONFIG; test_distribution.py reads what it prints."""

import json
import os
import random

import tensorflow as tf
from classifier_checks import NUM_CLASSES, dense_encoder, learnable, make_model

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable

TOGETHER = "TF_CONFIG" in os.environ
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if TOGETHER else tf.distribute.get_strategy()


def batches():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(learnable(64)).batch(16).with_options(options)


def weights_of(*layers):
    return [tf_variable(weight).numpy().tolist() for layer in layers for weight in layer.trainable_weights]


def fitted():
    keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        model = make_model()
    try:
        model.fit(batches(), epochs=2, verbose=0)
    except ValueError as error:
        return str(error)
    return weights_of(model)


def sampled():
    keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        model = make_model(tfxc.samplers.MIDX(20, num_codewords=4, seed=1))
    x, y = learnable(64)
    losses = [float(tfxc.losses.SoftmaxCrossentropy()(y, model.head(model.encoder(x))))]
    model.fit(batches(), epochs=5, verbose=0)
    return [*losses, float(tfxc.losses.SoftmaxCrossentropy()(y, model.head(model.encoder(x))))]


def looped():
    keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        encoder, head = dense_encoder(), tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True)
        head.build((None, encoder.output_shape[-1]))
        optimizer = tfxc.optimizers.LazyAdam(0.05)
        optimizer.build([*encoder.trainable_variables, *head.trainable_variables])
    loss = tfxc.losses.SoftmaxCrossentropy()

    def step(x, y):
        variables = [*encoder.trainable_variables, *head.trainable_variables]
        with tf.GradientTape() as tape:
            value = tfxc.head_loss(head, loss, encoder(x), y)
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    run = tf.function(lambda x, y: STRATEGY.run(step, args=(x, y)))
    data = STRATEGY.experimental_distribute_dataset(batches()) if TOGETHER else batches()
    for _ in range(2):
        for x, y in data:
            run(x, y)
    return weights_of(encoder, head)


def rewired():
    random.seed(os.getpid())
    with STRATEGY.scope():
        head = tfxc.layers.UniformSparseHead(NUM_CLASSES, 4)
        head.build((None, 64))
    head.rewire(0.5)
    return tf_variable(head.indices).numpy().tolist()


if __name__ == "__main__":
    results = {"fit": fitted(), "loop": looped(), "rewired": rewired()}
    if not isinstance(results["fit"], str):
        results["sampled"] = sampled()
    print(json.dumps(results), flush=True)
