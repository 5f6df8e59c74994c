"""Next items over several processes: workers train a class table in shards on parameter servers.

Without arguments it uses the words of the bundled novels, two workers and two servers on this machine.

    python examples/cluster.py --workers 2 --servers 2

Kill any of its processes (`kill -9`): a worker is replaced, and the others continue; after the death of a
server or the coordinator, all processes restart from the last checkpoint. Kill the program itself, and the
same command resumes; a command with other options is refused. On several machines the processes are the same:
`TF_CONFIG` tells each one its role, and all must see the folder of `--output`.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from common.arguments import count, existing, rate
from common.processes import Cluster, die_with_parent
from common.run_options import check_options

# Options that may change when a run resumes: the number of processes, the output, the number of epochs.
OF_NO_RUN = ("workers", "servers", "output", "epochs")


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--workers", type=count, default=2)
    add("--servers", type=count, default=2)
    add("--data", type=existing, help="a line each: user item item ...; default: the bundled novels")
    add("--min-count", type=count, default=1, help="novels: rarer words are left out")
    add("--max-length", type=count, default=20)
    add("--dim", type=count, default=64)
    add("--num-negatives", type=count, default=100)
    add("--num-codewords", type=count, default=32)
    add("--batch-size", type=count, default=64, help="sequences")
    add("--epochs", type=count, default=3)
    add("--steps", type=count, default=200, help="of an epoch, of all workers together")
    add("--learning-rate", type=rate, default=3e-3)
    add("--output", type=Path, default=Path("runs/cluster"), help="folder of checkpoints and the export")
    return parser.parse_args(argv)


def load(args):
    """The split sequences."""
    from common.recommendation_data import BUNDLED

    from tfxc import data

    if args.data is not None:
        return data.leave_last_out(data.read_sequences(str(args.data)))
    words, _ = data.k_core(data.read_text(str(BUNDLED)), min_user=1, min_item=args.min_count)
    return data.tail_split(words, 0.01, 0.03)


def training_batches(split, args):
    """Endless batches that workers can read alone.

    tf.data shuffles them: the order of ``seed=`` comes from Python, which only the coordinator runs. There is
    no global seed, so every worker has an order of its own. A run that resumes from a checkpoint begins at
    the first rows again.
    """
    import tfxc

    rows = tfxc.data.sequence_training_dataset(split.train, args.max_length, 1, windows="all", seed=None)
    return rows.unbatch().shuffle(100_000).repeat().batch(args.batch_size, drop_remainder=True)


def make_model(num_classes, args, seed=0):
    """The compiled model; the scope in which it is made determines the place of its tables."""
    import tfxc

    encoder = tfxc.encoders.sasrec(num_classes, args.max_length, args.dim, num_blocks=1)
    sampler = tfxc.samplers.MIDX(args.num_negatives, num_codewords=args.num_codewords, seed=seed)
    # The head has its own table: a table shared with the encoder would travel over the network.
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(num_classes), sampler)
    model.compile(
        tfxc.optimizers.LazyAdam(args.learning_rate),
        loss=tfxc.losses.SoftmaxCrossentropy(),
        metrics=[tfxc.metrics.NDCGAtK(10)],
    )
    return model


def loopback_bytes():
    """The bytes that this machine's processes have sent each other; 0 where the system does not tell."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.strip().startswith("lo:")), 0)


def train(model, batches, checkpoint, done, args):
    """Trains the remaining epochs in one ``fit``, saves each and prints its cost.

    Each epoch begins at the first row again.
    """
    from tensorflow import keras

    start, sent = time.perf_counter(), loopback_bytes()

    def keep(epoch, logs):
        nonlocal start, sent
        seconds, num_bytes = time.perf_counter() - start, loopback_bytes() - sent
        checkpoint.save(epoch + 1)
        print(
            f"epoch {epoch + 1}: loss {logs['loss']:.4f}, {args.steps / seconds:.1f} steps/s, "
            f"{num_bytes / args.steps / 1e6:.2f} MB a step over loopback",
            flush=True,
        )
        start, sent = time.perf_counter(), loopback_bytes()

    model.fit(
        batches,
        initial_epoch=done,
        epochs=args.epochs,
        steps_per_epoch=args.steps,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=keep)],
        verbose=0,
    )


def coordinate(args):
    """The coordinator: trains the remaining epochs, evaluates and exports."""
    import tensorflow as tf

    import tfxc

    check_options(args.output, vars(args), OF_NO_RUN)  # for processes that are started one by one
    split = load(args)
    num_classes = split.train.num_classes
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    with tfxc.cluster.strategy(resolver).scope():
        model = make_model(num_classes, args)
    checkpoint = tfxc.cluster.Checkpoint(model, args.output / "checkpoints")
    done = checkpoint.restore()
    print(f"{num_classes:,} classes; {f'after epoch {done}' if done else 'from the start'}", flush=True)
    train(model, training_batches(split, args), checkpoint, done, args)
    model.export(str(args.output / "served"))
    alone = make_model(num_classes, args)  # on this machine, for the exact evaluation
    tfxc.cluster.Checkpoint(alone, args.output / "checkpoints").restore()
    tests = tfxc.data.sequence_training_dataset(split.test, args.max_length, 64, windows="all", seed=None)
    loss, ndcg = alone.evaluate(tests, verbose=0)
    results = {"loss": loss, "ndcg_at_10": ndcg, "epochs": max(done, args.epochs)}
    (args.output / "results.json").write_text(json.dumps(results), encoding="utf-8")
    print(f"test: loss {loss:.4f}, NDCG@10 {ndcg:.4f}; exported to {args.output / 'served'}", flush=True)


def serve():
    """A worker or a parameter server."""
    import tensorflow as tf

    import tfxc

    tfxc.cluster.start_server(tf.distribute.cluster_resolver.TFConfigClusterResolver())


def launch(args):
    """Starts all processes and watches over them."""
    check_options(args.output, vars(args), OF_NO_RUN)
    cluster = Cluster([sys.executable, __file__, *sys.argv[1:]], args.workers, args.servers)
    print(f"{args.workers} workers, {args.servers} servers and a coordinator on this machine", flush=True)
    cluster.run()


def main():
    args = parse_arguments()
    if "TF_CONFIG" not in os.environ:
        launch(args)
        return
    die_with_parent()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if task["type"] in ("worker", "ps"):
        serve()
        return
    coordinate(args)


if __name__ == "__main__":
    main()
