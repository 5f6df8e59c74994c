"""Extreme multi-label classification: dense, sparse and MACH heads on one data set, compared.

Without arguments it tags artworks with their subjects (the bundled data of Tate's collection). Your own data
are a folder in a layout of the Extreme Classification Repository: train.txt and test.txt (also .xz or .gz),
and optionally label_names.txt, with a name on each line; or features and labels in two files each,
trn_X_Xf.txt and trn_X_Y.txt, tst_X_Xf.txt and tst_X_Y.txt (also .npz; dense features .npy), and optionally
Y.txt (names), lbl_X_Xf.txt (label features, for --label-texts) and filter_labels_test.txt (pairs that count
in no metric):

    python examples/extreme_classification.py --data Wiki10-31K --heads dense sparse --output runs/wiki10
    python examples/extreme_classification.py --data LF-AmazonTitles-131K --propensity 0.6 2.6

--hash-features 65536 hashes millions of features into fewer.

Instead of all classes, a step may score the few that a sampler draws. Those of the other examples draw from
their proposal. Others find the hardest classes of each point: "hard" by an index that is refreshed behind
training, "astra" with uniform ones beside them, "curriculum" with a share of hard ones that grows from none
to most; "label-hard", "label-astra" and "label-curriculum" likewise, by what the encoder makes of the labels'
texts (or of their points) in place of their class vectors; "searched" in the step, and "up-to-date" in the
step among all classes:

    python examples/extreme_classification.py --heads dense --loss softmax --samplers full unigram midx-rq
    python examples/extreme_classification.py --heads dense --epochs 20 --samplers uniform hard astra

The same command resumes an interrupted run.
"""

import argparse
import json
import os
import time
from dataclasses import replace

import numpy as np
from common import classification_data, classification_heads, sampler_choice, training_log
from common.arguments import count, from_two, rate, share
from common.classification_data import load
from common.classification_heads import DECODERS, HEADS, make_encoder, make_head
from common.plots import plot
from common.searched_labels import LABEL, encoded_labels
from common.training_log import TrainingLog, markdown_table
from common.up_to_date import UpToDate
from tensorflow import keras

import tfxc

# Found by the search of a callback: by class vectors, or by the encoded labels.
MINED = tuple(searched + name for searched in ("", LABEL) for name in ("hard", "astra", "curriculum"))
FOUND_IN_STEP = {"searched": tfxc.samplers.SearchedHardNegatives, "up-to-date": UpToDate}
SAMPLERS = (*sampler_choice.SAMPLERS, *MINED, *FOUND_IN_STEP)
OTHER_NAMES = {"all": "full", "random": "uniform"}
LOSSES = {
    "softmax": tfxc.losses.SoftmaxCrossentropy,
    "squared-hinge": tfxc.losses.SquaredHinge,
    "binary-crossentropy": tfxc.losses.BinaryCrossentropy,
}
ORDERS = ("given", "random", "together")
METRICS = {"P": tfxc.metrics.PrecisionAtK, "N": tfxc.metrics.NDCGAtK, "R": tfxc.metrics.RecallAtK}
PROPENSITY_SCORED = {"PSP": tfxc.metrics.PSPAtK, "PSN": tfxc.metrics.PSNDCGAtK}


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    classification_data.add_arguments(add)
    add("--heads", nargs="+", choices=HEADS, default=list(HEADS), help="sparse-direct: without a wide layer")
    add("--loss", choices=LOSSES, default="binary-crossentropy", help="what training lowers")
    classification_heads.add_arguments(add)
    add("--num-repetitions", type=count, default=4, help="mach: bucket classifiers")
    add("--decoder", choices=DECODERS, default="geometric", help="mach: from buckets to classes")
    add("--num-inputs", type=count, default=8192, help="sparse: width of the layer before the head")
    add("--wide-activation", choices=("linear", "relu"), default="linear", help="sparse: of that layer")
    add("--fan-in", type=count, default=32, help="sparse: inputs that a class reads")
    add("--group-size", type=count, default=1, help="sparse: labels that read the same inputs")
    add("--label-order", choices=ORDERS, default="given", help="sparse: which labels share a group")
    add("--evolve", type=share, default=0.1, help="sparse: share of connections that move at a time; 0: none")
    add("--evolve-every", type=count, default=50, help="sparse: steps from one time to the next")
    other = {"type": lambda name: OTHER_NAMES.get(name, name), "choices": SAMPLERS, "default": ["full"]}
    add("--samplers", "--negatives", nargs="+", help="full: all classes, as mach always", **other)
    sampler_choice.add_arguments(add)
    mixed = "astra, searched, up-to-date: hard ones among them; curriculum: uniform ones at the end"
    add("--num-hard", type=count, default=8, help=mixed)
    starts = "first epoch with hard negatives, counted from 0; at least 2"
    add("--start-epoch", type=from_two, default=5, help=starts)
    add("--refresh-every", type=count, default=5, help="epochs between refreshes of the hard negatives")
    texts = "labels as training points, by their features (lbl_X_Xf.txt) or their names (vocabulary.txt)"
    add("--label-texts", action="store_true", help=texts)
    rates = "of propensities; 0.5 0.4 for Wikipedia, 0.6 2.6 for Amazon data"
    add("--propensity", nargs=2, type=float, default=(0.55, 1.5), metavar=("A", "B"), help=rates)
    add("--ks", nargs="+", type=count, default=[1, 3, 5], help="cutoffs of the metrics, beside 1")
    add("--batch-size", type=count, default=128, help="points a step")
    training_log.add_arguments(add)
    add(
        "--halve-after", type=count, help="halves the rate after so many epochs without a better P@3, to 1e-4"
    )
    add("--warm-up", type=share, default=0.0, help="share of the steps in which it rises to that")
    add("--head-learning-rate", type=rate, help="trains the head by gradient descent at this rate, not Adam")
    add("--weight-decay", type=rate, help="of the head: of a row at each step that touches it")
    add("--output", default="runs/tate", help="folder for checkpoints, table and plot")
    parser.set_defaults(epochs=6, patience=100, learning_rate=3e-3, num_negatives=64)
    args = parser.parse_args(argv)
    args.ks = sorted({1, *args.ks, *([3] if args.halve_after else [])})
    if {*MINED} & {*args.samplers} and args.start_epoch >= args.epochs:
        parser.error(
            f"--start-epoch {args.start_epoch} comes after --epochs {args.epochs}: no negative would be hard"
        )
    if args.num_hard > args.num_negatives and any(map(is_mixed, args.samplers)):
        parser.error(f"--num-hard {args.num_hard} is more than --num-negatives {args.num_negatives}")
    if args.num_hard == args.num_negatives and any(name.endswith("curriculum") for name in args.samplers):
        parser.error("a curriculum ends with --num-negatives less --num-hard hard ones, which leaves none")
    if args.halve_after and args.warm_up:
        parser.error("--halve-after keeps the rate until it is halved: leave out --warm-up")
    return args


def make_sampler(name, train, args):
    """The sampler of the classes that a step scores; None for all classes."""
    if name in sampler_choice.SAMPLERS:
        settings = sampler_choice.settings(args, train.label_counts())
        return sampler_choice.SAMPLERS[name](settings)
    num_hard = args.num_hard if is_mixed(name) else args.num_negatives
    if name.endswith("curriculum"):
        num_hard = args.num_negatives - args.num_hard
    kind = FOUND_IN_STEP.get(name, tfxc.samplers.HardNegatives)
    # Most points have at most 24 labels, which are not negatives.
    return kind(num_hard, args.num_negatives - num_hard, num_retrieved=num_hard + 24)


def is_mixed(name):
    """Whether a sampler of that name has hard and uniform negatives."""
    return name in (*MINED, *FOUND_IN_STEP) and not name.endswith("hard")


def make_optimizer(encoder, head, num_steps, args):
    """Adam for all, or gradient descent for the head; the rate falls to 0, or as a callback halves it."""
    warm = int(args.warm_up * num_steps)

    def schedule(rate):
        if args.halve_after:
            return rate
        options = {"warmup_target": rate, "warmup_steps": warm} if warm else {}
        return keras.optimizers.schedules.CosineDecay(0.0 if warm else rate, num_steps - warm, **options)

    adam = tfxc.optimizers.LazyAdam(schedule(args.learning_rate), weight_decay=args.weight_decay)
    adam.exclude_from_weight_decay(encoder.trainable_variables)
    if args.head_learning_rate is None:
        return adam
    descent = tfxc.optimizers.LazySGD(schedule(args.head_learning_rate), weight_decay=args.weight_decay)
    return tfxc.optimizers.MultiOptimizer(adam, (descent, head))


def ordered(data, args):
    """The data with renumbered labels: in random order, or with labels of the same points side by side."""
    train, test, names = data
    if args.label_order == "given":
        return data
    if args.label_order == "random":
        order = np.random.default_rng(args.seed).permutation(train.num_labels)
    else:
        order = tfxc.sparsity.group_classes(train.labels, train.num_labels, args.group_size)
    return (
        replace(train, labels=train.labels[:, order]),
        test.relabelled(order),
        names and [names[i] for i in order],
    )


def make_model(name, sampler, train, names, num_steps, args):
    """A compiled classifier with the head of that name, trained with the sampler of that name."""
    keras.utils.set_random_seed(args.seed)
    head = make_head(name, train, args)
    encoder = make_encoder(name, train.num_features, args)
    model = tfxc.ExtremeClassifier(
        encoder, head, sampler=make_sampler(sampler, train, args), k=5, class_names=names
    )
    chances = train.propensities(*args.propensity)
    model.compile(
        make_optimizer(encoder, head, num_steps, args),
        loss=LOSSES[args.loss](),
        metrics=[
            # Over all points, as in the tables of the Extreme Classification Repository.
            *(metric(k, average="all") for metric in METRICS.values() for k in args.ks),
            *(metric(k, chances) for metric in PROPENSITY_SCORED.values() for k in args.ks),
        ],
    )
    return model


def head_megabytes(model):
    """MB of the head and of a wide layer that it needs: their weights, and Adam's two slots of what trains.

    A head that gradient descent trains has no slots.
    """
    num_slots = 0 if isinstance(model.optimizer, tfxc.optimizers.MultiOptimizer) else 2
    parts = [layer for layer in model.encoder.layers if layer.name == "wide"] + [model.head]
    weights = [weight for part in parts for weight in part.weights]
    trained = [weight for part in parts for weight in part.trainable_weights]
    return (sum(map(num_bytes, weights)) + num_slots * sum(map(num_bytes, trained))) / 2**20


def num_bytes(weight):
    """The bytes of a weight."""
    return weight.numpy().nbytes


def mining(folder, sampler, model, train, args):
    """The callback that refreshes hard negatives."""
    return tfxc.callbacks.HardNegativeMining(
        os.path.join(folder, "hard-negatives"),
        len(train),
        args.start_epoch,
        args.refresh_every,
        curriculum=max(1, args.epochs - args.start_epoch) if sampler.endswith("curriculum") else None,
        class_vectors=encoded_labels(model, train) if sampler.startswith(LABEL) else None,
    )


def train_head(name, sampler, data, args):
    """Trains one head's model to its end or resumes it; returns it, its history and test results."""
    train, test, names = data
    mined = sampler in MINED
    train_set = tfxc.data.classification_dataset(train, args.batch_size, seed=args.seed, example_ids=mined)
    test_set = test.dataset(256)
    model = make_model(name, sampler, train, names, args.epochs * len(train_set), args)
    folder = os.path.join(args.output, title_of(name, sampler))
    log = TrainingLog(
        folder,
        model,
        args.patience,
        metric="val_precision_at_1",
        verbose=args.verbose,
        options=vars(args),
    )
    log.resume(train_set)
    callbacks = []
    if mined:
        callbacks.append(mining(folder, sampler, model, train, args))
    elif model.sampler is not None:
        callbacks.append(tfxc.callbacks.SamplerRefresh(args.refresh_steps))
    if args.evolve and name.startswith("sparse"):
        # Connections that grow in the last epochs would have no time to learn.
        stop = max(1, args.epochs * len(train_set) * 3 // 4)
        callbacks.append(tfxc.callbacks.SparseEvolution(args.evolve, args.evolve_every, stop))
    if args.halve_after:
        options = {"mode": "max", "factor": 0.5, "patience": args.halve_after, "min_lr": 1e-4}
        callbacks.append(keras.callbacks.ReduceLROnPlateau("val_precision_at_3", **options))
    log.fit(train_set, test_set, args.epochs, callbacks)
    result = model.evaluate(test_set, return_dict=True, verbose=0)
    times = {"seconds": log.seconds, "processor_seconds": log.processor_seconds}
    return model, log.rows, {**times, "head_mb": head_megabytes(model), **result}


def title_of(name, sampler):
    """The name of a run."""
    return name if sampler == "full" else f"{name}-{sampler}"


def table(results, ks):
    """The results as a Markdown table, each metric at every cutoff."""
    metrics = {**METRICS, **PROPENSITY_SCORED}
    names = [f"{metric.abbreviation}_at_{k}" for metric in metrics.values() for k in ks]
    rows = [
        [
            name,
            f"{row['seconds']:.0f}",
            f"{row['head_mb']:.1f}",
            *(f"{100 * row[metric]:.1f}" for metric in names),
        ]
        for name, row in results.items()
    ]
    titles = [f"{title}@{k}" for title in metrics for k in ks]
    return markdown_table(["run", "train s", "head MB", *titles], rows)


def show_predictions(model, test, names, num_examples=3):
    """Prints true and predicted labels of a few test points by name."""
    named = names.__getitem__ if names else str
    for row in np.linspace(0, len(test) - 1, num_examples).astype(int):
        features = test.features[row]
        inputs = {"ids": features.indices[np.newaxis], "values": features.data[np.newaxis]}
        best = model.predict(inputs, verbose=0)["ids"][0]
        text = "" if test.texts is None else f"{test.texts[row]}: "
        print(
            f"  {text}{', '.join(map(named, test.labels[row].indices))}\n    -> {', '.join(map(named, best))}"
        )


def run(args):
    """Trains every head's model and writes the comparison; returns the test results."""
    start = time.perf_counter()
    read = args.label_texts, args.hash_features, args.skip_bad_lines, args.first_id, args.text_encoding
    data = ordered(load(args.data, *read, args.max_points), args)
    train, test, names = data
    print(
        f"{len(train):,} training and {len(test):,} test points, {train.num_features:,} features, "
        f"{train.num_labels:,} labels (read in {time.perf_counter() - start:.1f} s)"
    )
    histories, results = {}, {}
    for name in args.heads:
        for sampler in ["full"] if name == "mach" else args.samplers:
            title = title_of(name, sampler)
            model, histories[title], results[title] = train_head(name, sampler, data, args)
    text = table(results, args.ks)
    print(f"\n{text}\n\nTrue labels of some test points, and those that {title} predicts:")
    show_predictions(model, test, names)
    arguments = {key: str(value) for key, value in vars(args).items()}
    with open(os.path.join(args.output, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"arguments": arguments, "results": results, "histories": histories}, file, indent=1)
    plot(histories, os.path.join(args.output, "precision_against_time.png"), "val_precision_at_1", "test P@1")
    print(f"\nWrote results and plot to {args.output}/.")
    return results


if __name__ == "__main__":
    run(parse_arguments())
