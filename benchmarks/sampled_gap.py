"""Sampled classes beside all classes where nothing was tuned: what estimate, optimizer, index and time lose.

    python benchmarks/sampled_gap.py --data Beauty.txt --seeds 0 1 2

It reads purchases, ``user item item ...`` a line, and predicts the next one with a GRU, LazyAdam at .005 and
50 draws, as a user might begin. Each row differs from "MIDX" in one thing:

* "Softmax" draws from the model's own softmax, so what it loses is lost by the estimate from 50 classes.
* "MIDX, renewed every 20 steps" has an index that is hardly ever old; the others renew it once an epoch.
* "MIDX, Adam" also moves the rows of classes that were not drawn, by their moments.
* The other rows turn what a user can turn: the draws and the epochs.

NDCG@10 and the loss over all classes are those of the last purchase of each user. Processor seconds are those
of the training. Finished runs are read from the output folder.
"""

import argparse
import time
from functools import partial
from pathlib import Path

from _seeds import mean, once, spread
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

EPOCHS, RATE, DRAWS, LENGTH, DIM = 15, 5e-3, 50, 20, 64
Adam, LazyAdam = keras.optimizers.Adam, tfxc.optimizers.LazyAdam


def midx(num_draws=DRAWS, **options):
    return tfxc.samplers.MIDX(num_draws, num_codewords=32, **options)


# By name: the sampler, the optimizer and its rate, when to renew the index, and how often to train so long.
ROWS = {
    "all classes": (lambda: None, LazyAdam, RATE, "epoch", 1),
    "Softmax": (lambda: tfxc.samplers.Softmax(DRAWS), LazyAdam, RATE, "epoch", 1),
    "MIDX": (midx, LazyAdam, RATE, "epoch", 1),
    "MIDX, renewed every 20 steps": (midx, LazyAdam, RATE, 20, 1),
    "MIDX, Adam": (midx, Adam, RATE, "epoch", 1),
    "MIDX, 200 draws": (partial(midx, 200), LazyAdam, RATE, "epoch", 1),
    "MIDX, 500 draws": (partial(midx, 500), LazyAdam, RATE, "epoch", 1),
    "MIDX, 1,000 shared draws": (partial(midx, 1000, shared=True), LazyAdam, RATE, "epoch", 1),
    "MIDX, twice the epochs": (midx, LazyAdam, RATE, "epoch", 2),
    "Uniform": (lambda: tfxc.samplers.Uniform(DRAWS), LazyAdam, RATE, "epoch", 1),
}


def run(make_sampler, optimizer, rate, every, times, split, seed, folder):
    keras.utils.set_random_seed(seed)
    train = tfxc.data.sequence_training_dataset(split.train, LENGTH, 128, windows="all", seed=seed)
    test = tfxc.data.sequence_evaluation_dataset(split.test, LENGTH, 256)
    num_classes = split.train.num_classes
    model = tfxc.ExtremeClassifier(
        tfxc.encoders.gru4rec(num_classes, LENGTH, DIM),
        tfxc.layers.DenseHead(num_classes),
        sampler=make_sampler(),
    )
    metrics = [tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)]
    model.compile(optimizer(rate), loss=tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    refresh = [] if model.sampler is None else [tfxc.callbacks.SamplerRefresh(every)]
    start = time.process_time()
    model.fit(train, epochs=times * EPOCHS, callbacks=refresh, verbose=2)
    seconds = time.process_time() - start
    loss, ndcg, recall = model.evaluate(test, verbose=0)
    return {"NDCG@10": 100 * ndcg, "Recall@10": 100 * recall, "loss": loss, "processor s": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="purchases; none come along")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, default=Path("runs/sampled_gap"))
    add_results(parser)
    args = parser.parse_args()
    if args.data is None:
        parser.exit(message="Nothing to do without --data.\n")
    split = tfxc.data.leave_last_out(tfxc.data.read_sequences(args.data))
    results = {name: [] for name in args.rows}
    for seed in args.seeds:
        for name, runs in results.items():
            folder = args.output / f"{name}, {seed}"
            runs.append(once(folder, [EPOCHS], partial(run, *ROWS[name], split, seed)))
            print(name, seed, runs[-1], flush=True)
            keras.backend.clear_session()
    full, rows = results.get("all classes"), []
    for name, runs in results.items():
        share = f"{mean(runs, 'NDCG@10') / mean(full, 'NDCG@10'):.3f}" if full else ""
        quality = [
            spread([each[column] for each in runs], "{:.2f}") for column in ("NDCG@10", "Recall@10", "loss")
        ]
        rows.append([name, *quality, share, f"{mean(runs, 'processor s'):.0f}"])
    columns = ["row", "NDCG@10", "Recall@10", "loss", "of all classes", "processor s"]
    show(f"{args.data.stem}: {len(args.seeds)} seed(s)", rows, columns)
    keep(args.results)


if __name__ == "__main__":
    main()
