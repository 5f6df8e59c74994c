"""Should Adam's moments of a row decay while no step touches the row? Two data sets, several seeds.

``LazyAdam`` does not decay them. The alternative stores the step of each row's last gradient, and catches up
on the missed decay before the next gradient: ``m *= beta_1^skipped``, ``v *= beta_2^skipped``. A batch shares
its candidates, so that a step touches few rows, as in a large table.

    python benchmarks/lazy_adam_decay.py --output lazy_adam_decay.json \\
        --sessions diginetica/train.txt diginetica/test.txt

Without arguments the sequences are the bundled novels; the labels are Tate's. Each run adds its figures to
the output at once; a run whose figures are there is not repeated.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import extreme_classification  # noqa: E402
import sequential_recommendation  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras, register  # noqa: E402
from tfxc._keras.optimizers import variable_index  # noqa: E402
from tfxc._keras.weights import tf_variable  # noqa: E402


@register
class DecayedLazyAdam(tfxc.optimizers.LazyAdam):
    """``LazyAdam`` whose moments of a row decay by the steps that skipped it, when it is next touched."""

    def build(self, var_list):
        if not hasattr(self, "_last"):
            self._last = [tf.Variable(tf.zeros(v.shape[:1], tf.int32), trainable=False) for v in var_list]
            self._shares = [tf.Variable([0.0, 0.0], trainable=False) for _ in var_list]
        super().build(var_list)

    def _sparse_step(self, gradient, variable, slots, learning_rate, seed):
        rows, _ = tf.unique(gradient.indices)
        now = tf.cast(tf_variable(self.iterations) + 1, tf.int32)
        index = variable_index(self, variable)
        last = self._last[index]
        skipped = tf.maximum(now - tf.gather(last, rows) - 1, 0)
        for slot, beta in zip(slots, (self.beta_1, self.beta_2), strict=True):
            decay = tf.pow(tf.cast(beta, slot.dtype), tf.cast(skipped, slot.dtype))
            decay = tf.reshape(decay, [-1, *[1] * (slot.shape.rank - 1)])
            decayed = tf.gather(slot, rows) * decay
            tf.raw_ops.ResourceScatterUpdate(resource=slot.handle, indices=rows, updates=decayed)
        updates = tf.fill(tf.shape(rows), now)
        tf.raw_ops.ResourceScatterUpdate(resource=last.handle, indices=rows, updates=updates)
        share = tf.cast(tf.size(rows), tf.float32) / float(variable.shape[0])
        self._shares[index].assign_add([share, 1.0])
        super()._sparse_step(gradient, variable, slots, learning_rate, seed)

    def touched(self):
        """The mean share of rows that a step touched, for each table with sparse gradients."""
        shares = [share.numpy() for share in self._shares]
        return [float(total / steps) for total, steps in shares if steps]


VARIANTS = {"as is": tfxc.optimizers.LazyAdam, "decayed": DecayedLazyAdam}


class Items:
    """The next item of a session (or the next word), SASRec with a table shared by input and output."""

    name, metrics = "items", ("ndcg_at_10", "recall_at_10")

    def __init__(self, sessions, negatives):
        rest = ["--batch-size", "128", "--max-length", "10"]
        if sessions:
            rest += ["--data", sessions[0], "--test-data", sessions[1], "--format", "sessions"]
        self.args = sequential_recommendation.parse_arguments(rest)
        self.split = sequential_recommendation.load_split(self.args)
        self.negatives = negatives

    def sets(self, seed):
        self.args.seed = seed
        train, _, test = sequential_recommendation.batches(self.split, self.args)
        return train, test

    def model(self):
        num_classes = self.split.train.num_classes
        return tfxc.ExtremeClassifier(
            tfxc.encoders.sasrec(num_classes, self.args.max_length),
            tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1),
            tfxc.samplers.Uniform(self.negatives, shared=True),
        )

    def compiled(self, model, optimizer):
        metrics = [tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)]
        model.compile(optimizer, tfxc.losses.SoftmaxCrossentropy(), metrics)


class Labels:
    """The subjects of an artwork: a bag of words and a dense head, each with a table of its own."""

    name, metrics = "labels", ("precision_at_1", "precision_at_5")

    def __init__(self, negatives):
        self.args = extreme_classification.parse_arguments([])
        self.data = extreme_classification.load(self.args.data)
        self.negatives = negatives

    def sets(self, seed):
        train, test, _ = self.data
        return (
            tfxc.data.classification_dataset(train, self.args.batch_size, seed=seed),
            tfxc.data.classification_dataset(test, 256, seed=None),
        )

    def model(self):
        train = self.data[0]
        return tfxc.ExtremeClassifier(
            extreme_classification.make_encoder("dense", train.num_features, self.args),
            extreme_classification.make_head("dense", train, self.args),
            tfxc.samplers.Uniform(self.negatives, shared=True),
        )

    def compiled(self, model, optimizer):
        metrics = [tfxc.metrics.PrecisionAtK(1), tfxc.metrics.PrecisionAtK(5)]
        model.compile(optimizer, tfxc.losses.BinaryCrossentropy(), metrics)


def measure(problem, variant, rate, seed, epochs):
    """Test results of one model trained from scratch."""
    keras.utils.set_random_seed(seed)
    train, test = problem.sets(seed)
    model = problem.model()
    optimizer = VARIANTS[variant](keras.optimizers.schedules.CosineDecay(rate, epochs * len(train)))
    problem.compiled(model, optimizer)
    start = time.perf_counter()
    model.fit(train, epochs=epochs, verbose=2)
    seconds = time.perf_counter() - start
    result = model.evaluate(test, return_dict=True, verbose=0)
    touched = {"touched": optimizer.touched()} if variant == "decayed" else {}
    return {"seconds": seconds, **touched, **result}


def table(problem, runs):
    """Shows mean and range over the seeds of each variant and learning rate."""
    rows = []
    for (name, rate), each in sorted(runs.items()):
        row = [name, f"{rate:g}", str(len(each))]
        for metric in problem.metrics:
            values = [run[metric] for run in each]
            row.append(f"{statistics.mean(values):.4f} ({min(values):.4f}-{max(values):.4f})")
        rows.append(row)
    show(problem.name, rows, ["moments", "rate", "seeds", *problem.metrics])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--sessions", nargs=2, metavar=("TRAIN", "TEST"), help="files of sessions, one a line")
    add("--problems", nargs="+", choices=("items", "labels"), default=["items", "labels"])
    add("--negatives", type=int, nargs=2, default=[256, 512], help="shared candidates, of items and labels")
    add("--epochs", type=int, nargs=2, default=[2, 5], help="of items and labels")
    add("--rates", type=float, nargs="+", default=[3e-3], help="learning rates at the start")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--output", default="runs/lazy_adam_decay.json", help="JSON file of all runs")
    add_results(parser)
    args = parser.parse_args()
    done = []
    if os.path.exists(args.output):
        done = json.loads(Path(args.output).read_text(encoding="utf-8"))
    os.makedirs(os.path.dirname(args.output) or ".", exist_ok=True)
    for name in args.problems:
        problem = Items(args.sessions, args.negatives[0]) if name == "items" else Labels(args.negatives[1])
        epochs = args.epochs[0 if name == "items" else 1]
        runs = {}
        for rate in args.rates:
            for seed in args.seeds:
                for variant in VARIANTS:
                    key = {"problem": name, "variant": variant, "rate": rate, "seed": seed, "epochs": epochs}
                    old = [run for run in done if run.items() >= key.items()]
                    if not old:
                        old = [{**key, **measure(problem, variant, rate, seed, epochs)}]
                        done += old
                        Path(args.output).write_text(json.dumps(done, indent=1), encoding="utf-8")
                    runs.setdefault((variant, rate), []).append(old[0])
        table(problem, runs)
    keep(args.results)


if __name__ == "__main__":
    main()
