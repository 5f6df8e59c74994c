"""Tags from titles: a Transformer of KerasHub or a bag of words reads texts; the export takes strings.

Without arguments it tags Tate's artworks with their subjects by their titles (and artists, materials, dates).
Your own data are a folder like LF-AmazonTitles-131K, with trn.json.gz, tst.json.gz and lbl.json.gz:

    pip install ".[text]"
    python examples/product_tags.py
    python examples/product_tags.py --data LF-AmazonTitles-131K --label-texts --output runs/titles

The Transformer is a DistilBERT of two layers of width 128, with random weights. --preset gives it the size,
the weights and the word pieces of a preset of KerasHub, by its name or as a folder:

    python examples/product_tags.py --data LF-AmazonTitles-131K --label-texts --negatives astra \\
        --num-negatives 450 --num-hard 50 --preset distil_bert_base_en_uncased --max-length 32 \\
        --batch-size 512 --learning-rate 2e-4 --epochs 40 --output runs/titles-full

A step scores a title's tags and the classes that --negatives finds: "hard" ones by an index that is refreshed
behind training, "astra" with uniform ones beside them, "searched" in the step, or "uniform" ones; "full"
scores every class. TensorFlow's own ops cut the word pieces, so TensorFlow Serving loads the model as it is.

The same command resumes an interrupted run.
"""

import argparse
import json
import os
from importlib.util import find_spec

import numpy as np
from common import text_encoders, training_log
from common.arguments import count, existing, from_two, share, whole
from common.classification_data import BUNDLED
from common.plots import plot
from common.text_data import load_texts
from common.text_encoders import ENCODERS, make_encoder, vocabulary_of
from common.training_log import TrainingLog, markdown_table, times
from common.word_pieces import WordPieces
from tensorflow import keras

import tfxc

NEGATIVES = ("hard", "astra", "searched", "uniform", "full")
METRICS = [("P", tfxc.metrics.PrecisionAtK), ("N", tfxc.metrics.NDCGAtK), ("R", tfxc.metrics.RecallAtK)]


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=existing, default=BUNDLED, help="folder of titles, labels, and the labels' names")
    add("--encoders", nargs="+", choices=ENCODERS, default=["distilbert"], help="what reads the titles")
    text_encoders.add_arguments(add)
    add("--negatives", choices=NEGATIVES, default="astra", help="classes that a step scores")
    add("--num-negatives", type=count, default=64, help="of them, beside the title's tags")
    add("--num-hard", type=whole, default=8, help="astra, searched: hard ones among these")
    add("--start-epoch", type=from_two, default=2, help="hard, astra: first epoch with hard ones, from 0")
    add("--refresh-every", type=count, default=1, help="hard, astra: epochs between refreshes")
    add("--label-texts", action="store_true", help="the names of the tags are titles, too, each with its tag")
    add("--batch-size", type=count, default=64)
    training_log.add_arguments(add)
    add("--warm-up", type=share, default=0.1, help="share of the steps in which the rate rises")
    add("--output", default="runs/product-tags", help="folder for checkpoints, plot and exported models")
    parser.set_defaults(epochs=8, patience=100, learning_rate=1e-3)
    args = parser.parse_args(argv)
    if args.negatives in ("hard", "astra") and args.start_epoch >= args.epochs:
        parser.error(
            f"--start-epoch {args.start_epoch} comes after --epochs {args.epochs}: no negative would be hard"
        )
    if args.negatives in ("astra", "searched") and args.num_hard > args.num_negatives:
        parser.error(f"--num-hard {args.num_hard} is more than --num-negatives {args.num_negatives}")
    return args


def make_sampler(args):
    """The sampler of the classes that a step scores; None for all."""
    num_hard = {"hard": args.num_negatives, "uniform": 0}.get(args.negatives, args.num_hard)
    if args.negatives == "full":
        return None
    if num_hard == 0:
        return tfxc.samplers.Uniform(args.num_negatives)
    in_step = args.negatives == "searched"
    kind = tfxc.samplers.SearchedHardNegatives if in_step else tfxc.samplers.HardNegatives
    # Most titles have at most 24 tags, which are not negatives.
    return kind(num_hard, args.num_negatives - num_hard, num_retrieved=num_hard + 24)


def make_model(name, train, names, num_pieces, num_steps, args):
    """A compiled classifier; at the start no tag is likely."""
    keras.utils.set_random_seed(args.seed)
    bias = keras.initializers.Constant(float(np.log(train.labels.nnz / len(train) / len(names))))
    model = tfxc.ExtremeClassifier(
        make_encoder(name, num_pieces, args),
        tfxc.layers.DenseHead(len(names), use_bias=True, bias_initializer=bias),
        sampler=make_sampler(args),
        k=5,
        class_names=names,
    )
    warm = int(args.warm_up * num_steps)
    options = {"warmup_target": args.learning_rate, "warmup_steps": warm} if warm else {}
    start = 0.0 if warm else args.learning_rate
    rate = keras.optimizers.schedules.CosineDecay(start, num_steps - warm, **options)
    metrics = [metric(k, average="all") for _, metric in METRICS for k in (1, 3, 5)]
    model.compile(tfxc.optimizers.LazyAdam(rate), loss=tfxc.losses.BinaryCrossentropy(), metrics=metrics)
    return model


def train_encoder(name, train, test, names, pieces, args):
    """Trains one encoder's model to its end or resumes it; returns it, its history and test results."""
    train_set = train.dataset(pieces, args.batch_size, args.seed)
    test_set = test.dataset(pieces, 256)
    model = make_model(name, train, names, len(pieces.vocabulary), args.epochs * len(train_set), args)
    folder = os.path.join(args.output, name)
    log = TrainingLog(
        folder, model, args.patience, "val_precision_at_1", verbose=args.verbose, options=vars(args)
    )
    log.resume(train_set)
    callbacks = []
    if isinstance(model.sampler, tfxc.samplers.HardNegatives):
        mined = os.path.join(folder, "hard-negatives")
        callbacks = [
            tfxc.callbacks.HardNegativeMining(mined, len(train), args.start_epoch, args.refresh_every)
        ]
    elif model.sampler is not None:
        callbacks = [tfxc.callbacks.SamplerRefresh(200)]
    log.fit(train_set, test_set, args.epochs, callbacks)
    log.restore_best()
    result = model.evaluate(test_set, return_dict=True, verbose=0)
    own_times = {"seconds": log.seconds, "processor_seconds": log.processor_seconds}
    return model, log.rows, {"epochs": len(log.rows), **own_times, **result}


def served(model, pieces):
    """The model with strings as its input."""
    texts = keras.Input((), dtype="string", name="texts")
    query = model.encoder({"token_ids": pieces(texts)})
    encoder = keras.Model(texts, query)
    return tfxc.ExtremeClassifier(encoder, model.head, k=model.k, class_names=model.class_names)


def table(results):
    """The results as a Markdown table."""
    rows = []
    for name, row in results.items():
        figures = [
            f"{100 * row[f'{metric.abbreviation}_at_{k}']:.1f}" for _, metric in METRICS for k in (1, 3, 5)
        ]
        rows.append([name, *times(row), f"{row['processor_seconds']:.0f}", *figures])
    titles = [f"{title}@{k}" for title, _ in METRICS for k in (1, 3, 5)]
    return markdown_table(["encoder", "epochs", "train s", "s/epoch", "processor s", *titles], rows)


def run(args):
    """Trains every encoder's model, writes the comparison, and exports the models; returns the results."""
    if (args.preset or "distilbert" in args.encoders) and find_spec("keras_hub") is None:
        raise SystemExit(
            "The Transformer needs KerasHub: pip install '.[text]' in a clone, or give --encoders bag alone."
        )
    train, test, names = load_texts(args.data)
    print(f"{len(train):,} training and {len(test):,} test titles, {len(names):,} tags")
    pieces = WordPieces(vocabulary_of(train.texts, args), args.max_length)
    train = train.with_names(names) if args.label_texts else train
    histories, results = {}, {}
    shown = np.linspace(0, len(test) - 1, 3).astype(int)
    for name in args.encoders:
        model, histories[name], results[name] = train_encoder(name, train, test, names, pieces, args)
        exported = served(model, pieces)
        exported.export(os.path.join(args.output, name, "served", "1"))
    text = table(results)
    print(f"\n{text}\n\nTags of some test titles, and those that {name} predicts:")
    best = exported.predict(np.array([test.texts[row] for row in shown], object), verbose=0)["ids"]
    for row, ids in zip(shown, best, strict=True):
        own = ", ".join(names[label] for label in test.labels[row].indices)
        print(f"  {test.texts[row]}: {own}\n    -> {', '.join(names[label] for label in ids)}")
    arguments = {key: str(value) for key, value in vars(args).items()}
    with open(os.path.join(args.output, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"arguments": arguments, "results": results, "histories": histories}, file, indent=1)
    picture = os.path.join(args.output, "precision_against_time.png")
    plot(histories, picture, "val_precision_at_1", "test P@1", clock="processor_seconds")
    print(f"\nWrote results, plot and exported models to {args.output}/.")
    return results


if __name__ == "__main__":
    run(parse_arguments())
