"""All classes without a [B, L] tensor: exact training steps and exact top-k, compared with the plain way.

    python benchmarks/all_classes.py [--classes 1000000]

B = 512, D = 64. "Plain" materialises the logits: Keras's Dense layer with the same loss, with one-hot labels
where the loss takes several labels, and matmul + ``tf.math.top_k``. Times are also given as multiples of the
time of the products alone, at the rate of a large square ``tf.matmul`` of the same run: four products a step
(logits, logits again, both gradients), one a ranking.

Steps with ``filter_below`` use vectors like those of a trained model: clusters of 100 classes, each class a
centre of length 4 plus noise of length 3; a query is its label's vector plus noise of length 3. Ids are in
the order of clusters, as in a catalogue ordered by category, or random. The table shows the probability that
the filter leaves out beside the times.
"""

import argparse
from time import perf_counter

import numpy as np
import tensorflow as tf
from _measure import in_turns, peak_memory
from _tables import add_results, keep, show
from step_time import BATCH, DIM, batch, encoder, keras_dense, step_of

import tfxc
from tfxc._keras import keras
from tfxc.ops.dense_scan import left_by_filter

K = 10
FILTER = 2**-12
NUM_EVALUATED = 100_000
KERAS, MATMUL = "Keras dense softmax, Adam", "matmul + tf.math.top_k"
SQUARE = 4096
LOSSES = {
    "softmax": tfxc.losses.SoftmaxCrossentropy,
    "binary cross-entropy": tfxc.losses.BinaryCrossentropy,
    "squared hinge": tfxc.losses.SquaredHinge,
}


def of_one_hot(loss, **options):
    """A loss of ids, from a loss of Keras that needs a number for every class."""

    def of_ids(labels, logits):
        ids = tf.cast(tf.reshape(labels, [-1]), tf.int32)  # Keras casts labels to float
        return loss(tf.one_hot(ids, logits.shape[-1]), logits, **options)

    return of_ids


KERAS_LOSSES = {
    "softmax": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "binary cross-entropy": of_one_hot(keras.losses.binary_crossentropy, from_logits=True),
    "squared hinge": of_one_hot(keras.losses.squared_hinge),
}


class Plain:
    """Makes Keras's dense model with a loss; a class can be pickled for another process."""

    def __init__(self, loss):
        self.loss = loss

    def __call__(self, num_classes):
        model = keras_dense(num_classes)
        model.compile("adam", loss=KERAS_LOSSES[self.loss])
        return model


class Exact:
    """Makes a model of all classes with a loss; a class can be pickled for another process."""

    def __init__(self, loss, **options):
        self.loss, self.options = loss, options

    def __call__(self, num_classes):
        model = tfxc.ExtremeClassifier(encoder(), head=tfxc.layers.DenseHead(num_classes))
        model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=LOSSES[self.loss](**self.options))
        model.optimizer.build(model.trainable_variables)
        return model


def square_product():
    """A function that multiplies two square matrices, to measure the rate of products on this machine."""
    matrix = tf.random.normal([SQUARE, SQUARE])
    return tf.function(lambda: tf.reduce_max(tf.matmul(matrix, matrix)))


def times_the_products(seconds, num_products, num_queries, num_classes, square_seconds):
    rate = 2 * SQUARE**3 / square_seconds
    return seconds * rate / (num_products * 2 * num_queries * num_classes * DIM)


def train_some_steps(set_up_done, make, num_classes):
    model = make(num_classes)
    step = step_of(model, num_classes)
    model.optimizer.build(model.trainable_variables)
    for slot in model.optimizer.variables:
        slot.assign(tf.zeros_like(slot))  # zeros take no memory until they are written
    set_up_done()
    for _ in range(3):
        step()


def rank(num_classes, num_queries):
    """Functions (ours, plain) that rank queries over the same table."""
    query = batch(num_classes)[0][:num_queries]
    head = tfxc.layers.DenseHead(num_classes)
    head.build((None, DIM))
    table = tf.Variable(head.class_vectors(0, num_classes))
    ours = tf.function(lambda: head.top_k(query, K))
    plain = tf.function(lambda: tf.math.top_k(tf.matmul(query, table, transpose_b=True), K))
    return ours, plain


def rank_some(set_up_done, which, num_classes):
    task = rank(num_classes, BATCH)[which]
    set_up_done()
    for _ in range(3):
        task()


def training_steps(title, num_classes, peers):
    """``peers`` maps a loss to the loss whose Keras step it is compared with."""
    makers = {}
    for loss, peer in peers.items():
        makers[f"Keras dense {peer}, Adam"], makers[f"tfxc {loss}, LazyAdam"] = Plain(peer), Exact(loss)
    steps = {name: step_of(make(num_classes), num_classes) for name, make in makers.items()}
    seconds = in_turns({**steps, "square": square_product()}, rounds=5)
    gradient = num_classes * DIM * 4 / 2**20
    rows = []
    for name, make in makers.items():
        beyond = peak_memory(train_some_steps, make, num_classes) - gradient
        products = times_the_products(seconds[name], 4, BATCH, num_classes, seconds["square"])
        speed = seconds[f"Keras dense {peers[make.loss]}, Adam"] / seconds[name]
        rows.append([name, seconds[name] * 1e3, speed, products, round(beyond)])
    columns = [
        "step",
        "ms",
        "speed",
        "x its products",
        "peak MB beyond weights, slots and one table gradient",
    ]
    show(f"{title} at {num_classes:,} classes, B = {BATCH}", rows, columns)


def planted(num_classes, by_cluster):
    """A table [L, D] and a batch (x, y) of queries, as the module describes them."""
    rng = np.random.default_rng(0)

    def of_length(length, count):
        vectors = rng.normal(size=(count, DIM)).astype(np.float32)
        return length * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    table = np.repeat(of_length(4, -(-num_classes // 100)), 100, axis=0)[:num_classes]
    table += of_length(3, num_classes)
    if not by_cluster:
        rng.shuffle(table)
    y = rng.integers(0, num_classes, BATCH).astype(np.int32)
    return table, (tf.constant(table[y] + of_length(3, BATCH)), tf.constant(y))


def left_out(table, queries):
    """The mean probability that ``FILTER`` leaves out, and the share of rows with a gradient."""
    out, rows = [], np.zeros(len(table), bool)
    for part in tf.split(queries, len(queries) // 32):
        logits = tf.matmul(part, table, transpose_b=True)
        left = left_by_filter(logits, tf.reduce_logsumexp(logits, 1), FILTER)
        out.append(tf.reduce_mean(tf.reduce_sum(tf.where(left, 0.0, tf.nn.softmax(logits)), 1)))
        rows |= tf.reduce_any(left, 0).numpy()
    return float(np.mean(out)), float(rows.mean())


def steps_of_a_trained_model(num_classes):
    exact, filtered = Exact("softmax"), Exact("softmax", filter_below=FILTER)
    makers = {
        KERAS: (Plain("softmax"), True),
        "tfxc softmax, LazyAdam": (exact, True),
        "filter_below=2**-12, ids by cluster": (filtered, True),
        "filter_below=2**-12, random ids": (filtered, False),
    }
    steps, shares = {}, {}
    for name, (make, by_cluster) in makers.items():
        table, examples = planted(num_classes, by_cluster)
        model = make(num_classes)
        first, last = model.trainable_variables[0], model.trainable_variables[-1]
        first.assign(np.eye(DIM))
        last.assign(table.T if name == KERAS else table)
        steps[name] = step_of(model, num_classes, examples)
        shares[name] = left_out(table, examples[0]) if make is filtered else (0.0, 1.0)
    losses = {name: step() for name, step in steps.items()}
    seconds = in_turns(steps, rounds=5)
    rows = [
        [name, time * 1e3, seconds[KERAS] / time, losses[name], *shares[name]]
        for name, time in seconds.items()
    ]
    columns = ["step", "ms", "speed", "loss", "probability left out", "rows with a gradient"]
    show(f"One step of a trained model at {num_classes:,} classes, B = {BATCH}", rows, columns)


def rankings(num_classes):
    ours, plain = rank(num_classes, BATCH)
    (scores, ids), (plain_scores, plain_ids) = ours(), plain()
    tf.debugging.assert_near(scores, plain_scores, atol=1e-5)
    same = tf.reduce_mean(tf.cast(ids == plain_ids, tf.float32))
    seconds = in_turns({MATMUL: plain, "tfxc top_k": ours, "square": square_product()}, rounds=9)
    square = seconds.pop("square")
    rows = []
    for which, (name, time) in zip((1, 0), seconds.items(), strict=True):
        peak = peak_memory(rank_some, which, num_classes)
        products = times_the_products(time, 1, BATCH, num_classes, square)
        rows.append([name, time * 1e3, seconds[MATMUL] / time, products, round(peak)])
    columns = ["ranking", "ms", "speed", "x its products", "peak MB"]
    show(f"Top {K} of {num_classes:,} for {BATCH} queries", rows, columns)
    print(f"\nthe same ids: {float(same):.4f} (others are ties within rounding)")


def one_query(num_classes):
    ours, plain = rank(num_classes, 1)
    table = tf.Variable(tf.zeros([num_classes, DIM]))
    read = tf.function(lambda: tf.reduce_max(table))
    seconds = in_turns({MATMUL: plain, "tfxc top_k": ours, "tf.reduce_max of the table": read}, rounds=15)
    size = 4e-9 * num_classes * DIM
    rows = [[name, time * 1e3, size / time] for name, time in seconds.items()]
    show(f"Top {K} of {num_classes:,} for one query", rows, ["ranking", "ms", "GB of the table per second"])


def evaluations(num_classes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EVALUATED, DIM)).astype(np.float32)
    y = rng.integers(0, num_classes, NUM_EVALUATED).astype(np.int32)
    ours = Exact("softmax")(num_classes)
    ours.compile("sgd", loss=tfxc.losses.SoftmaxCrossentropy(), metrics=[tfxc.metrics.RecallAtK(K)])
    plain = keras_dense(num_classes)
    recall = keras.metrics.SparseTopKCategoricalAccuracy(K)
    plain.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[recall])

    def evaluate(model, num_queries):
        return lambda: model.evaluate(x[:num_queries], y[:num_queries], batch_size=BATCH, verbose=0)

    few = 4 * BATCH
    names = "Keras dense softmax, loss and top 10", "tfxc, loss and top 10"
    seconds = in_turns({names[0]: evaluate(plain, few), names[1]: evaluate(ours, few)}, rounds=3)
    rows = [[name, few, time, few / time, seconds[names[0]] / time] for name, time in seconds.items()]
    start = perf_counter()
    evaluate(ours, NUM_EVALUATED)()
    whole = perf_counter() - start
    rows.append([names[1], NUM_EVALUATED, whole, NUM_EVALUATED / whole, ""])
    columns = ["evaluate", "queries", "s", "queries per second", "speed"]
    show(f"Evaluation over {num_classes:,} classes", rows, columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    add_results(parser)
    args = parser.parse_args()
    training_steps("One exact step", args.classes, dict.fromkeys(LOSSES, "softmax"))
    # With a million classes, Keras's cross-entropy for several labels needs 20 GB.
    training_steps("A step of each loss", args.classes // 5, {loss: loss for loss in LOSSES})
    steps_of_a_trained_model(args.classes)
    rankings(args.classes)
    one_query(args.classes)
    evaluations(args.classes)
    keep(args.results)


if __name__ == "__main__":
    main()
