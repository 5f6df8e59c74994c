"""The two sampled-softmax estimators with few negatives: exact held-out perplexity after one short epoch.

    python benchmarks/estimators.py [--words 300000] [--negatives 20]

It trains a next-word model on the bundled novels, with all classes and with either ``estimator`` of
``SoftmaxCrossentropy`` over sampled classes. Perplexities are over all classes, whatever the training used.
"""

import argparse
import sys
from pathlib import Path

from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from common.recommendation_data import BUNDLED  # noqa: E402

import tfxc  # noqa: E402
from tfxc import data, losses, samplers  # noqa: E402
from tfxc._keras import keras  # noqa: E402
from tfxc.encoders import sasrec  # noqa: E402

LENGTH, BATCH, DIM = 32, 32, 64


def perplexity(train, held_out, num_classes, sampler, estimator):
    keras.utils.set_random_seed(0)
    model = tfxc.ExtremeClassifier(
        sasrec(num_classes, LENGTH, DIM, num_blocks=1),
        head=tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1),
        sampler=sampler,
    )
    model.compile(tfxc.optimizers.LazyAdam(2e-3), loss=losses.SoftmaxCrossentropy(estimator=estimator))
    callbacks = [] if sampler is None else [tfxc.callbacks.SamplerRefresh(100)]
    model.fit(train, callbacks=callbacks, verbose=2)
    return tfxc.metrics.perplexity(model.evaluate(held_out, verbose=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=300_000)
    parser.add_argument("--negatives", type=int, default=20)
    add_results(parser)
    args = parser.parse_args()
    words = data.read_text(BUNDLED, min_count=5)
    flat = data.Sequences.from_lists([words.items[: args.words]])
    split = data.tail_split(flat, 0.05, 0.05)
    train = data.sequence_training_dataset(split.train, LENGTH, BATCH, windows="all")
    held_out = data.sequence_training_dataset(split.validation, LENGTH, BATCH, windows="all", seed=None)
    counts, num_classes = split.train.counts(), flat.num_classes
    proposals = {
        "uniform": lambda: samplers.Uniform(args.negatives),
        "unigram": lambda: samplers.Unigram(args.negatives, counts=counts),
        "midx-rq": lambda: samplers.MIDX(args.negatives, num_codewords=32),
    }
    full = perplexity(train, held_out, num_classes, None, "ranking")
    rows = [["all classes", full, full]]
    for name, make in proposals.items():
        row = [perplexity(train, held_out, num_classes, make(), e) for e in ("ranking", "partition")]
        rows.append([name, *row])
    title = f"Held-out perplexity, {num_classes:,} words, {args.negatives} negatives, one epoch"
    show(title, rows, ["proposal", "ranking", "partition"])
    keep(args.results)


if __name__ == "__main__":
    main()
