"""Turns sessions into points of the Extreme Classification format, labelled with the next item.

    python examples/session_points.py --data train.txt --test-data test.txt --output sessions
    python examples/extreme_classification.py --data sessions --heads dense mach

Features are the items seen and, as separate features, the last of them. Labels are the last few items of each
training session, and the last item of each test session.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from common.arguments import count, existing
from common.recommendation_data import FORMATS, HELP_ON_BAD_LINES, HELP_ON_FORMATS, reader, too_short
from scipy.sparse import csr_matrix

from tfxc import data


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=existing, required=True, help="file of training sessions, plain, .gz or .xz")
    add("--test-data", type=existing, required=True, help="file of test sessions")
    add(
        "--format",
        choices=[name for name in FORMATS if name != "text"],
        default="sessions",
        help=HELP_ON_FORMATS,
    )
    add("--skip-bad-lines", action="store_true", help=HELP_ON_BAD_LINES)
    add("--num-last", type=count, default=3, help="items at the end of a training session that are labels")
    add("--output", type=Path, required=True, help="folder of train.txt, test.txt and label_names.txt")
    return parser.parse_args(argv)


def points_of(sequences, num_last):
    """Labelled points of the last ``num_last`` items of each sequence that have others before them."""
    num_items = sequences.num_classes
    owner = np.repeat(np.arange(len(sequences)), sequences.lengths)
    start, stop = sequences.offsets[:-1][owner], sequences.offsets[1:][owner]
    where = np.arange(len(sequences.items))
    target = where[(where > start) & (where >= stop - num_last)]
    seen = target - start[target]
    rows = np.repeat(np.arange(len(target)), seen)
    # Positions start, start + 1, ... of each target's session.
    before = np.arange(len(rows)) - np.repeat(np.cumsum(seen) - seen, seen) + start[target][rows]
    columns = np.concatenate([sequences.items[before], num_items + sequences.items[target - 1]])
    rows = np.concatenate([rows, np.arange(len(target))])
    features = csr_matrix(
        (np.ones(len(rows), np.float32), (rows, columns)), shape=(len(target), 2 * num_items)
    )
    labels = csr_matrix(
        (np.ones(len(target), bool), (np.arange(len(target)), sequences.items[target])),
        shape=(len(target), num_items),
    )
    return data.LabeledPoints(features, labels)


def main(argv=None):
    args = parse_arguments(argv)
    read = reader(args)
    train = read(args.data)
    test = read(args.test_data, vocabulary=train.vocabulary)
    made = {"train": points_of(train, args.num_last), "test": points_of(test, 1)}
    for points, path, sequences in zip(
        made.values(), (args.data, args.test_data), (train, test), strict=True
    ):
        if not len(points):
            raise SystemExit(too_short(path, sequences))
    os.makedirs(args.output, exist_ok=True)
    for name, points in made.items():
        data.write_extreme_classification(args.output / f"{name}.txt", points)
        print(
            f"{name}: {len(points):,} points, {points.num_features:,} features, {points.num_labels:,} labels"
        )
    names = "\n".join(str(name) for name in train.vocabulary.names)
    (args.output / "label_names.txt").write_text(names + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
