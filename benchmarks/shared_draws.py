"""Draws of MIDX for each query beside draws that the batch shares: what they recommend, and processor time.

    python benchmarks/shared_draws.py --data diginetica.txt --max-length 10 --seeds 0 1 2
    python benchmarks/shared_draws.py --data ml-1m.txt --max-length 200 --batch-size 16 --epochs 8

It reads histories, a line of ``user item item ...`` each, or ``user item`` lines with --interactions, and
trains SASRec without tuning. Shared draws come from the mean of the proposals of the batch's queries; "of the
mean query" from the proposal of their mean instead. The last item of each history is the target, and all
items are ranked. Finished runs are read from the output folder.
"""

import argparse
import time
from functools import partial
from pathlib import Path

from _seeds import mean, once, spread
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

DIM, RATE, CODEWORDS = 64, 2e-3, 32


class OfMeanQuery(tfxc.samplers.MIDX):
    """Shared draws from the proposal of the mean query."""

    def prepare(self, step):
        return super().prepare(step._replace(all_queries=None))


def midx(num_draws, kind=tfxc.samplers.MIDX, **options):
    return partial(kind, num_draws, num_codewords=CODEWORDS, **options)


ROWS = {
    "all classes": lambda: None,
    "100 for each query": midx(100),
    "100 shared": midx(100, shared=True),
    "1,000 shared": midx(1000, shared=True),
    "1,000 shared, of the mean query": midx(1000, OfMeanQuery, shared=True),
}


def run(make_sampler, split, seed, args, folder):
    keras.utils.set_random_seed(seed)
    length, num_classes = args.max_length, split.train.num_classes
    data = tfxc.data.sequence_training_dataset(split.train, length, args.batch_size, windows="all", seed=seed)
    test = tfxc.data.sequence_evaluation_dataset(split.test, length, 256)
    model = tfxc.ExtremeClassifier(
        tfxc.encoders.sasrec(num_classes, length, dim=DIM, dropout=args.dropout),
        tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1),
        sampler=make_sampler(),
    )
    metrics = [tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)]
    model.compile(tfxc.optimizers.LazyAdam(RATE), loss=tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    refresh = [] if model.sampler is None else [tfxc.callbacks.SamplerRefresh("epoch")]
    start = time.process_time()
    model.fit(data, epochs=args.epochs, callbacks=refresh, verbose=2)
    seconds = time.process_time() - start
    _, ndcg, recall = model.evaluate(test, verbose=0)
    return {"NDCG@10": 100 * ndcg, "Recall@10": 100 * recall, "processor s": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="histories; none come along")
    parser.add_argument("--interactions", action="store_true", help="the data has a line for each item")
    parser.add_argument("--max-length", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, default=Path("runs/shared_draws"))
    add_results(parser)
    args = parser.parse_args()
    if args.data is None:
        parser.exit(message="Nothing to do without --data.\n")
    read = tfxc.data.read_interactions if args.interactions else tfxc.data.read_sequences
    split = tfxc.data.leave_last_out(read(args.data))
    options = [args.max_length, args.batch_size, args.epochs, args.dropout]
    results = {name: [] for name in args.rows}
    for seed in args.seeds:
        for name, runs in results.items():
            folder = args.output / args.data.stem / f"{name}, {seed}"
            runs.append(once(folder, options, partial(run, ROWS[name], split, seed, args)))
            print(name, seed, runs[-1], flush=True)
            keras.backend.clear_session()
    rows = []
    for name, runs in results.items():
        quality = [spread([each[column] for each in runs]) for column in ("NDCG@10", "Recall@10")]
        rows.append([name, *quality, f"{mean(runs, 'processor s'):.0f}"])
    title = f"{args.data.stem}: T = {args.max_length}, {len(args.seeds)} seed(s)"
    show(title, rows, ["draws of MIDX", "NDCG@10", "Recall@10", "processor s"])
    keep(args.results)


if __name__ == "__main__":
    main()
