"""A catalogue that changes every day: a trained model carried over, against a model trained from scratch.

    python examples/daily_catalogue.py --data train.txt --format sessions

The sessions in the file must be in the order of time. The program cuts the last ones into days. The catalogue
of a day holds the items in the sessions of a window before it: other items are retired, and some are new.
``tfxc.change_classes`` carries the model of the previous day over to the new catalogue; a new item starts as
the mean of its neighbours in the window. The model then takes the steps of one epoch: yesterday's sessions
several times, since hardly any other session has the new items, and some of the others. Another model is
trained from scratch, for many epochs. Both are tested on every item of the day's sessions except the first. A
model that has been carried over for weeks (``--days-before``) has learnt from more than the window.

Without arguments the twelve bundled novels are the log: runs of words, book after book.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from common import recommendation_data
from common.arguments import count, existing, rate, whole
from common.training_log import VERBOSE, markdown_table
from tensorflow import keras

import tfxc
from tfxc import data

WORDS_PER_SESSION = 20
REPEATS = 5  # passes over yesterday's sessions
EPOCH = 0.98  # the share of the window's sessions: all of them could be a step or two more than an epoch
COLUMNS = ["day", "classes", "new", "retired", "carried over, s", "model", "steps", "train s", "NDCG@10"]


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data",
        type=existing,
        default=recommendation_data.BUNDLED,
        help="file of sessions, plain, .gz or .xz",
    )
    add(
        "--format",
        choices=recommendation_data.FORMATS,
        default="text",
        help=recommendation_data.HELP_ON_FORMATS,
    )
    add("--min-count", type=count, default=3, help="items that come up more rarely in a window are left out")
    add("--days", type=count, default=5, help="tested")
    add(
        "--days-before",
        type=whole,
        default=0,
        help="days that the model is carried over before the first tested",
    )
    add("--sessions-a-day", type=count, default=2000)
    add("--window", type=count, default=40_000, help="sessions before a day that its models learn from")
    add(
        "--epochs",
        type=count,
        default=10,
        help="of a training anew; the carried-over model takes the sessions of one",
    )
    add("--num-negatives", type=count, default=100)
    add("--dim", type=count, default=64)
    add("--max-length", type=count, default=20)
    add("--batch-size", type=count, default=64)
    add("--learning-rate", type=rate, default=1e-3)
    add("--seed", type=whole, default=0)
    add("--output", type=Path, default=Path("runs/days"), help="folder for the table and the last model")
    return parser.parse_args(argv)


def load_sessions(args):
    """All sessions in the order of time; runs of words for a text."""
    sessions = getattr(data, f"read_{args.format}")(args.data)
    if args.format != "text":
        return sessions
    starts = [
        np.arange(start, stop, WORDS_PER_SESSION) for start, stop in zip(*bounds(sessions), strict=True)
    ]
    offsets = np.append(np.concatenate(starts), len(sessions.items))
    return data.Sequences(sessions.items, offsets, sessions.vocabulary)


def bounds(sessions):
    """The starts and the stops of all sessions."""
    return sessions.offsets[:-1], sessions.offsets[1:]


def catalogue_of(sessions, min_count):
    """The names of the items that occur often enough."""
    return sessions.vocabulary.names[np.flatnonzero(sessions.counts() >= min_count)]


def in_catalogue(sessions, vocabulary):
    """The sessions as ids of a catalogue, without items outside it, where 2 items or more are left."""
    new_id = vocabulary.encode(sessions.vocabulary.names, unknown=-1)
    items = new_id[sessions.items]
    kept = np.append(0, np.cumsum(items >= 0))
    changed = data.Sequences(items[items >= 0], kept[sessions.offsets], vocabulary)
    return changed.select(changed.lengths >= 2)


def make_model(vocabulary, args):
    """A compiled SASRec with sampled negatives."""
    keras.utils.set_random_seed(args.seed)
    num_classes = len(vocabulary)
    model = tfxc.ExtremeClassifier(
        tfxc.encoders.sasrec(num_classes, args.max_length, args.dim),
        tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1),
        tfxc.samplers.MIDX(args.num_negatives, num_codewords=32, seed=args.seed),
        k=10,
        class_names=vocabulary.names,
    )
    optimizer = tfxc.optimizers.LazyAdam(args.learning_rate)
    model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy(), metrics=[tfxc.metrics.NDCGAtK(10)])
    return model


class FallingRate(keras.callbacks.Callback):
    """Decays the learning rate to 0 in each training: a schedule would end after the first day."""

    def __init__(self, start, num_steps):
        super().__init__()
        self.start, self.num_steps, self.step = start, num_steps, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = self.start * (1 - self.step / self.num_steps)
        self.step += 1


def yesterday_and_before(window, seed, args):
    """Nearly as many sessions as in the window: its last day's several times, others drawn from the rest."""
    num_others = max(len(window) - args.sessions_a_day, 0)
    latest = np.arange(num_others, len(window))
    latest = np.tile(latest, min(REPEATS, max(int(EPOCH * len(window)) // len(latest), 1)))
    num_drawn = min(max(int(EPOCH * len(window)) - len(latest), 0), num_others)
    drawn = np.random.default_rng(seed).choice(num_others, num_drawn, replace=False)
    return window.select(np.concatenate([drawn, latest]))


def train(model, sessions, epochs, rate, seed, args):
    """Trains on sessions; returns the number of steps and seconds."""
    batches = data.sequence_training_dataset(
        sessions, args.max_length, args.batch_size, windows="all", seed=seed
    )
    num_steps, start = epochs * len(batches), time.perf_counter()
    model.fit(batches, epochs=epochs, callbacks=[FallingRate(rate, num_steps)], verbose=VERBOSE)
    return num_steps, time.perf_counter() - start


def test(model, sessions, args):
    """NDCG@10 over every item of sessions except the first, and the names of all answers."""
    batches = data.sequence_training_dataset(sessions, args.max_length, 256, windows="all", seed=None)
    quality = model.evaluate(batches, return_dict=True, verbose=0)["ndcg_at_10"]
    ids = model.predict(batches.map(lambda items, labels: items), verbose=0)["ids"]
    return quality, {model.class_names[i] for i in np.unique(ids)}


def run(args):
    """Goes through the days; returns the table's rows and the last model."""
    sessions = load_sessions(args)
    first = len(sessions) - args.days * args.sessions_a_day
    if first <= (args.days_before + 1) * args.sessions_a_day:
        raise SystemExit(
            f"{len(sessions)} sessions are too few for {args.days_before + args.days} days of "
            f"{args.sessions_a_day}."
        )
    rows, model, vocabulary = [], None, None
    for day in range(-args.days_before, args.days + 1):  # the first day makes the model to carry over
        begin = first + (day - 1) * args.sessions_a_day
        seed = args.seed + begin  # each day has its own shuffling and draws
        window = sessions.select(np.arange(max(0, begin - args.window), begin))
        names = catalogue_of(window, args.min_count)
        if not len(names):
            raise SystemExit(
                f"No item comes up --min-count {args.min_count} times in a window of {len(window)} sessions."
            )
        if model is None:
            vocabulary = data.Vocabulary(names)
            model = make_model(vocabulary, args)
            train(model, in_catalogue(window, vocabulary), args.epochs, args.learning_rate, seed, args)
            continue
        before, vocabulary = vocabulary, data.Vocabulary.merge(vocabulary, names)
        gone = set(before.names) - set(vocabulary.names)
        num_new = len(vocabulary) - len(before) + len(gone)
        start = time.perf_counter()
        model = tfxc.change_classes(model, vocabulary.names, new_rows=window)
        seconds = time.perf_counter() - start
        learnt = in_catalogue(yesterday_and_before(window, seed, args), vocabulary)
        carried = model, learnt, 1, args.learning_rate / 2  # half the rate keeps what the model has learnt
        if day < 1:
            train(*carried, seed, args)
            continue
        today = in_catalogue(sessions.select(np.arange(begin, begin + args.sessions_a_day)), vocabulary)
        everything = in_catalogue(window, vocabulary)
        anew = make_model(vocabulary, args), everything, args.epochs, args.learning_rate
        for title, (own, *given) in {"carried over": carried, "anew": anew}.items():
            steps, took = train(own, *given, seed, args)
            quality, answers = test(own, today, args)
            assert not answers & gone, "a retired item was recommended"
            row = [day, len(vocabulary), num_new, len(gone), f"{seconds:.1f}", title, steps]
            rows.append([*map(str, row), f"{took:.0f}", f"{quality:.4f}"])
            print(markdown_table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    return rows, model


def main(argv=None):
    args = parse_arguments(argv)
    args.output.mkdir(parents=True, exist_ok=True)  # at the start: an error later would lose a day's training
    rows, model = run(args)
    table = markdown_table(COLUMNS, rows)
    print(f"\n{table}")
    (args.output / "days.md").write_text(table + "\n", encoding="utf-8")
    (args.output / "results.json").write_text(
        json.dumps({"columns": COLUMNS, "rows": rows}), encoding="utf-8"
    )
    model.save(args.output / "model.keras")


if __name__ == "__main__":
    main()
