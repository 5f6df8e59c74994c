"""The sequences of the recommendation example, their split, and their batches."""

from functools import partial

import numpy as np

from common.arguments import count, existing, rate
from common.language_data import BUNDLED
from tfxc import data

BUNDLED_TITLE = "Twelve novels, the next word as the next item"
FORMATS = ("interactions", "sequences", "sessions", "text")
HELP_ON_FORMATS = (
    "of a line: interactions, user item [time]; sequences, user item item ...; sessions, item item ...; "
    "text, running words"
)
HELP_ON_BAD_LINES = "leave out lines that cannot be read, and test sessions with items that --data lacks"
NUM_VALIDATION_SESSIONS = 5000
LEAST_SESSIONS = 10  # with so many, one is for validation


def add_arguments(add):
    """The options of the data."""
    add("--data", type=existing, default=BUNDLED, help="file of sequences, plain, .gz or .xz")
    add("--format", choices=FORMATS, default="text", help=HELP_ON_FORMATS)
    add("--test-data", type=existing, help="separate test sessions; default: a split of --data")
    add("--skip-bad-lines", action="store_true", help=HELP_ON_BAD_LINES)
    rarer = "rarer items are left out, until all others are as frequent; if not given: 3 of a text, else 1"
    add("--min-item", "--min-count", type=count, help=rarer)
    add("--min-user", type=count, default=1, help="users of fewer items are left out, likewise")
    users = "shares of the users; if not given, the last two items of each are for validation and test"
    add("--split", nargs=3, type=rate, metavar=("TRAIN", "VALIDATION", "TEST"), help=users)


def reader(args):
    """The reader for files of users or sessions that the command line chooses."""
    on_error = "skip" if args.skip_bad_lines else "raise"
    return partial(getattr(data, f"read_{args.format}"), on_error=on_error)


def too_short(path, sequences):
    """The message for a file in which no sequence has two items."""
    return (
        f"{path} has {len(sequences)} sequences, none of two items or more: the last item of each is to be "
        "found from those before it."
    )


def load_split(args):
    """The ``data.Split`` that the command line chooses.

    The end of each book is held out. With a file of test sessions, some training sessions are held out for
    validation. For all other data, each user's last item is held out, or the users of two parts.
    """
    if args.split and (args.format == "text" or args.test_data is not None):
        raise SystemExit("--split goes with users' items, not with --format text or --test-data.")
    if args.format == "text":
        if args.test_data is not None:
            raise SystemExit(
                "--test-data does not go with --format text: a text is split at its books' ends."
            )
        # Rare words are left out instead of sharing a class: nobody wants "some rare word" recommended.
        words, _ = data.k_core(data.read_text(args.data), args.min_user, args.min_item or 3)
        return data.tail_split(words, 0.01, 0.03)
    read = reader(args)
    sequences, _ = data.k_core(read(args.data), args.min_user, args.min_item or 1)
    if args.split:
        return data.ratio_split(sequences, np.divide(args.split, sum(args.split)))
    if args.test_data is None:
        return data.leave_last_out(sequences)
    test = read(args.test_data, vocabulary=sequences.vocabulary)
    usable_tests = np.flatnonzero(test.lengths >= 2)
    if not len(usable_tests):
        raise SystemExit(too_short(args.test_data, test))
    usable = np.flatnonzero(sequences.lengths >= 2)
    if len(usable) < LEAST_SESSIONS:
        raise SystemExit(
            f"{args.data} has {len(usable)} sessions of two items or more, too few to hold some out for "
            f"validation: it takes {LEAST_SESSIONS}."
        )
    held_out = np.random.default_rng(0).permutation(usable)[
        : min(NUM_VALIDATION_SESSIONS, len(usable) // LEAST_SESSIONS)
    ]
    in_train = np.ones(len(sequences), bool)
    in_train[held_out] = False
    return data.Split(
        sequences.select(in_train), sequences.select(np.sort(held_out)), test.select(usable_tests)
    )


def title_of(split, args):
    """The name of the data, and its number of classes."""
    name = BUNDLED_TITLE if args.data == BUNDLED else args.data.name
    return f"{name} ({split.train.num_classes:,} classes)"


def training_batches(sequences, args):
    """Training batches of ``args.batch_size`` histories; packed, if wanted, of about as many.

    Where ``args.packed`` is None they are packed if that halves the rows.
    """
    make = partial(data.sequence_training_dataset, sequences, args.max_length, windows="all", seed=args.seed)
    share = len(make(1, packed=True)) / len(make(1))
    if args.packed or (args.packed is None and share < 0.5):
        return make(max(1, round(share * args.batch_size)), packed=True)
    return make(args.batch_size)


def batches(split, args):
    """Training, validation and test batches."""
    train = training_batches(split.train, args)
    if args.format == "text":  # every word of the held-out pages is a target
        if args.exclude_seen:
            raise SystemExit("--exclude-seen does not go with --format text, in which words come again.")
        return train, *(
            data.sequence_training_dataset(part, args.max_length, args.batch_size, windows="all", seed=None)
            for part in (split.validation, split.test)
        )
    return train, *(
        data.sequence_evaluation_dataset(part, args.max_length, 256, exclude_seen=args.exclude_seen)
        for part in (split.validation, split.test)
    )
