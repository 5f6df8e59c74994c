"""Time and memory of one training step of ``fit``, against Keras's dense softmax and TensorFlow's sampler.

    python benchmarks/step_time.py [--classes 1000000]

One dense layer makes the query (D = 64, B = 512), so the output layer takes most of the time. The peers are a
Keras ``Dense`` softmax with Adam, and ``tf.nn.sampled_softmax_loss`` (100 shared log-uniform negatives) with
Keras's Adam or with LazyAdam. The program also measures the cost of refreshing the index over the first steps
of ``fit``, and the step of tfxc at 100 thousand and 10 million classes, with larger batches and with
sequences, and its peak memory.
"""

import argparse
import time

import numpy as np
import tensorflow as tf
from _measure import in_turns, peak_memory
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

DIM, BATCH, NEGATIVES, CODEWORDS = 64, 512, 100, 64
OURS = "tfxc MIDX(100), LazyAdam"


def batch(num_classes, shape=(BATCH,)):
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(*shape, DIM)).astype(np.float32))
    return x, tf.constant(rng.integers(0, num_classes, shape).astype(np.int32))


def step_of(model, num_classes, examples=None):
    """One step of ``fit`` of a compiled model, on one batch: (x, y), or random ones."""
    examples = examples or batch(num_classes)
    data = iter(tf.data.Dataset.from_tensors(examples).repeat())
    model.make_train_function()
    return lambda: float(model.train_function(data)["loss"])


def encoder(*length):
    return keras.Sequential([keras.Input((*length, DIM)), keras.layers.Dense(DIM)])


def midx(num_classes, shared=False, length=()):
    model = tfxc.ExtremeClassifier(
        encoder(*length),
        head=tfxc.layers.DenseHead(num_classes),
        sampler=tfxc.samplers.MIDX(NEGATIVES, num_codewords=CODEWORDS, shared=shared, seed=0),
    )
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    model.sampler.refresh(model.head)
    return model


def keras_dense(num_classes):
    model = keras.Sequential([*encoder().layers, keras.layers.Dense(num_classes, use_bias=False)])
    model.build((None, DIM))
    model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class SampledSoftmax(keras.Model):
    """The code of a TensorFlow user without tfxc."""

    def __init__(self, num_classes):
        super().__init__()
        self.encode = encoder()
        self.num_classes = num_classes
        self.table = self.add_weight(name="table", shape=(num_classes, DIM), initializer="glorot_uniform")
        self.bias = self.add_weight(name="bias", shape=(num_classes,), initializer="zeros")

    def call(self, x):
        return self.encode(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.nn.sampled_softmax_loss(
                self.table.value, self.bias.value, y[:, tf.newaxis], self(x), NEGATIVES, self.num_classes
            )
            loss = tf.reduce_mean(losses)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def sampled_softmax(num_classes, optimizer="adam"):
    model = SampledSoftmax(num_classes)
    model.compile(optimizer)
    return model


def train_some_steps(set_up_done, num_classes):
    step = step_of(midx(num_classes), num_classes)
    for _ in range(5):
        step()


def against_peers(num_classes):
    def ten_steps(model):
        step = step_of(model, num_classes)

        def run():
            for _ in range(10):
                step()

        return run

    slow = {"Keras dense softmax, Adam": keras_dense, "tf.nn.sampled_softmax_loss, Adam": sampled_softmax}
    fast = {
        "tf.nn.sampled_softmax_loss, LazyAdam": sampled_softmax(num_classes, tfxc.optimizers.LazyAdam(1e-3)),
        "tfxc MIDX(100, shared=True), LazyAdam": midx(num_classes, shared=True),
        OURS: midx(num_classes),
    }
    tasks = {name: step_of(make(num_classes), num_classes) for name, make in slow.items()}
    seconds = in_turns({**tasks, **{name: ten_steps(model) for name, model in fast.items()}}, rounds=5)
    seconds.update({name: seconds[name] / 10 for name in fast})
    rows = [[name, time * 1e3, time / seconds[OURS]] for name, time in seconds.items()]
    show(f"One fit step at {num_classes:,} classes", rows, ["step", "ms", "x tfxc"])


def with_refreshes(num_classes):
    """An epoch of ``fit`` that refreshes the index at its start, and then less and less often."""
    rows = []
    for num_steps in (1_000, 10_000):
        model, options = midx(num_classes), tf.data.Options()
        # With endless data, the thread that tunes tf.data may miss the end of fit, and delay it.
        options.autotune.enabled = False
        data = tf.data.Dataset.from_tensors(batch(num_classes)).repeat().with_options(options)
        model.fit(data, steps_per_epoch=2, verbose=0)  # traces the step
        model.optimizer.iterations.assign(0)
        start = time.perf_counter()
        logs = model.fit(data, steps_per_epoch=num_steps, verbose=0).history
        milliseconds = (time.perf_counter() - start) * 1e3 / num_steps
        of_refreshes = logs["sampler/refresh_seconds"][0] * 1e3 / num_steps
        rows.append([f"{num_steps:,}", milliseconds, of_refreshes])
    columns = ["steps of the epoch", "ms a step", "of them for the index"]
    show(f"An epoch of fit at {num_classes:,} classes", rows, columns)


def against_size(small=100_000, large=10_000_000):
    steps = {size: step_of(midx(size), size) for size in (small, large)}
    seconds = in_turns(steps, rounds=60, warmup=10)
    rows = [[f"{size:,}", time * 1e3, time / seconds[small]] for size, time in seconds.items()]
    show("The step against the number of classes", rows, ["classes", "ms", "x the smallest"])


def against_batch(num_classes):
    """Steps with more queries, and with sequences; negatives for each query or shared by the batch."""
    cases = {
        "512": ((512,), False),
        "512, shared negatives": ((512,), True),
        "8,192": ((8192,), False),
        "8,192, shared negatives": ((8192,), True),
        "64 sequences of 200, shared negatives": ((64, 200), True),
    }
    steps = {}
    for name, (shape, shared) in cases.items():
        steps[name] = step_of(midx(num_classes, shared, shape[1:]), num_classes, batch(num_classes, shape))
    seconds = in_turns(steps, rounds=20, warmup=5)
    rows = [[name, time * 1e3, time * 1e6 / np.prod(cases[name][0])] for name, time in seconds.items()]
    show(f"Queries of a step at {num_classes:,} classes", rows, ["queries", "ms", "µs per query"])


def memory(num_classes):
    state = 3 * num_classes * DIM * 4 / 2**20
    peak = peak_memory(train_some_steps, num_classes)
    show(
        f"Peak memory at {num_classes:,} classes, over the bare process",
        [[round(peak), round(state), round(peak - state)]],
        ["peak MB", "table and Adam slots MB", "beyond them MB"],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    add_results(parser)
    args = parser.parse_args()
    against_peers(args.classes)
    with_refreshes(args.classes)
    against_size()
    against_batch(args.classes)
    memory(args.classes)
    keep(args.results)


if __name__ == "__main__":
    main()
