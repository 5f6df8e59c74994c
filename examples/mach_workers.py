"""MACH without communication: each process trains some repetitions, and a last step merges them into one
model.

Start two processes, or two machines with the same data; a process that dies is restarted alone, and resumes:

    python examples/mach_workers.py --repetitions 0-3 --output runs/workers &
    python examples/mach_workers.py --repetitions 4-7 --output runs/workers &
    wait
    python examples/mach_workers.py --merge --num-repetitions 8 --output runs/workers

A process can also train several ranges one after the other, with the same result. --merge checks that sizes
and hash functions agree and that no repetition is missing, and writes model.keras and a SavedModel, served/.
It needs the --data and --hash-features of the training; with --decoder it tries another decoder from buckets
to classes.
"""

import argparse
import re
from pathlib import Path

from common import classification_data, classification_heads
from common.arguments import count, rate, whole
from common.classification_data import load
from common.classification_heads import DECODERS, bag_inputs, make_encoder, make_head
from common.training_log import VERBOSE, TrainingLog
from tensorflow import keras

import tfxc


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--repetitions", nargs="+", type=parse_range, help="such as 0-3: those to train")
    what.add_argument("--merge", action="store_true", help="merge what has been trained")
    classification_data.add_arguments(add)
    classification_heads.add_arguments(add)
    parser.set_defaults(loss="binary-crossentropy")
    add(
        "--decoder",
        choices=DECODERS,
        help="from buckets to classes; default: geometric; merge: as trained",
    )
    add("--num-repetitions", type=count, help="merge: how many there must be; default: up to the last found")
    add("--batch-size", type=count, default=128)
    add("--epochs", type=count, default=6)
    add("--learning-rate", type=rate, default=3e-3, help="at the start; falls to 0 along a cosine")
    add("--seed", type=whole, default=0, help="of the hash functions and the weights")
    add("--verbose", type=int, choices=(1, 2), default=VERBOSE, help="a progress bar, or lines")
    add(
        "--output",
        type=Path,
        default=Path("runs/workers"),
        help="folder for all repetitions and the merged model",
    )
    args = parser.parse_args(argv)
    if args.repetitions and args.decoder is None:
        args.decoder = "geometric"
    return args


def parse_range(text):
    """First and last of "0-3" or "5"."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
    if first > last:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of repetitions such as 0-3")
    return first, last


def check_ranges(args):
    """Raises SystemExit where ranges, given or in the folder, differ in size: they could not be merged."""
    before = [path.name.split("_")[1] for path in args.output.glob("repetitions_*-*") if path.is_dir()]
    ranges = sorted({*args.repetitions, *map(parse_range, before)})
    if len({last - first for first, last in ranges}) > 1:
        shown = ", ".join(f"{first}-{last}" for first, last in ranges)
        raise SystemExit(
            f"The repetitions {shown}, of this command and of {args.output}, are to be merged, so each range "
            "must hold as many: give ranges of one size, or another --output."
        )


def compiled(encoder, head, names, optimizer):
    model = tfxc.ExtremeClassifier(encoder, head, k=5, class_names=names)
    metrics = [tfxc.metrics.PrecisionAtK(k, average="all") for k in (1, 3, 5)]
    model.compile(optimizer, loss=tfxc.losses.BinaryCrossentropy(), metrics=metrics)
    return model


def train(first, last, data, args):
    """Trains some repetitions to their end, or resumes them, and saves them."""
    train_points, test_points, names = data
    name = f"repetitions_{first}-{last}"
    keras.utils.set_random_seed(args.seed + first)
    encoder = make_encoder("mach", train_points.num_features, args, name=name.replace("-", "_"))
    head = make_head("mach", train_points, args, first_repetition=first, num_repetitions=last - first + 1)
    train_set = tfxc.data.classification_dataset(train_points, args.batch_size, seed=args.seed)
    schedule = keras.optimizers.schedules.CosineDecay(args.learning_rate, args.epochs * len(train_set))
    model = compiled(encoder, head, names, tfxc.optimizers.LazyAdam(schedule))
    log = TrainingLog(
        args.output / name,
        model,
        patience=args.epochs,
        metric="val_precision_at_1",
        verbose=args.verbose,
        options=vars(args),
    )
    log.resume(train_set)
    log.fit(train_set, test_points.dataset(256), args.epochs)
    aside = args.output / f"writing_{name}.keras"
    model.save(aside)
    aside.replace(args.output / f"{name}.keras")


def merge(data, args):
    """Merges all saved parts, evaluates the model and writes it; returns the test results."""
    _, test_points, names = data
    paths = list(args.output.glob("repetitions_*.keras"))
    if not paths:
        raise SystemExit(f"There are no repetitions in {args.output}: train some with --repetitions first.")
    models = [keras.models.load_model(path) for path in paths]
    models.sort(key=lambda model: model.head.first_repetition)
    check_all_are_there(models, args)
    check_data(models[0], test_points, args)
    head = tfxc.layers.merge_mach_heads([model.head for model in models])
    if args.decoder:
        head = decoded_by(args.decoder, head)
    inputs = bag_inputs()
    queries = [model.encoder(inputs) for model in models]
    query = keras.layers.Concatenate()(queries) if len(queries) > 1 else queries[0]
    merged = compiled(keras.Model(inputs, query), head, names, tfxc.optimizers.LazyAdam())
    results = merged.evaluate(test_points.dataset(256), return_dict=True, verbose=0)
    figures = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
    print(f"{head.num_repetitions} repetitions of {len(models)} encoders: {figures}")
    merged.save(args.output / "model.keras")
    merged.export(args.output / "served")
    print(f"Wrote model.keras and served/ to {args.output}/.")
    return results


def decoded_by(decoder, head):
    """A head with the same weights and another decoder, which training does not use."""
    changed = tfxc.layers.MACHHead.from_config({**head.get_config(), "decoder": decoder})
    changed.build((None, head.query_dim))
    changed.set_weights(head.get_weights())
    return changed


def check_all_are_there(models, args):
    """Raises SystemExit where the first or the last repetition is missing; the merge itself refuses a gap."""
    first, last = models[0].head, models[-1].head
    num_found = last.first_repetition + last.num_repetitions
    num_due = args.num_repetitions or num_found
    if first.first_repetition > 0 or num_found != num_due:
        raise SystemExit(
            f"{args.output} holds the repetitions {first.first_repetition} to {num_found - 1}, but 0 to "
            f"{num_due - 1} are to be merged: train those that are missing."
        )


def check_data(model, points, args):
    """Raises SystemExit for other data than the model was trained with."""
    (bag,) = (layer for layer in model.encoder.layers if isinstance(layer, tfxc.layers.EmbeddingBag))
    given, trained = (points.num_labels, points.num_features), (model.head.num_classes, bag.num_features)
    if given != trained:
        raise SystemExit(
            f"{args.data} with --hash-features {args.hash_features} has {given[0]} labels and {given[1]} "
            f"features, but {args.output} was trained with {trained[0]} and {trained[1]}: give the same "
            "--data and --hash-features."
        )


def run(args):
    args.output.mkdir(parents=True, exist_ok=True)
    if not args.merge:
        check_ranges(args)
    read = args.hash_features, args.skip_bad_lines, args.first_id, args.text_encoding, args.max_points
    data = load(args.data, False, *read)
    if args.merge:
        return merge(data, args)
    for first, last in args.repetitions:
        train(first, last, data, args)
    return None


if __name__ == "__main__":
    run(parse_arguments())
