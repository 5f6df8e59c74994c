"""Word vectors from the words around each word (skip-gram): samplers compared by the exact loss.

Without arguments it reads the bundled novels. Your own text is a file of words, such as text8, or a folder of
files whose names contain train, valid and test:

    python examples/skip_gram.py --data text8 --min-count 5 --samplers log-uniform lsh --output runs/text8

The words around a word are its labels. LSH draws from 50 tables of 9 bits by SimHash, as in the LNS paper's
experiment on text8. The loss in the table is that over all words, whatever the sampler.

The same command resumes an interrupted run.
"""

import argparse
import json
import os

import numpy as np
from common import sampler_choice, training_log
from common.arguments import count, existing
from common.language_data import BUNDLED, load_text
from common.plots import plot
from common.sampler_choice import SAMPLERS
from common.skip_grams import batches
from common.training_log import TrainingLog, markdown_table, times
from tensorflow import keras

import tfxc

METRICS = {
    "precision_at_1": ("P@1", tfxc.metrics.PrecisionAtK(1)),
    "recall_at_10": ("R@10", tfxc.metrics.RecallAtK(10)),
}


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=existing, default=BUNDLED, help="text file, or folder of train, valid and test files")
    add("--min-count", type=count, default=5, help="text file: rarer words share one class")
    add("--window", type=count, default=2, help="words on each side of a word that it predicts")
    add("--dim", type=count, default=64, help="width of the word vectors")
    add("--samplers", nargs="+", choices=SAMPLERS, default=["uniform", "log-uniform", "lsh"])
    sampler_choice.add_arguments(add)
    add("--batch-size", type=count, default=512, help="words a step")
    training_log.add_arguments(add)
    add("--output", default="runs/skip-gram", help="folder for checkpoints, table and plot")
    parser.set_defaults(num_negatives=64, num_tables=50, num_bits=9, learning_rate=1e-2)
    return parser.parse_args(argv)


def make_model(name, text, num_steps, args):
    """A compiled classifier: a vector of each word as it is read, and one as it is predicted."""
    keras.utils.set_random_seed(args.seed)
    word = keras.Input((1,), dtype="int32", name="word")
    vector = keras.layers.Embedding(text.num_classes, args.dim, name="word_vectors")(word)
    model = tfxc.ExtremeClassifier(
        keras.Model(word, keras.layers.Flatten()(vector)),
        tfxc.layers.DenseHead(text.num_classes, use_bias=True),
        sampler=SAMPLERS[name](sampler_choice.settings(args, text.counts())),
        k=5,
        class_names=text.vocabulary.names,
    )
    rate = keras.optimizers.schedules.CosineDecay(args.learning_rate, num_steps)
    metrics = [metric for _, metric in METRICS.values()]
    model.compile(tfxc.optimizers.LazyAdam(rate), loss=tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    return model


def train(name, split, args):
    """Trains one sampler's model to its end or resumes it; returns it, its history and test results."""
    size = args.window, args.batch_size
    train_set = batches(split.train, *size, args.seed)
    validation_set, test_set = batches(split.validation, *size), batches(split.test, *size)
    model = make_model(name, split.train, args.epochs * len(train_set), args)
    folder = os.path.join(args.output, name)
    options = {"verbose": args.verbose, "options": vars(args)}
    log = TrainingLog(folder, model, args.patience, "val_loss", "min", **options)
    log.resume(train_set)
    callbacks = [] if model.sampler is None else [tfxc.callbacks.SamplerRefresh(args.refresh_steps)]
    log.fit(train_set, validation_set, args.epochs, callbacks)
    log.restore_best()
    result = model.evaluate(test_set, return_dict=True, verbose=0)
    own_times = {"seconds": log.seconds, "processor_seconds": log.processor_seconds}
    return model, log.rows, {"epochs": len(log.rows), **own_times, **result}


def table(results):
    """The results as a Markdown table."""
    rows = []
    for name, row in results.items():
        figures = [f"{row['loss']:.3f}", *(f"{100 * row[metric]:.2f}" for metric in METRICS)]
        rows.append([name, *times(row), f"{row['processor_seconds']:.0f}", *figures])
    titles = ["test loss", *(title for title, _ in METRICS.values())]
    return markdown_table(["sampler", "epochs", "train s", "s/epoch", "processor s", *titles], rows)


def show_nearest(model, num_words=3):
    """Prints the words whose vectors point in the most similar directions, for some of the frequent words."""
    names, vectors = model.class_names, model.encoder.get_layer("word_vectors").get_weights()[0]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for word in np.linspace(len(names) // 100, len(names) // 10, num_words).astype(int):
        nearest = np.argsort(-vectors @ vectors[word])[1:6]
        print(f"  {names[word]}: {', '.join(names[own] for own in nearest)}")


def run(args):
    """Trains every sampler's model and writes table and plot; returns the test results."""
    split = load_text(args.data, args.min_count)
    print(f"{split.train.num_classes:,} words; {len(split.train.items):,} running words to learn from")
    histories, results = {}, {}
    for name in args.samplers:
        model, histories[name], results[name] = train(name, split, args)
    text = table(results)
    print(f"\n{text}\n\nWords that {name} places side by side:")
    show_nearest(model)
    arguments = {key: str(value) for key, value in vars(args).items()}
    with open(os.path.join(args.output, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"arguments": arguments, "results": results, "histories": histories}, file, indent=1)
    with open(os.path.join(args.output, "results.md"), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    plot(histories, os.path.join(args.output, "loss_against_time.png"), "val_loss", "validation loss")
    print(f"\nWrote table and plot to {args.output}/.")
    return results


if __name__ == "__main__":
    run(parse_arguments())
