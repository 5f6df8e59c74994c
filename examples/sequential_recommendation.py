"""Next-item recommendation: trains a model for each sampler, compares them, and exports the last.

Without arguments it is the demo: the next word in a few novels stands for the next item, trained with all
classes, uniform and MIDX negatives, in a few minutes on two cores. On your own data:

    python examples/sequential_recommendation.py --data ml-1m.txt --format interactions \\
        --max-length 200 --batch-size 32 --epochs 40 --samplers full midx-rq --output runs/ml-1m

The same command resumes an interrupted run.
"""

import argparse
import json
import math
import os
import time
from functools import partial

import numpy as np
from common import encoders, recommendation_data, sampler_choice, training_log
from common.arguments import count, rate
from common.plots import plot
from common.quality_sample import QualitySample
from common.recommendation_data import batches, load_split, title_of
from common.sampler_choice import SAMPLERS
from common.training_log import TrainingLog, markdown_table, seconds_an_epoch, times
from tensorflow import keras

import tfxc

HEADS = ("dense", "mach")
LOSSES = {
    "softmax": tfxc.losses.SoftmaxCrossentropy,
    "softmax-at-k": tfxc.losses.SoftmaxAtK,
    "partition": partial(tfxc.losses.SoftmaxCrossentropy, "partition"),
    "binary": tfxc.losses.BinaryCrossentropy,
    "gbce": tfxc.losses.GBCE,
}
METRICS = {"NDCG": tfxc.metrics.NDCGAtK, "Recall": tfxc.metrics.RecallAtK}
EXPORTED = "served"


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    recommendation_data.add_arguments(add)
    add(
        "--exclude-seen",
        action="store_true",
        help="do not rank items of the history but the target, where it is one",
    )
    add(
        "--packed",
        action=argparse.BooleanOptionalAction,
        help="train on rows of several histories; if not given: where that halves the rows",
    )
    add("--ks", nargs="+", type=count, default=[10], help="cutoffs of NDCG and recall, beside 10")
    add("--model", choices=encoders.ENCODERS, default="sasrec")
    add("--heads", nargs="+", choices=HEADS, default=["dense"], help="mach: buckets shared by the items")
    add("--num-buckets", type=count, default=1024, help="mach: buckets of a repetition")
    add("--num-repetitions", type=count, default=8, help="mach: bucket classifiers")
    add(
        "--samplers", nargs="+", choices=SAMPLERS, default=["full", "uniform", "midx-rq"], help="dense: of it"
    )
    sampler_choice.add_arguments(add)
    add("--loss", choices=LOSSES, default="softmax", help="partition: the other estimator of the softmax")
    encoders.add_arguments(add)
    add("--table-dtype", choices=("float32", "bfloat16"), default="float32", help="of the items' vectors")
    add("--rowwise-adagrad", type=rate, metavar="RATE", help="of a RowwiseAdagrad for the items' vectors")
    training_log.add_arguments(add)
    add("--output", default="demo", help="folder for checkpoints, table, plot and export")
    args = parser.parse_args(argv)
    args.ks = sorted({10, *args.ks})
    trouble = what_does_not_suit(args)
    if trouble is not None:
        parser.error(f"--loss {args.loss} does not go with {trouble}")
    return args


def what_does_not_suit(args):
    """The option that the loss excludes, and the reason; None if there is none."""
    loss = LOSSES[args.loss]()
    if "mach" in args.heads and loss.needs_sampler:
        return "--heads mach, which has no sampler"
    if "mach" in args.heads and not loss.labels_share_probability:
        return "--heads mach, whose buckets have a softmax: give --loss softmax or partition"
    if "dense" in args.heads and "full" in args.samplers and loss.needs_sampler:
        return "the sampler full, as it weighs by what a sampler draws: give --samplers without it"
    return None


def make_head(name, num_classes, args):
    """Buckets, or a head that shares the table of the encoder's item embedding."""
    if name == "mach":
        return tfxc.layers.MACHHead(num_classes, args.num_buckets, args.num_repetitions, seed=args.seed)
    bias = {}
    if not LOSSES[args.loss]().labels_share_probability:
        # The binary loss starts at "no" for each item. The biases take the gradient that pushes all items
        # down; else the vectors would take it and become alike, and training would long stay at item
        # popularity.
        bias = {"use_bias": True, "bias_initializer": keras.initializers.Constant(-math.log(num_classes))}
    return tfxc.layers.DenseHead(
        num_classes, tied_to="item_embedding", row_offset=1, table_dtype=args.table_dtype, **bias
    )


def make_optimizer(encoder, num_steps, args):
    """LazyAdam; for the item embedding RowwiseAdagrad, if wanted, which keeps one number for each item."""
    adam = tfxc.optimizers.LazyAdam(keras.optimizers.schedules.CosineDecay(args.learning_rate, num_steps))
    if args.rowwise_adagrad is None:
        return adam
    adagrad = tfxc.optimizers.RowwiseAdagrad(args.rowwise_adagrad)
    return tfxc.optimizers.MultiOptimizer(adam, (adagrad, encoder.get_layer("item_embedding")))


def make_model(name, split, num_steps, args):
    """The compiled classifier of a run: one of the samplers, or "mach"."""
    keras.utils.set_random_seed(args.seed)
    num_classes = split.train.num_classes
    encode = encoders.ENCODERS[args.model]
    settings = sampler_choice.settings(args, split.train.counts())
    options = {"dropout": args.dropout, "table_dtype": args.table_dtype}
    encoder = encode(num_classes, args.max_length, args.dim, args.num_blocks, **options)
    model = tfxc.ExtremeClassifier(
        encoder,
        head=make_head(name, num_classes, args),
        sampler=None if name == "mach" else SAMPLERS[name](settings),
        k=10,
        class_names=split.train.vocabulary.names,
    )
    model.compile(
        make_optimizer(encoder, num_steps, args),
        loss=LOSSES[args.loss](),
        metrics=[metric(k) for k in args.ks for metric in METRICS.values()],
    )
    return model


def train(name, split, args):
    """Trains the model of one run to its end or resumes it; returns it, its history and test results."""
    train_set, validation_set, test_set = batches(split, args)
    model = make_model(name, split, args.epochs * len(train_set), args)
    sample = QualitySample(model, validation_set, tfxc.metrics.NDCGAtK(10))
    log = TrainingLog(
        os.path.join(args.output, name),
        model,
        args.patience,
        sample=sample,
        num_steps=len(train_set),
        verbose=args.verbose,
        options=vars(args),
    )
    log.resume(train_set)
    callbacks = [] if model.sampler is None else [tfxc.callbacks.SamplerRefresh(args.refresh_steps)]
    log.fit(train_set, validation_set, args.epochs, callbacks)
    log.restore_best()
    result = model.evaluate(test_set, return_dict=True, verbose=0)
    own_times = {"seconds": log.seconds, "processor_seconds": log.processor_seconds}
    return model, log.rows, {"epochs": len(log.rows), **own_times, **result}


def table(results, ks=(10,)):
    """The results as a Markdown table, quality also as a share of the run called "full"."""
    names = {f"{title}@{k}": f"{kind.abbreviation}_at_{k}" for k in ks for title, kind in METRICS.items()}
    titles = ["sampler", "epochs", "train s", "s/epoch", *names, "loss", "NDCG of full"]
    full = results.get("full", {}).get("ndcg_at_10")
    rows = []
    for name, row in results.items():
        share = f"{row['ndcg_at_10'] / full:.1%}" if full else ""
        quality = [*(f"{row[name]:.4f}" for name in names.values()), f"{row['loss']:.3f}"]
        rows.append([name, *times(row), *quality, share])
    return markdown_table(titles, rows)


def verdict(results):
    """A sentence on the speed and quality of each run except "full", if "full" found anything."""
    full = results.get("full")
    sentences = []
    for name, row in results.items():
        if full is None or row is full or not full["ndcg_at_10"]:
            continue
        speed = seconds_an_epoch(full) / seconds_an_epoch(row)
        faster = f"{speed:.1f}x faster" if speed >= 1 else f"{1 / speed:.1f}x slower"
        more = row["ndcg_at_10"] / full["ndcg_at_10"] - 1
        quality = f"{abs(more):.0%} {'higher' if more > 0 else 'lower'}" if abs(more) >= 0.015 else "same"
        sentences.append(f"{name}: {faster} than full, {quality} NDCG@10")
    return "\n".join(sentences)


def show_predictions(model, split, args, num_examples=3):
    """Prints what the model recommends after the end of a few test histories."""
    for sequence in [split.test[u] for u in range(min(num_examples, len(split.test)))]:
        history = sequence[-args.max_length - 1 : -1]
        items = np.zeros([1, args.max_length], np.int32)
        items[0, args.max_length - len(history) :] = history + 1
        inputs = {"items": items, "exclude": sequence[None, :-1]} if args.exclude_seen else items
        best = model.predict(inputs, verbose=0)["ids"][0, :5]
        names = split.test.vocabulary.decode
        print(f"  ... {' '.join(names(history[-8:]))}  ->  {', '.join(names(best))}")


def run(args):
    """Trains every sampler's model, writes the comparison and the export; returns the test results."""
    start = time.perf_counter()
    split = load_split(args)
    print(
        f"{split.train.num_classes:,} classes, {len(split.train.items):,} items to learn from, "
        f"{len(split.test):,} test sequences (read in {time.perf_counter() - start:.1f} s)"
    )
    histories, results = {}, {}
    runs = [name for head in args.heads for name in (args.samplers if head == "dense" else [head])]
    for name in runs:
        model, histories[name], results[name] = train(name, split, args)
    text, sentences = table(results, args.ks), verdict(results)
    print(f"\n{text}\n\n{sentences}\n\nAfter the last words of some histories, {runs[-1]} recommends:")
    show_predictions(model, split, args)
    arguments = {key: str(value) for key, value in vars(args).items()}
    with open(os.path.join(args.output, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"arguments": arguments, "results": results, "histories": histories}, file, indent=1)
    with open(os.path.join(args.output, "results.md"), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    model.export(os.path.join(args.output, EXPORTED), strings=True)  # names in, names out
    plot(
        histories,
        os.path.join(args.output, "quality_against_time.png"),
        label="NDCG@10 on a fixed sample of validation targets",
        title=f"{title_of(split, args)}\n{sentences}",
    )
    print(f"\nWrote the table, the plot and a SavedModel ({EXPORTED}/) to {args.output}/.")
    return results


if __name__ == "__main__":
    run(parse_arguments())
