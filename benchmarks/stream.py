"""A vocabulary that grows while a model trains, against one that knows every name of the log beforehand.

The names of a made-up log come and go: an interaction takes one of ``--alive`` names, which move on by one
every so often until all have been there. Groups of ten names go together, some often, most seldom; a model
has to find out which. One model has a row for each name, the other fewer rows and a ``GrowingVocabulary``.
Both see the same batches. In the last tenth of the log, batches are ranked before they are trained on, among
the names that are there at the time; a name without a row is a miss. A ``--scale`` of 1 is 5 million
interactions, 300 thousand names and 100 thousand rows.

    python benchmarks/stream.py --scale 0.1
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

INTERACTIONS, NAMES, ROWS = 5_000_000, 300_000, 100_000
GROUP, LENGTH, DIM, BATCH = 10, 5, 32, 256
COLUMNS = ["vocabulary", "rows", "NDCG@10", "MB after a half", "MB before the tests", "CPU s"]


class Log:
    """The batches of the log: histories [B, T] and the next names [B], as numbers."""

    def __init__(self, scale, alive, seed):
        self.num_names, self.num_batches = int(NAMES * scale), int(INTERACTIONS * scale) // BATCH
        self.alive, self.seed = int(alive * ROWS * scale) // GROUP, seed
        self.num_groups = self.num_names // GROUP
        # How often a group is taken, and the names in it.
        rng = np.random.default_rng(seed)
        self.weights = rng.permutation((1.0 + np.arange(self.num_groups)) ** -0.5)
        self.in_group = 1.0 / (1.0 + np.arange(GROUP))
        self.names = rng.permutation(self.num_groups * GROUP)

    def first_group(self, number):
        """The first of the groups that are there at a batch."""
        return (self.num_groups - self.alive) * number // self.num_batches

    def names_at(self, number):
        """The names that are there at a batch."""
        return self.names[self.first_group(number) * GROUP :][: self.alive * GROUP]

    def batch(self, number):
        """The batch of a number: the same each time."""
        rng = np.random.default_rng([self.seed, number])
        first = self.first_group(number)
        weights = self.weights[first : first + self.alive]
        groups = first + rng.choice(self.alive, BATCH, p=weights / weights.sum())
        places = rng.choice(GROUP, (BATCH, LENGTH + 1), p=self.in_group / self.in_group.sum())
        names = self.names[groups[:, np.newaxis] * GROUP + places]
        return names[:, :-1], names[:, -1]


def make_model(num_classes, vocabulary, seed):
    """A compiled model of the mean of a history, tied to the head."""
    keras.utils.set_random_seed(seed)
    items = keras.Input((LENGTH,), dtype="int32")
    vectors = keras.layers.Embedding(num_classes + 1, DIM, name="item_embedding")(items)
    query = keras.layers.Dense(DIM)(keras.layers.GlobalAveragePooling1D()(vectors))
    model = tfxc.ExtremeClassifier(
        keras.Model(items, query),
        tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1),
        tfxc.samplers.InBatch(),  # both models get the same negatives
        class_names=vocabulary,
    )
    model.compile(tfxc.optimizers.LazyAdam(3e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    return model


def ndcg(ranked, wanted):
    """NDCG@10 of ids [B, 10] and the one wanted [B], -1 for one that has no row."""
    rows, places = np.nonzero((ranked == wanted[:, np.newaxis]) & (wanted >= 0)[:, np.newaxis])
    return float(np.sum(1 / np.log2(places + 2))) / len(wanted)


def train(log, num_classes, vocabulary, args):
    """Goes through the log; returns NDCG@10 over its last tenth, MB at two times, and CPU seconds.

    The tests rank all names at once, which takes more memory than training.
    """
    model = make_model(num_classes, vocabulary, log.seed)
    found, memory, started = [], [], time.process_time()
    pieces = np.array_split(np.arange(log.num_batches), args.pieces)
    for piece in pieces:
        is_last = piece[0] >= 0.9 * log.num_batches
        if is_last:
            found.append(np.mean([tested(model, log, number) for number in piece[: args.tests]]))
        model.fit(dataset(log, piece, vocabulary), verbose=0)
        memory += [] if is_last else [resident()]
    seconds = time.process_time() - started
    return float(np.mean(found)), memory[len(pieces) // 2], memory[-1], seconds


def tested(model, log, number):
    """NDCG@10 of a batch, among the names that are there."""
    (histories, wanted), allow = log.batch(number), log.names_at(number)
    if model.vocabulary is not None:
        encode = lambda names: model.vocabulary.encode(names.reshape(-1), -1).reshape(names.shape)  # noqa: E731
        histories, wanted, allow = map(encode, (histories, wanted, allow))
    histories, allow = (tf.constant(ids, tf.int32) for ids in (histories + 1, allow[np.newaxis]))
    return ndcg(model.rank(histories, 10, allow=allow)["ids"].numpy(), wanted)


def dataset(log, piece, vocabulary):
    """The batches of some numbers: strings for a growing vocabulary, else ids."""

    def batches():
        for number in piece:
            histories, names = log.batch(number)
            yield (
                (histories.astype("S"), names.astype("S"))
                if vocabulary is not None
                else (histories + 1, names)
            )

    dtype = tf.int64 if vocabulary is None else tf.string
    shapes = [None, LENGTH], [None]
    specs = tuple(tf.TensorSpec(shape, dtype) for shape in shapes)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=specs)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(piece)))


def resident():
    """The process's memory now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the log, its names and the rows")
    parser.add_argument("--alive", type=float, default=0.8, help="names at a time, as a share of the rows")
    parser.add_argument("--half-life", type=float, help="of the counts, in uses")
    parser.add_argument("--pieces", type=int, default=40, help="calls of fit")
    parser.add_argument("--tests", type=int, default=10, help="batches tested before each of the last pieces")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    add_results(parser)
    args = parser.parse_args(argv)
    rows = []
    for seed in args.seeds:
        log, num_rows = Log(args.scale, args.alive, seed), int(ROWS * args.scale)
        growing = tfxc.data.GrowingVocabulary(num_rows, args.half_life)
        for title, num, vocabulary in ("growing", num_rows, growing), ("all names", log.num_names, None):
            rows.append([f"{title}, seed {seed}", num, *train(log, num, vocabulary, args)])
            print(rows[-1], flush=True)
    show(f"{int(INTERACTIONS * args.scale):,} interactions", rows, COLUMNS)
    keep(args.results)


if __name__ == "__main__":
    main()
