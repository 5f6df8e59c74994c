"""Next-word prediction: trains a language model for each sampler and compares their exact perplexities.

Without arguments it reads the bundled novels. It reads your own text file in the same way; a folder with
files whose names contain train, valid and test (Penn Treebank, WikiText) is read as it is, a sentence on each
line:

    python examples/language_model.py --data ptb --epochs 20 --samplers full uniform midx-rq --output runs/ptb

The LSTM reads 20 streams side by side and carries its state from batch to batch (truncated backpropagation
through time), in training and in evaluation, as in published perplexities. The Transformer reads separate
windows, at whose start it has no context: expect a higher perplexity, and compare samplers, not models.
Perplexity is exp of the loss over all words, whatever the sampler.

The same command resumes an interrupted run.
"""

import argparse
import json
import os
import time

from common import encoders, sampler_choice, training_log
from common.arguments import count, existing
from common.language_data import BUNDLED, load_text
from common.plots import plot, plot_proposals
from common.proposals import compare_proposals, proposal_table
from common.sampler_choice import SAMPLERS
from common.training_log import TrainingLog, markdown_table, times
from tensorflow import keras

import tfxc

MODELS = ("lstm", "transformer")


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=existing, default=BUNDLED, help="text file, or folder of train, valid and test files")
    add("--min-count", type=count, default=3, help="text file: rarer words share one class")
    add("--model", choices=MODELS, default="lstm")
    add("--samplers", nargs="+", choices=SAMPLERS, default=["full", "uniform", "midx-rq"])
    sampler_choice.add_arguments(add)
    encoders.add_arguments(add)
    training_log.add_arguments(add)
    add("--output", default="runs/language-model", help="folder for checkpoints, tables and plots")
    # The setting of the published comparisons on Penn Treebank.
    parser.set_defaults(
        num_negatives=20, num_codewords=32, dim=200, dropout=0.3, max_length=35, batch_size=20
    )
    parser.set_defaults(epochs=3, patience=3)
    return parser.parse_args(argv)


def batches(split, args):
    """Training, validation and test batches: streams for the LSTM, windows for the Transformer."""
    size = args.max_length, args.batch_size
    if args.model == "lstm":
        return [tfxc.data.stream_dataset(part, *size) for part in (split.train, split.validation, split.test)]
    held_out = (
        tfxc.data.sequence_training_dataset(part, *size, windows="all", seed=None)
        for part in (split.validation, split.test)
    )
    return tfxc.data.sequence_training_dataset(split.train, *size, windows="all", seed=args.seed), *held_out


def make_encoder(num_classes, args):
    options = {"dim": args.dim, "num_blocks": args.num_blocks, "dropout": args.dropout}
    if args.model == "lstm":
        return encoders.lstm(num_classes, args.max_length, batch_size=args.batch_size, **options)
    return tfxc.encoders.sasrec(num_classes, args.max_length, num_heads=4, **options)


def make_model(name, split, num_steps, args):
    """A compiled classifier whose head shares the table of the encoder's word embedding."""
    keras.utils.set_random_seed(args.seed)
    num_classes = split.train.num_classes
    settings = sampler_choice.settings(args, split.train.counts())
    model = tfxc.ExtremeClassifier(
        make_encoder(num_classes, args),
        head=tfxc.layers.DenseHead(num_classes, use_bias=True, tied_to="item_embedding", row_offset=1),
        sampler=SAMPLERS[name](settings),
        k=5,
        class_names=split.train.vocabulary.names,
    )
    model.compile(
        tfxc.optimizers.LazyAdam(keras.optimizers.schedules.CosineDecay(args.learning_rate, num_steps)),
        loss=tfxc.losses.SoftmaxCrossentropy(),
    )
    return model


def forget_text(model):
    """Resets the state that recurrent layers carry over from the text that a model has read."""
    for layer in model.encoder.layers:
        if getattr(layer, "stateful", False):
            layer.reset_states()


class FreshState(keras.callbacks.Callback):
    """Resets the state of recurrent layers before each pass over a text, and logs the perplexity."""

    def reset(self, *_, **__):
        forget_text(self.model)

    on_epoch_begin = on_test_begin = on_predict_begin = reset

    def on_epoch_end(self, epoch, logs=None):
        logs["val_perplexity"] = tfxc.metrics.perplexity(logs["val_loss"])


def train(name, split, args):
    """Trains one sampler's model to its end or resumes it; returns it, its history and test results."""
    train_set, validation_set, test_set = batches(split, args)
    model = make_model(name, split, args.epochs * len(train_set), args)
    log = TrainingLog(
        os.path.join(args.output, name),
        model,
        args.patience,
        metric="val_perplexity",
        mode="min",
        verbose=args.verbose,
        options=vars(args),
    )
    log.resume(train_set)
    callbacks = [FreshState()]
    if model.sampler is not None:
        callbacks.append(tfxc.callbacks.SamplerRefresh(args.refresh_steps))
        if not isinstance(model.sampler, tfxc.samplers.DNS):  # its proposal has no known probabilities
            callbacks.append(tfxc.callbacks.SamplerDiagnostics(*next(iter(validation_set))))
    log.fit(train_set, validation_set, args.epochs, callbacks)
    log.restore_best()
    loss = model.evaluate(test_set, callbacks=[FreshState()], verbose=0)
    forget_text(model)
    result = {
        "epochs": len(log.rows),
        "seconds": log.seconds,
        "validation_perplexity": min(row["val_perplexity"] for row in log.rows),
        "perplexity": tfxc.metrics.perplexity(loss),
        "kl": log.rows[-1].get("sampler/kl"),
    }
    return model, log.rows, result


def table(results):
    """The results as a Markdown table, perplexity also as a multiple of that of the run called "full"."""
    titles = ["sampler", "epochs", "train s", "s/epoch", "validation", "test perplexity", "x full", "KL"]
    full = results.get("full", {}).get("perplexity")
    rows = []
    for name, row in results.items():
        multiple = f"{row['perplexity'] / full:.3f}" if full else ""
        perplexities = [f"{row['validation_perplexity']:.1f}", f"{row['perplexity']:.1f}"]
        divergence = "" if row["kl"] is None else f"{row['kl']:.3f}"
        rows.append([name, *times(row), *perplexities, multiple, divergence])
    return markdown_table(titles, rows)


def show_predictions(model, split, args, num_examples=3):
    """Prints what the model expects after a few passages of the test text."""
    items, _ = next(iter(batches(split, args)[2]))
    # In one batch, because the LSTM has a state for all its streams.
    best = model.predict(items, batch_size=len(items), callbacks=[FreshState()], verbose=0)["ids"]
    names = split.test.vocabulary.decode
    for row in range(min(num_examples, len(items))):
        passage = [item - 1 for item in items[row].numpy()[-8:] if item]
        print(f"  ... {' '.join(names(passage))}  ->  {', '.join(names(best[row]))}")


def run(args):
    """Trains every sampler's model and writes tables and plots; returns the test results."""
    start = time.perf_counter()
    split = load_text(args.data, args.min_count)
    sizes = [f"{len(part.items):,}" for part in (split.train, split.validation, split.test)]
    print(
        f"{split.train.num_classes:,} words; {sizes[0]} running words to learn from, {sizes[1]} to validate, "
        f"{sizes[2]} to test (read in {time.perf_counter() - start:.1f} s)"
    )
    models, histories, results = {}, {}, {}
    for name in args.samplers:
        models[name], histories[name], results[name] = train(name, split, args)
    settings = sampler_choice.settings(args, split.train.counts())
    reference = models[args.samplers[0]]
    query, labels, _ = reference.examples(*next(iter(batches(split, args)[2])))
    proposals = {name: SAMPLERS[name](settings) for name in args.samplers}
    rows, curves = compare_proposals(reference.head, proposals, query, labels)
    text = f"{table(results)}\n\nProposals on the model trained with {args.samplers[0]}:\n\n"
    text += proposal_table(rows)
    print(f"\n{text}")
    arguments = {key: str(value) for key, value in vars(args).items()}
    with open(os.path.join(args.output, "results.json"), "w", encoding="utf-8") as file:
        everything = {"arguments": arguments, "results": results, "proposals": rows, "histories": histories}
        json.dump(everything, file, indent=1)
    with open(os.path.join(args.output, "results.md"), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    path = os.path.join(args.output, "perplexity_against_time.png")
    plot(histories, path, "val_perplexity", "validation perplexity")
    plot_proposals(curves, os.path.join(args.output, "cumulative_probability.png"))
    print(f"\nAfter some passages of the test text, {args.samplers[-1]} expects:")
    show_predictions(models[args.samplers[-1]], split, args)
    print(f"\nWrote tables and plots to {args.output}/.")
    return results


if __name__ == "__main__":
    run(parse_arguments())
