"""Heads, samplers and losses that go together, on tags and next items: quality, proposal, time, memory.

    python benchmarks/combinations.py tags [--seeds 0 1 2]
    python benchmarks/combinations.py items --data Beauty.txt

"tags" has several labels a point: the artworks of the extreme classification example, or a folder like it.
"items" has one label a position: users' purchases, ``user item item ...`` a line. Each combination trains as
long as all others on its data, from the same seeds, with few draws, so that it matters which. P@1 and NDCG@10
are those of test data. KL(softmax, Q) and the effective sample size compare the proposal of the trained model
with its own softmax on test queries; "loss gap" is the sampled loss of test points minus the loss over all
classes, as a share of the latter. Milliseconds are processor time of a step, after the first epoch. MB is the
memory in the middle of a step, as of ``tfxc.memory_report``. The draws of "InBatch" are shared by the batch;
"InBatch, whole" takes all its labels. For losses of each class on its own, biases start where no class
applies: --heads "dense, biases from 0" "dense, no biases" shows why. Finished runs are read from the output
folder.
"""

import argparse
import itertools
import math
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf
from _grams import padded, words_of
from _seeds import mean, once, spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import extreme_classification  # noqa: E402
from common.classification_data import BUNDLED  # noqa: E402
from common.classification_heads import make_encoder  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402

DRAWS, HARD, DIM, WIDE = 32, 8, 64, 1024
SAMPLERS = {
    "all classes": lambda counts: None,
    "Uniform": lambda counts: tfxc.samplers.Uniform(DRAWS),
    "LogUniform": lambda counts: tfxc.samplers.LogUniform(DRAWS),
    "Unigram": lambda counts: tfxc.samplers.Unigram(DRAWS, counts=counts),
    "InBatch": lambda counts: tfxc.samplers.InBatch(DRAWS, counts=counts),
    "InBatch, whole": lambda counts: tfxc.samplers.InBatch(counts=counts),
    "MIDX": lambda counts: tfxc.samplers.MIDX(DRAWS, num_codewords=32),
    "LearnedMIDX": lambda counts: tfxc.samplers.LearnedMIDX(DRAWS, num_codewords=32),
    "Sphere": lambda counts: tfxc.samplers.Sphere(DRAWS),
    "RFF": lambda counts: tfxc.samplers.RFF(DRAWS),
    "LSH": lambda counts: tfxc.samplers.LSH(DRAWS),
    "LSH, label": lambda counts: tfxc.samplers.LSH(DRAWS, query="label"),
    "Softmax": lambda counts: tfxc.samplers.Softmax(DRAWS),
    "DNS": lambda counts: tfxc.samplers.DNS(DRAWS, num_candidates=4 * DRAWS),
    "HardNegatives": lambda counts: tfxc.samplers.HardNegatives(HARD, DRAWS - HARD),
    "SearchedHardNegatives": lambda counts: tfxc.samplers.SearchedHardNegatives(HARD, DRAWS - HARD),
    "Mixture": lambda counts: tfxc.samplers.Mixture(
        [
            tfxc.samplers.Unigram(DRAWS - HARD, counts=counts),
            tfxc.samplers.SearchedHardNegatives(HARD, num_uniform=0),
        ]
    ),
}
LOSSES = {
    "softmax": tfxc.losses.SoftmaxCrossentropy,
    "softmax, partition": lambda: tfxc.losses.SoftmaxCrossentropy(estimator="partition"),
    "softmax at 10": lambda: tfxc.losses.SoftmaxAtK(10),
    "binary": tfxc.losses.BinaryCrossentropy,
    "gBCE": tfxc.losses.GBCE,
    "squared hinge": tfxc.losses.SquaredHinge,
}
INDEPENDENT = "binary", "gBCE", "squared hinge"  # losses of each class on its own
NUM_QUERIES = 256


class Tags:
    """Artworks and their subjects; the classes of an ``EncodedHead`` are the words of their names."""

    heads = "dense", "normalised", "sparse", "encoded", "MACH"
    epochs = 6

    def __init__(self, path):
        self.train, self.test, names = extreme_classification.load(path or BUNDLED)
        self.num_classes, self.counts = self.train.num_labels, self.train.label_counts()
        self.args = extreme_classification.parse_arguments(
            ["--dim", str(DIM), "--num-inputs", str(WIDE), "--dropout", "0.2"]
        )
        found = [words_of(name) for name in names]
        places = {word: place for place, word in enumerate(sorted({*itertools.chain(*found)}), start=1)}
        self.words = padded([[places[word] for word in words] for words in found])
        self.num_words = len(places)
        self.density = self.train.labels.nnz / len(self.train)

    def batches(self, seed):
        train = tfxc.data.classification_dataset(self.train, 256, seed=seed, example_ids=True)
        return train, self.test.dataset(256)

    def encoder(self, head):
        kind = "sparse" if head == "sparse" else "dense"
        bag = make_encoder(kind, self.train.num_features, self.args)
        return bag if kind == "sparse" else keras.Model(bag.inputs, keras.layers.Dense(DIM)(bag.output))

    def class_encoder(self):
        """From the words of a name to its vector; padding is 0."""
        bag = tfxc.layers.EmbeddingBag(self.num_words + 1, DIM, combiner="sqrtn")
        return keras.Sequential([keras.Input((self.words.shape[1],), dtype="int32"), bag])

    metrics = tfxc.metrics.PrecisionAtK(1, average="all"), tfxc.metrics.PrecisionAtK(5, average="all")
    columns, form = ("P@1", "P@5"), "{:.1f}"


class Items:
    """Purchases and the next one."""

    heads = "dense", "sparse", "MACH"
    epochs = 12
    density = 1.0
    metrics = tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)
    columns, form = ("NDCG@10", "Recall@10"), "{:.2f}"

    def __init__(self, path):
        self.split = tfxc.data.leave_last_out(tfxc.data.read_sequences(path))
        self.num_classes, self.counts = self.split.train.num_classes, self.split.train.counts()

    def batches(self, seed):
        train = tfxc.data.sequence_training_dataset(self.split.train, 20, 128, windows="all", seed=seed)
        return train, tfxc.data.sequence_evaluation_dataset(self.split.test, 20, 256)

    def encoder(self, head):
        items = tfxc.encoders.gru4rec(self.num_classes, 20, DIM)
        if head != "sparse":
            return items
        return keras.Model(items.input, keras.layers.Dense(WIDE, activation="relu")(items.output))


def make_head(name, loss, data):
    """A head of that name; no class is likely at the start where the loss asks of each if it applies."""
    plan = tfxc.layers.suggest_mach(data.num_classes, DIM, data.num_classes * DIM)  # a quarter of a dense one
    outputs = plan.num_buckets if name == "MACH" else data.num_classes
    start = math.log(data.density / outputs) if loss in INDEPENDENT else 0.0
    bias = {"bias_initializer": keras.initializers.Constant(-1.0 if loss == "squared hinge" else start)}
    if name == "dense":
        return tfxc.layers.DenseHead(data.num_classes, use_bias=True, **bias)
    if name == "dense, biases from 0":
        return tfxc.layers.DenseHead(data.num_classes, use_bias=True)
    if name == "dense, no biases":
        return tfxc.layers.DenseHead(data.num_classes)
    if name == "normalised":
        return tfxc.layers.DenseHead(data.num_classes, normalize=True, temperature=0.05)
    if name == "sparse":
        return tfxc.layers.UniformSparseHead(data.num_classes, fan_in=32, use_bias=True, seed=0, **bias)
    if name == "encoded":
        return tfxc.layers.EncodedHead(data.class_encoder(), data.words, use_bias=True, **bias)
    activation = "sigmoid" if loss in INDEPENDENT else "softmax"
    return tfxc.layers.MACHHead(
        data.num_classes, plan.num_buckets, plan.num_repetitions, activation=activation, seed=0, **bias
    )


class StepTime(keras.callbacks.Callback):
    """Processor time of the steps after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.start, self.first = time.process_time(), self.model.optimizer.iterations.numpy()
        self.seconds = time.process_time() - self.start
        self.steps = self.model.optimizer.iterations.numpy() - self.first


def proposal(model, inputs, labels):
    """KL(softmax, Q) and the effective sample size; empty where the sampler does not know its Q."""
    try:
        query, labels, _ = model.examples(inputs, labels)
        quality = tfxc.samplers.proposal_quality(
            model.sampler, model.head, query[:NUM_QUERIES], labels[:NUM_QUERIES]
        )
    except (ValueError, tf.errors.InvalidArgumentError):
        return {}
    return {"KL": float(np.mean(quality.kl)), "ESS": float(np.mean(quality.effective_sample_size))}


def loss_gap(model, inputs, labels):
    """The loss by the sampler's candidates minus that over all classes, as a share of the latter."""
    query, labels, _ = model.examples(inputs, labels)
    sampled, exact = (
        tfxc.head_loss(model.head, model.classification_loss, query, labels, sampler, training=True)
        for sampler in (model.sampler, None)
    )
    return {"gap": float((sampled - exact) / exact)}


def run(head, sampler, loss, data, seed, folder):
    """The results of a combination, or why it is refused."""
    keras.utils.set_random_seed(seed)
    train, test = data.batches(seed)
    try:
        model = tfxc.ExtremeClassifier(
            data.encoder(head), make_head(head, loss, data), sampler=SAMPLERS[sampler](data.counts), k=10
        )
        schedule = keras.optimizers.schedules.CosineDecay(5e-3, data.epochs * len(train))
        model.compile(tfxc.optimizers.LazyAdam(schedule), loss=LOSSES[loss](), metrics=[*data.metrics])
        clock, mined = StepTime(), sampler == "HardNegatives"
        callbacks = [] if model.sampler is None else [tfxc.callbacks.SamplerRefresh(max(1, len(train) // 2))]
        if mined:
            callbacks = [tfxc.callbacks.HardNegativeMining(str(folder / "mined"), len(data.train), 2, 2)]
        else:
            train = train.map(lambda inputs, labels: (without_ids(inputs), labels))
        model.fit(train, epochs=data.epochs, callbacks=[*callbacks, clock], verbose=0)
    except (ValueError, TypeError) as error:
        return {"refused": str(error).split(". ")[0]}
    exact, *quality = model.evaluate(test, verbose=0)
    row = {**dict(zip(data.columns, (100 * value for value in quality), strict=True)), "loss": exact}
    row["ms"] = 1e3 * clock.seconds / float(clock.steps)
    row["MB"] = tfxc.memory_report(model, 256).peak / 2**20
    if model.sampler is not None:
        batch = next(iter(test))
        row |= proposal(model, *batch)
        if not model.classification_loss.needs_sampler and head != "encoded" and not mined:
            row |= loss_gap(model, *batch)
    return row


def without_ids(inputs):
    """Inputs without the numbers of the examples, which only mined negatives ask for."""
    if not isinstance(inputs, dict):
        return inputs
    return {name: part for name, part in inputs.items() if name != "example_ids"}


def rows_of(results, data):
    """Rows by head, loss and sampler: quality, also beside that of Uniform and Unigram draws."""
    for (head, loss, sampler), runs in results.items():
        if "refused" in runs[0]:
            yield [head, loss, sampler, *[""] * 9, runs[0]["refused"]]
            continue
        best = data.columns[0]
        cells = [spread([run[name] for run in runs], data.form) for name in data.columns]
        for base in ("Uniform", "Unigram"):
            beside = results.get((head, loss, base))
            cells.append(f"{mean(runs, best) - mean(beside, best):+.1f}" if beside else "")
        cells += [mean(runs, key) if key in runs[0] else "" for key in ("KL", "ESS", "gap", "ms", "MB")]
        yield [head, loss, sampler, *cells, ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("tags", "items"), nargs="?", default="tags")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--heads", nargs="+")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, help="6 for tags and 12 for items, unless given")
    parser.add_argument("--output", type=Path, default=Path("runs/combinations"))
    add_results(parser)
    args = parser.parse_args()
    if args.task == "items" and args.data is None:
        parser.error("items needs --data, a file of users and their items")
    data, results = (Tags if args.task == "tags" else Items)(args.data), {}
    data.epochs = args.epochs or data.epochs
    for head, loss, sampler in itertools.product(args.heads or data.heads, args.losses, args.samplers):
        if head == "MACH" and sampler != "all classes":
            continue  # it has no sampler
        if args.task == "items" and sampler == "HardNegatives":
            continue  # they are found for whole examples, not for positions
        if loss == "gBCE" and sampler == "all classes":
            continue  # the binary loss
        for seed in args.seeds:
            name = f"{head}, {loss}, {sampler}" + (f", seed {seed}" if seed else "")
            job = partial(run, head, sampler, loss, data, seed)
            row = once(args.output / args.task / name, [data.epochs], job)
            results.setdefault((head, loss, sampler), []).append(row)
            print(name, row, flush=True)
            keras.backend.clear_session()
    titles = [
        *data.columns,
        "beside Uniform",
        "beside Unigram",
        "KL(softmax, Q)",
        "ESS",
        "loss gap",
        "ms",
        "MB",
        "refused",
    ]
    show(f"{args.task}: {DRAWS} draws", list(rows_of(results, data)), ["head", "loss", "sampler", *titles])
    keep(args.results)


if __name__ == "__main__":
    main()
