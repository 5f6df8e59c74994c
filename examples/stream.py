"""A model that follows a log which never ends: items come and go while it trains.

    python examples/stream.py
    tail -n +1 -F sessions.log | python examples/stream.py --log -

A line of the log is a session, its items separated by blanks, in the order of time. The program takes so
many lines at a time: it ranks their items by the model as it is, trains on them, and saves the model with its
names. After a kill it goes on where the saved model was. (A pipe gives only what it has not given yet.)

Without arguments the log is the twelve bundled novels, cut into lines of twenty words.
"""

import argparse
import itertools
import lzma
import sys
from pathlib import Path

import numpy as np
from common.arguments import count, rate, whole
from common.language_data import BUNDLED
from tensorflow import data, keras

import tfxc

WORDS_PER_LINE = 20


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--log", help="file of sessions, - for what comes in; if not given, the novels")
    add("--lines", type=count, default=2000, help="taken at a time")
    add("--turns", type=count, help="end after so many times; if not given, when the log ends")
    add("--rows", type=count, default=5000, help="names that the model knows at a time")
    add("--max-length", type=count, default=10, help="items that a query is made of")
    add("--dim", type=count, default=64)
    add("--num-negatives", type=count, default=100)
    add("--batch-size", type=count, default=64)
    add("--learning-rate", type=rate, default=1e-3)
    add("--seed", type=whole, default=0)
    add("--output", type=Path, default=Path("runs/stream"), help="folder for the model")
    return parser.parse_args(argv)


def sessions_of(log):
    """The sessions of a log, lists of names."""
    if log is None:
        with lzma.open(BUNDLED, "rt", encoding="utf-8") as file:
            words = (word for line in file for word in line.lower().split())
            while session := list(itertools.islice(words, WORDS_PER_LINE)):
                yield session
    elif log == "-":
        yield from map(str.split, sys.stdin)
    else:
        with open(log, encoding="utf-8") as file:
            yield from map(str.split, file)


def batches_of(sessions, args):
    """Batches of histories [B, T], padded with "" in front, and the next names [B]."""
    pad = [""] * args.max_length
    padded = [pad + session for session in sessions]
    ends = [(own, end) for own in padded for end in range(args.max_length + 1, len(own))]
    histories = [own[end - args.max_length : end] for own, end in ends]
    names = [own[end] for own, end in ends]
    return data.Dataset.from_tensor_slices((np.array(histories), np.array(names))).batch(args.batch_size)


def make_model(args):
    """A compiled GRU4Rec with sampled negatives, which knows no name yet."""
    keras.utils.set_random_seed(args.seed)
    vocabulary = tfxc.data.GrowingVocabulary(args.rows)
    encoder = tfxc.encoders.gru4rec(args.rows, args.max_length, args.dim)
    model = tfxc.ExtremeClassifier(
        keras.Model(encoder.input, encoder.output[:, -1]),  # only the name behind the last item is a label
        tfxc.layers.DenseHead(args.rows, tied_to="item_embedding", row_offset=1),
        tfxc.samplers.Unigram(args.num_negatives, power=0.75, shared=True),
        class_names=vocabulary,
    )
    optimizer = tfxc.optimizers.LazyAdam(args.learning_rate)
    model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy())
    return model


def ndcg(model, batches):
    """NDCG@10 of the next names; one that the model does not know is a miss."""
    gains, total = 0.0, 0
    for ranked, (_, names) in zip(predicted(model, batches), batches, strict=True):
        known = model.vocabulary.encode(names, unknown=-2)
        places = np.nonzero(ranked == known[:, np.newaxis])[1]
        gains, total = gains + np.sum(1 / np.log2(places + 2)), total + len(known)
    return gains / total


def predicted(model, batches):
    """The best ids of each batch."""
    for histories, _ in model.vocabulary.encoded(batches):
        yield model.predict_on_batch(histories)["ids"]


def main(argv=None):
    args = parse_arguments(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    sessions, saved = sessions_of(args.log), sorted(args.output.glob("turn-*.keras"))
    if saved:
        model, turn = keras.models.load_model(saved[-1]), int(saved[-1].stem.removeprefix("turn-"))
        print(f"goes on after {turn} turns with {len(model.class_names)} names")
        if args.log != "-":
            sessions = itertools.islice(sessions, turn * args.lines, None)
    else:
        model, turn = make_model(args), 0
    while turn != args.turns and (taken := list(itertools.islice(sessions, args.lines))):
        batches = batches_of(taken, args)
        before, quality = set(model.class_names), ndcg(model, batches) if turn else 0.0
        model.fit(batches, verbose=0)
        names = set(model.class_names)
        turn += 1
        print(
            f"turn {turn}: NDCG@10 before training {quality:.4f}; {len(names)} names, {len(names - before)} "
            f"new, {len(before - names)} gone",
            flush=True,
        )
        model.save(args.output / f"turn-{turn:06}.keras")
        for path in saved:
            path.unlink()
        saved = [args.output / f"turn-{turn:06}.keras"]
    model.export(args.output / "served", strings=True)


if __name__ == "__main__":
    main()
