"""Divergence of every sampler's proposal from the softmax of one trained language model: a table and a plot.

    python benchmarks/proposal_quality.py -- --data ptb --epochs 12 --output runs/ptb

The arguments after ``--`` go to examples/language_model.py, whose model with the full softmax, or with a
sampler, is trained first, or loaded if it is there. It stays fixed, while learnable codebooks learn for one
pass over the text, as they would in training. Queries and labels are those of a batch of the test text.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import language_model  # noqa: E402
from _tables import add_results, keep, show  # noqa: E402
from common.plots import plot_proposals  # noqa: E402
from common.proposals import compare_proposals  # noqa: E402
from common.sampler_choice import SAMPLERS, Settings  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402

CODEBOOKS = ("midx-pq", "midx-pq-learnable", "midx-rq", "midx-rq-learnable")
OTHERS = ("uniform", "log-uniform", "unigram", "rff", "lsh")
ALPHAS = 0.01, 0.1, 1.0, 10.0, 100.0


def learn_codebooks(sampler, model, batches, refresh_steps):
    """One epoch of the sampler's learning; the model's own learning rate is 0."""
    frozen = tfxc.ExtremeClassifier(model.encoder, model.head, sampler=sampler)
    frozen.compile(keras.optimizers.SGD(0.0), loss=tfxc.losses.SoftmaxCrossentropy())
    frozen.fit(batches, callbacks=[tfxc.callbacks.SamplerRefresh(refresh_steps)], verbose=0)


def proposals(split, model, batches, sizes, args):
    """Samplers by name: MIDX with codebooks of each size, the paper's too, Sphere with each alpha, others."""
    counts = split.train.counts()
    made = {name: SAMPLERS[name](Settings(args.num_negatives, 1, counts)) for name in OTHERS}
    for alpha in ALPHAS:
        made[f"sphere, α = {alpha:g}"] = tfxc.samplers.Sphere(args.num_negatives, alpha=alpha)
    for size in sizes:
        for quantizer in ("pq", "rq"):
            made[f"midx-{quantizer}, uniform weights, C = {size}"] = tfxc.samplers.MIDX(
                args.num_negatives, num_codewords=size, quantizer=quantizer, class_weights="uniform"
            )
        for name in CODEBOOKS:
            sampler = SAMPLERS[name](Settings(args.num_negatives, size, counts))
            if isinstance(sampler, tfxc.samplers.LearnedMIDX):
                learn_codebooks(sampler, model, batches, args.refresh_steps)
            made[f"{name}, C = {size}"] = sampler
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trained-with", choices=SAMPLERS, default="full", help="sampler of the training")
    parser.add_argument("--codewords", type=int, nargs="+", default=[8, 32])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    options = parser.parse_args()
    args = language_model.parse_arguments(options.rest)
    split = language_model.load_text(args.data, args.min_count)
    model, _, result = language_model.train(options.trained_with, split, args)
    print(f"\nThe model's test perplexity is {result['perplexity']:.1f}.\n")
    train_set, _, test_set = language_model.batches(split, args)
    made = proposals(split, model, train_set, options.codewords, args)
    query, labels, _ = model.examples(*next(iter(test_set)))
    rows, curves = compare_proposals(model.head, {"full": None, **made}, query, labels)
    columns = ["kl", "effective_sample_size", "accidental_hits"]
    ordered = sorted(rows.items(), key=lambda item: item[1]["kl"])
    show(
        f"{Path(args.data).name}: proposals for a batch of the test text",
        [[name, *(float(row[column]) for column in columns)] for name, row in ordered],
        ["proposal", "KL(softmax, Q)", "effective sample size", "accidental hits"],
    )
    shown = {name: curve for name, curve in curves.items() if not name.startswith(CODEBOOKS[4:])}
    plot_proposals(shown, os.path.join(args.output, "cumulative_probability.png"))
    keep(options.results)


if __name__ == "__main__":
    main()
