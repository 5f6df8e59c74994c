"""All classes without a [B, L] tensor: exact softmax training steps and exact top-k, beside the plain way.

    python benchmarks/all_classes.py [--classes 1000000]

B = 512, D = 64. "Plain" materialises the logits: Keras's Dense softmax, and matmul + ``tf.math.top_k``.
"""

import argparse

import tensorflow as tf
from _measure import in_turns, peak_memory
from _tables import add_results, keep, show
from step_time import BATCH, DIM, batch, encoder, keras_dense, step_of

import tfxc

K = 10


def blockwise(num_classes):
    model = tfxc.ExtremeClassifier(encoder(), head=tfxc.layers.DenseHead(num_classes))
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    model.optimizer.build(model.trainable_variables)
    return model


def train_some_steps(set_up_done, make, num_classes):
    model = make(num_classes)
    step = step_of(model, num_classes)
    model.optimizer.build(model.trainable_variables)
    set_up_done()
    for _ in range(3):
        step()


def rank(num_classes):
    """Functions (ours, plain) that rank one batch over the same table."""
    query, _ = batch(num_classes)
    head = tfxc.layers.DenseHead(num_classes)
    head.build((None, DIM))
    table = tf.Variable(head.class_vectors(0, num_classes))
    ours = tf.function(lambda: head.top_k(query, K))
    plain = tf.function(lambda: tf.math.top_k(tf.matmul(query, table, transpose_b=True), K))
    return ours, plain


def rank_some(set_up_done, which, num_classes):
    task = rank(num_classes)[which]
    set_up_done()
    for _ in range(3):
        task()


def softmax_steps(num_classes):
    makers = {"Keras dense softmax, Adam": keras_dense, "tfxc blockwise softmax, LazyAdam": blockwise}
    steps = {name: step_of(make(num_classes), num_classes) for name, make in makers.items()}
    seconds = in_turns(steps, rounds=5)
    gradient = num_classes * DIM * 4 / 2**20
    rows = []
    for name, make in makers.items():
        beyond = peak_memory(train_some_steps, make, num_classes) - gradient
        speed = seconds["Keras dense softmax, Adam"] / seconds[name]
        rows.append([name, seconds[name] * 1e3, speed, round(beyond)])
    columns = ["step", "ms", "speed", "peak MB beyond weights, slots and one table gradient"]
    show(f"One exact softmax step at {num_classes:,} classes, B = {BATCH}", rows, columns)


def rankings(num_classes):
    ours, plain = rank(num_classes)
    (scores, ids), (plain_scores, plain_ids) = ours(), plain()
    tf.debugging.assert_near(scores, plain_scores, atol=1e-5)
    same = tf.reduce_mean(tf.cast(ids == plain_ids, tf.float32))
    seconds = in_turns({"matmul + tf.math.top_k": plain, "tfxc top_k": ours}, rounds=7)
    rows = []
    for which, (name, time) in zip((1, 0), seconds.items(), strict=True):
        peak = peak_memory(rank_some, which, num_classes)
        rows.append([name, time * 1e3, seconds["matmul + tf.math.top_k"] / time, round(peak)])
    show(f"Top {K} of {num_classes:,} for {BATCH} queries", rows, ["ranking", "ms", "speed", "peak MB"])
    print(f"\nthe same ids: {float(same):.4f} (others are ties within rounding)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    add_results(parser)
    args = parser.parse_args()
    softmax_steps(args.classes)
    rankings(args.classes)
    keep(args.results)


if __name__ == "__main__":
    main()
