"""Two towers in TensorFlow Recommenders: its in-batch softmax against a tfxc head, at equal training time.

The models take turns, so that a slow moment of the machine hits both. Query tower, item vectors, optimizer
and time are the same; only the loss differs. Without arguments the next word of a few novels stands for the
next item; on sessions:

    python examples/tfrs_two_tower.py --data train.txt --test-data test.txt --format sessions --seconds 120

It needs the packages of ``pip install ".[tfrs]"`` in a clone.
"""

import argparse
import math
import os
import time
from importlib.util import find_spec

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TensorFlow Recommenders runs on tf-keras

import common  # noqa: F401  (before TensorFlow)
import numpy as np
import tensorflow as tf
from common import recommendation_data, sampler_choice
from common.arguments import count, rate, share, whole
from common.recommendation_data import load_split
from common.training_log import markdown_table
from tensorflow import keras

import tfxc

MODELS = ("retrieval", "uniform", "midx")


def two_towers():
    """The module of the models: imported when they are needed, so that --help works without its packages."""
    if find_spec("tensorflow_recommenders") is None:
        raise SystemExit("This program needs TensorFlow Recommenders: pip install '.[tfrs]' in a clone.")
    from common import two_towers

    return two_towers


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    recommendation_data.add_arguments(add)
    add("--models", nargs="+", choices=MODELS, default=["retrieval", "midx"])
    add("--seconds", type=rate, default=30, help="training time of each model")
    add("--turns", type=count, default=5, help="into which the time is cut, with a validation after each")
    add("--max-length", type=count, default=10, help="items of history that the query tower reads")
    add("--dim", type=count, default=64, help="width of queries and item vectors")
    add("--batch-size", type=count, default=512)
    add("--retrieval-batch-size", type=count, help="of the retrieval task, whose negatives it gives")
    sampler_choice.add_arguments(add)
    add("--learning-rate", type=rate, default=3e-3, help="at the start; falls to 0 along a cosine")
    add("--dropout", type=share, default=0.2, help="of the query tower's inputs")
    add("--seed", type=whole, default=0)
    add("--output", default="demo/two_tower", help="folder of the exported index")
    return parser.parse_args(argv)


def examples(sequences, max_length, batch_size, last_only=False, seed=None):
    """Batches of every item that has a history: {"history": [B, T] ids + 1, "length": [B], "item": [B]}."""
    owner = np.repeat(np.arange(len(sequences)), sequences.lengths)
    start = sequences.offsets[:-1][owner]
    where = sequences.offsets[1:][sequences.lengths > 1] - 1 if last_only else np.arange(len(sequences.items))
    where = where[where > start[where]]
    items, first, where = tf.constant(sequences.items), tf.constant(start[where]), tf.constant(where)

    def batch(rows):
        target, begin = tf.gather(where, rows), tf.gather(first, rows)
        index = target[:, tf.newaxis] - tf.range(max_length, 0, -1, tf.int64)
        inside = index >= begin[:, tf.newaxis]
        history = tf.where(inside, tf.gather(items, tf.maximum(index, 0)) + 1, 0)
        history = tf.ensure_shape(history, [None, max_length])
        return {"history": history, "length": target - begin, "item": tf.gather(items, target)}

    return tfxc.data.row_batches(int(where.shape[0]), batch_size, batch, seed)


def make_model(name, counts, args):
    """A compiled model, and the callbacks that it needs."""
    keras.utils.set_random_seed(args.seed)
    towers = two_towers()
    query_tower = towers.QueryTower(len(counts), args.dim, args.dropout)
    if name == "retrieval":
        model, callbacks = towers.RetrievalModel(query_tower, counts, args.dim), []
    else:
        uniform = tfxc.samplers.Uniform(args.num_negatives)
        sampler = (
            uniform
            if name == "uniform"
            else tfxc.samplers.MIDX(args.num_negatives, num_codewords=args.num_codewords)
        )
        model = towers.HeadModel(query_tower, len(counts), args.dim, sampler)
        callbacks = [tfxc.callbacks.SamplerRefresh(args.refresh_steps)] if name == "midx" else []
    model.compile(tfxc.optimizers.LazyAdam(args.learning_rate))
    return model, callbacks


class Turn(keras.callbacks.Callback):
    """Ends a model's turn when its time is up; decays the learning rate to 0 along a cosine of the time."""

    def __init__(self, learning_rate, seconds):
        super().__init__()
        self.learning_rate, self.total = learning_rate, seconds
        self.used, self.steps = 0.0, 0

    def run(self, model, dataset, until, callbacks):
        """Trains for that many seconds, without those of compilation and validation."""
        while self.used < until:
            self.until, self.start = until - self.used, time.perf_counter()
            model.fit(dataset, verbose=0, callbacks=[*callbacks, self])
            self.used += time.perf_counter() - self.start

    def on_train_batch_end(self, batch, logs=None):
        elapsed = time.perf_counter() - self.start
        share = min((self.used + elapsed) / self.total, 1.0)
        self.model.optimizer.learning_rate = self.learning_rate * (1 + math.cos(math.pi * share)) / 2
        self.model.stop_training = elapsed >= self.until
        self.steps += 1


def compare(split, args):
    """Trains the models in turns; returns them by name, and their test results."""
    counts = split.train.counts()
    last_only = args.format != "text"  # of held-out pages every word is a target
    validation, test = (
        examples(part, args.max_length, 512, last_only) for part in (split.validation, split.test)
    )
    models, turns, batches = {}, {}, {}
    for name in args.models:
        size = (name == "retrieval" and args.retrieval_batch_size) or args.batch_size
        batches[name] = examples(split.train, args.max_length, size, seed=args.seed)
        models[name] = make_model(name, counts, args)
        turns[name] = Turn(args.learning_rate, args.seconds)
        models[name][0].fit(batches[name].take(1), verbose=0)  # traces the step
        models[name][0].evaluate(validation.take(1), verbose=0)
    for turn in range(1, args.turns + 1):
        for name, (model, callbacks) in models.items():
            turns[name].run(model, batches[name], args.seconds * turn / args.turns, callbacks)
            recall = accuracy(model.evaluate(validation, return_dict=True, verbose=0))[10]
            print(
                f"{name}: {turns[name].used:.0f} s, {turns[name].steps} steps, Recall@10 {recall:.4f}",
                flush=True,
            )
    results = {}
    for name, (model, _) in models.items():
        recalls = accuracy(model.evaluate(test, return_dict=True, verbose=0))
        results[name] = {"seconds": turns[name].used, "steps": turns[name].steps, **recalls}
    return {name: model for name, (model, _) in models.items()}, results


def accuracy(logs):
    """Recall by k: with one target, TFRS's top-k accuracy."""
    return {k: logs[f"factorized_top_k/top_{k}_categorical_accuracy"] for k in two_towers().KS}


def main(argv=None):
    args = parse_arguments(argv)
    split = load_split(args)
    print(f"{split.train.num_classes:,} classes, {len(split.train.items):,} items to learn from")
    models, results = compare(split, args)
    towers = two_towers()
    rows = [
        [name, f"{row['seconds']:.0f}", str(row["steps"]), *(f"{row[k]:.4f}" for k in towers.KS)]
        for name, row in results.items()
    ]
    print("\n" + markdown_table(["model", "train s", "steps", *(f"Recall@{k}" for k in towers.KS)], rows))
    names = [str(name) for name in split.train.vocabulary.names]
    features = next(iter(examples(split.test, args.max_length, 3, args.format != "text")))
    features.pop("item")
    path = os.path.join(args.output, args.models[-1])
    towers.export_index(models[args.models[-1]], features, names, path)
    _, best = tf.saved_model.load(path)(features)
    print(f"\nThe index in {path} recommends:")
    for history, row in zip(features["history"].numpy(), best.numpy(), strict=True):
        read = " ".join(names[i - 1] for i in history if i)
        print(f"  ... {read}  ->  {', '.join(name.decode() for name in row[:5])}")


if __name__ == "__main__":
    main()
