"""Epochs of SASRec on padded and on packed histories, in turns: processor time, and what they recommend.

    python benchmarks/packed_sequences.py                                      # generated, 20 items of 200
    python benchmarks/packed_sequences.py --data beauty-s3rec.txt --max-length 50 --batch-size 128 \\
        --epochs 5 --seeds 0 1 2

Packed rows are trained twice: as few a step as have the targets of the padded step, and as many as the padded
step has, which makes fewer steps. An epoch has one refresh of MIDX. The first epoch, in which steps are
traced, is not timed. Generated histories have lengths of a geometric distribution and items by Zipf's law:
there is nothing to recommend. In data, the last item of each history is the target, and all items but those
seen are ranked.
"""

import argparse
import statistics
import time

import numpy as np
from _seeds import spread
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

MEAN_LENGTH, NUM_ITEMS = 20, 10_000
QUALITY = "NDCG@10", "Recall@10"


def generated(num_histories, max_length):
    """Histories with one item more than they have targets, of at most ``max_length`` targets."""
    random = np.random.default_rng(0)
    lengths = 1 + np.minimum(random.geometric(1 / MEAN_LENGTH, num_histories), max_length)
    frequency = 1 / np.arange(1, NUM_ITEMS + 1)
    items = random.choice(NUM_ITEMS, size=lengths.sum(), p=frequency / frequency.sum())
    vocabulary = tfxc.data.Vocabulary(map(str, range(NUM_ITEMS)))
    return tfxc.data.Sequences(items, np.concatenate([[0], np.cumsum(lengths)]), vocabulary)


def make_model(num_classes, args):
    head = tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1)
    encoder = tfxc.encoders.sasrec(num_classes, args.max_length, dropout=args.dropout)
    sampler = tfxc.samplers.MIDX(args.num_negatives, num_codewords=32)
    model = tfxc.ExtremeClassifier(encoder, head, sampler)
    metrics = [tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)]
    model.compile(tfxc.optimizers.LazyAdam(2e-3), loss=tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    return model


def ways(train, seed, args):
    """The training data by name."""

    def batches(batch_size, packed=True):
        return tfxc.data.sequence_training_dataset(
            train, args.max_length, batch_size, windows="all", seed=seed, packed=packed
        )

    padded = batches(args.batch_size, packed=False)
    share = len(batches(1)) / len(batches(1, packed=False))
    return {
        "padded": padded,
        "packed, as many targets a step": batches(max(1, round(share * args.batch_size))),
        "packed, as many rows a step": batches(args.batch_size),
    }


def epoch(model, data):
    """Trains an epoch; returns its processor time."""
    start = time.process_time()
    model.fit(data, callbacks=[tfxc.callbacks.SamplerRefresh("epoch")], verbose=0)
    return time.process_time() - start


def size_of(data):
    """Rows of a step, steps of an epoch, targets of a step."""
    rows = next(iter(data))[1].shape[0]
    targets = sum(int((labels.numpy() >= 0).sum()) for *_, labels in data)
    return [rows, len(data), round(targets / len(data))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", help="histories, a line of user item item ... each; default: generated")
    add("--histories", type=int, default=2000, help="generated ones")
    add("--max-length", type=int, default=200)
    add("--batch-size", type=int, default=64, help="padded rows of a step")
    add("--num-negatives", type=int, default=100)
    add("--dropout", type=float, default=0.5)
    add("--epochs", type=int, default=4)
    add("--seeds", type=int, nargs="+", default=[0])
    add_results(parser)
    args = parser.parse_args()
    if args.data is None:
        train, test, title = generated(args.histories, args.max_length), None, "generated"
    else:
        split, title = tfxc.data.leave_last_out(tfxc.data.read_sequences(args.data)), args.data
        train = split.train
        test = tfxc.data.sequence_evaluation_dataset(split.test, args.max_length, 256, exclude_seen=True)
    seconds, quality, sizes = {}, {}, {}
    for seed in args.seeds:
        data, models = ways(train, seed, args), {}
        for name in data:
            keras.utils.set_random_seed(seed)
            models[name] = make_model(train.num_classes, args)
            sizes[name] = size_of(data[name])
        for number in range(args.epochs):
            for name, model in models.items():
                taken = epoch(model, data[name])
                if number:
                    seconds.setdefault(name, []).append(taken)
                print(f"seed {seed}, epoch {number}, {name}: {taken:.1f} s", flush=True)
        for name, model in models.items() if test is not None else ():
            result = model.evaluate(test, return_dict=True, verbose=0)
            quality.setdefault(name, []).append([result["ndcg_at_10"], result["recall_at_10"]])
    median = {name: statistics.median(times) for name, times in seconds.items()}
    rows = []
    for name, size in sizes.items():
        found = [spread(values, "{:.4f}") for values in zip(*quality.get(name, []), strict=True)]
        rows.append([name, *size, median[name], median[name] / median["padded"], *found])
    mean = np.minimum(train.lengths[train.lengths > 1] - 1, args.max_length).mean()
    title = f"{title.rpartition('/')[2]}: T = {args.max_length}, {mean:.1f} targets a history"
    columns = ["rows", "rows a step", "steps", "targets a step", "CPU s an epoch", "of padded"]
    show(title, rows, [*columns, *(QUALITY if quality else ())])
    keep(args.results)


if __name__ == "__main__":
    main()
