"""The uniformly sparse head against TensorFlow's sparse matmul and a dense head, at Amazon-670K's size.

The tasks, in turns, are the logits; the loss, a squared hinge summed over all classes; and the loss with its
gradients. The sparse head is timed in the worst case (no gradient is 0) and as after some training (1 in 1000
is not 0), with separate inputs for each class and for groups of classes. Memory is that of one whole Adam
step in a process of its own. The program also times ``fit`` with sampled negatives, at 100 thousand and 3
million classes.

    python benchmarks/sparse_head.py --batch-sizes 1 32 128 512 --group-sizes 1 16 --memory
"""

import argparse
from functools import partial

import numpy as np
from _measure import in_turns, peak_memory
from _tables import add_results, keep, show

FAN_IN, NUM_INPUTS, DENSE_INPUTS = 32, 16_384, 512


def problem(num_classes, batch_size):
    """Weights and indices [L, K], queries [B, E] as after a relu, labels [B, 5]."""
    from tfxc.sparsity import random_topology

    random = np.random.default_rng(0)
    weights = (random.normal(size=(num_classes, FAN_IN)) / FAN_IN**0.5).astype(np.float32)
    indices = random_topology(num_classes, FAN_IN, NUM_INPUTS, seed=0)
    query = np.maximum(0, random.normal(size=(batch_size, NUM_INPUTS))).astype(np.float32)
    return weights, indices, query, random.integers(num_classes, size=(batch_size, 5)).astype(np.int32)


def coo_gigabytes(num_classes, batch_size):
    """GB of the gradient of TensorFlow's sparse matmul, which gathers both factors of its products."""
    return 3 * num_classes * FAN_IN * batch_size * 4 / 2**30


def available_gigabytes():
    with open("/proc/meminfo") as file:
        return int(next(line for line in file if line.startswith("MemAvailable")).split()[1]) / 2**20


def ours(weights, topology, query, labels, group_size):
    """The sparse head's logits, its loss, and its loss with gradients, by name."""
    import tensorflow as tf

    from tfxc.losses import SQUARED_HINGE
    from tfxc.ops.sparse_head import sparse_head_logits, sparse_head_reduce

    num_classes = len(weights)
    # A group reads what its first class reads.
    weights, indices = tf.Variable(weights), tf.Variable(topology[::group_size])
    worst, trained = tf.zeros([num_classes]), tf.fill([num_classes], -3.5)

    @tf.function
    def logits():
        return sparse_head_logits(query, weights, indices, worst, 0, num_classes, group_size)

    @tf.function
    def loss(bias):
        given = query, weights, indices, bias, labels, SQUARED_HINGE, group_size
        reduced, positives = sparse_head_reduce(*given)
        return tf.reduce_sum(reduced) - 4 * tf.reduce_sum(positives)

    @tf.function
    def step(bias):
        with tf.GradientTape() as tape:
            tape.watch(query)
            value = loss(bias)
        return tape.gradient(value, [query, weights])

    name = f"ours, G = {group_size}"
    passes = [{f"{name}, worst": partial(task, worst), name: partial(task, trained)} for task in (loss, step)]
    return {name: logits}, *passes


def tasks(num_classes, batch_size, group_sizes):
    """Logits, loss, and loss with gradients, of tfxc and of both peers, by name."""
    import tensorflow as tf

    values, topology, query, labels = problem(num_classes, batch_size)
    query = tf.constant(query)

    order = np.argsort(topology, axis=1)
    rows = np.repeat(np.arange(num_classes), FAN_IN)
    places = np.stack([rows, np.take_along_axis(topology, order, 1).ravel()], 1).astype(np.int64)
    coo_values = tf.Variable(np.take_along_axis(values, order, 1).ravel())

    def hinge(logits):
        own = tf.gather(logits, labels, batch_dims=1)
        return tf.reduce_sum(tf.square(tf.nn.relu(1 + logits))) - 4 * tf.reduce_sum(own)

    turned_labels = tf.stack([labels, tf.range(batch_size)[:, tf.newaxis] + tf.zeros_like(labels)], axis=-1)

    def coo_logits():
        """Transposed logits [L, B], as this product returns them."""
        matrix = tf.SparseTensor(places, coo_values, [num_classes, NUM_INPUTS])
        return tf.sparse.sparse_dense_matmul(matrix, query, adjoint_b=True)

    def coo_hinge():
        logits = coo_logits()
        own = tf.gather_nd(logits, turned_labels)
        return tf.reduce_sum(tf.square(tf.nn.relu(1 + logits))) - 4 * tf.reduce_sum(own)

    @tf.function
    def coo_step():
        with tf.GradientTape() as tape:
            tape.watch(query)
            loss = coo_hinge()
        return tape.gradient(loss, [query, coo_values])

    table = tf.Variable(np.random.default_rng(1).normal(size=(DENSE_INPUTS, num_classes)).astype(np.float32))
    narrow = query[:, :DENSE_INPUTS]

    @tf.function
    def dense_step():
        with tf.GradientTape() as tape:
            tape.watch(narrow)
            loss = hinge(tf.matmul(narrow, table))
        return tape.gradient(loss, [narrow, table])

    passes = {"logits": {}, "loss": {}, "loss and gradients": {}}
    for group_size in group_sizes:
        own = ours(values, topology, query, labels, group_size)
        for tasks_of, mine in zip(passes.values(), own, strict=True):
            tasks_of.update(mine)
    passes["logits"] |= {
        "COO": tf.function(lambda: tf.transpose(coo_logits())),
        "dense": tf.function(lambda: narrow @ table),
    }
    passes["loss"] |= {
        "COO": tf.function(coo_hinge),
        "dense": tf.function(lambda: hinge(narrow @ table)),
    }
    passes["loss and gradients"] |= {"COO": coo_step, "dense": dense_step}
    return passes


def adam_step(set_up_done, kind, num_classes, batch_size, group_size=1):
    """A few training steps of one head with Adam, for its memory."""
    import tensorflow as tf

    import tfxc
    from tfxc._keras import keras

    keras.utils.set_random_seed(0)
    width = NUM_INPUTS if kind == "sparse" else DENSE_INPUTS
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(batch_size, width)), tf.float32)
    y = tf.constant(random.integers(num_classes, size=(batch_size, 5)), tf.int32)
    set_up_done()
    encoder = keras.Sequential([keras.Input((width,)), keras.layers.Activation("relu")])
    if kind == "sparse":
        head = tfxc.layers.UniformSparseHead(num_classes, FAN_IN, seed=0, group_size=group_size)
        model = tfxc.ExtremeClassifier(encoder, head)
        model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SquaredHinge())
        for _ in range(3):
            model.train_on_batch(x, y)
        return
    model = keras.Sequential([encoder, keras.layers.Dense(num_classes, use_bias=False)])

    def hinge(labels, logits):
        own = tf.gather(logits, tf.cast(labels, tf.int32), batch_dims=1)
        return tf.reduce_sum(tf.square(tf.nn.relu(1 + logits)), 1) - 4 * tf.reduce_sum(own, 1)

    model.compile("adam", loss=hinge)
    for _ in range(3):
        model.train_on_batch(x, y)


def show_memory(num_classes, batch_size, group_sizes):
    dense = peak_memory(adam_step, "dense", num_classes, batch_size)
    sparse = {size: peak_memory(adam_step, "sparse", num_classes, batch_size, size) for size in group_sizes}
    tiny = peak_memory(adam_step, "sparse", 1000, batch_size)  # the memory of Keras and TensorFlow themselves
    rows = [[f"dense, {DENSE_INPUTS} wide", dense, "", ""]]
    for size, peak in sparse.items():
        state = num_classes * FAN_IN * (12 + 4 / size) / 2**20  # weights, two slots and indices
        rows.append([f"sparse, G = {size}", peak, peak / state, dense / peak])
        rows.append(
            [f"sparse, G = {size}, beyond that of 1,000 classes", peak - tiny, (peak - tiny) / state, ""]
        )
    columns = ["head", "peak MB", "of weights, indices and slots", "dense takes"]
    show(f"One Adam step, B = {batch_size}", rows, columns)


def sampled_step(num_classes, batch_size=32, num_negatives=100):
    """A step of ``fit`` that scores each query's labels and 100 uniform negatives of its own."""
    import tensorflow as tf

    import tfxc
    from tfxc._keras import keras

    random = np.random.default_rng(0)
    x = tf.nn.relu(tf.constant(random.normal(size=(batch_size, NUM_INPUTS)), tf.float32))
    y = tf.constant(random.integers(num_classes, size=(batch_size, 5)), tf.int32)
    encoder = keras.Sequential([keras.Input((NUM_INPUTS,)), keras.layers.Activation("relu")])
    head = tfxc.layers.UniformSparseHead(num_classes, FAN_IN, use_bias=True, seed=0)
    model = tfxc.ExtremeClassifier(encoder, head, sampler=tfxc.samplers.Uniform(num_negatives, seed=0))
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SquaredHinge())
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()
    return lambda: float(model.train_function(data)["loss"])


def show_sampled(small=100_000, large=3_000_000):
    seconds = in_turns({size: sampled_step(size) for size in (small, large)}, rounds=60, warmup=10)
    rows = [[f"{size:,}", time * 1e3, time / seconds[small]] for size, time in seconds.items()]
    show("A step with 100 uniform negatives a query", rows, ["classes", "ms", "x the smallest"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=670_091)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--group-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="measure the memory of a training step too")
    add_results(parser)
    args = parser.parse_args()
    show_sampled()
    if args.memory:
        for batch_size in args.batch_sizes:
            show_memory(args.num_classes, batch_size, args.group_sizes)
    floor = args.num_classes * FAN_IN * 8
    copied = np.ones(floor // 8)
    bandwidth = floor / in_turns({"read": lambda: copied.sum()}, 5)["read"] / 1e9
    size = {
        "classes": f"{args.num_classes:,}",
        "weights and indices, MB": floor / 2**20,
        "one thread reads, GB/s": bandwidth,
    }
    show("Size", [*size.items()], ["", "value"])
    for batch_size in args.batch_sizes:
        rows = []
        for title, group in tasks(args.num_classes, batch_size, args.group_sizes).items():
            needed = coo_gigabytes(args.num_classes, batch_size)
            if title == "loss and gradients" and needed > 0.9 * available_gigabytes():
                del group["COO"]
                rows.append([title, "COO", f"needs {needed:.0f} GB", "", ""])
            seconds = in_turns(group, args.rounds, warmup=1)
            for name, value in seconds.items():
                ratios = [
                    f"{seconds[peer] / value:.2f}x" if peer in seconds else "" for peer in ("COO", "dense")
                ]
                rows.append([title, name, value * 1000, *ratios])
        columns = ["", "head", "ms", "faster than COO", "faster than dense"]
        show(f"B = {batch_size}, L = {args.num_classes:,}, K = {FAN_IN}, E = {NUM_INPUTS:,}", rows, columns)
    keep(args.results)


if __name__ == "__main__":
    main()
