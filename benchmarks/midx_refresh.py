"""The cost of MIDX's refresh, and the quality of its proposal, by the rows that train its k-means.

    python benchmarks/midx_refresh.py [--classes 400000 1000000] [--exponents 1.0 1.2]
    python benchmarks/midx_refresh.py --steps 1000 [--classes 1000000] [--codewords 128] [--before FOLDER]

Classes are generated, D = 64: vectors around 1,000 centres whose sizes follow Zipf's law, and biases that are
the log of class frequencies by the same law. Queries lie at the vectors of classes drawn by frequency, so the
softmax has a head, a tail and clusters. The sampler has seen the moments of the queries. k-means sees 512
rows for each codeword, drawn by weight as in ``refresh``, or all rows, or rows drawn uniformly. "mean alone"
takes the frequencies of the mean query, as if all queries were equal; "cells alike" also takes the classes of
a cell as equal; "no weights" is the paper's proposal, class_weights="uniform". The refreshes take turns; the
time is in CPU seconds, with FAISS on one thread. A pass reads the vectors of all classes once; there is one
for checksums, one for frequencies and one for the encoding. Figures are means over several problems.

With --steps, the model of ``lsh_refresh.py`` trains with 512 negatives that the batch shares. Its index is
refreshed before the first step, after 100 and after 300. At the end a refresh that encodes the classes that
changed and a whole one take turns. With --before, the package in a checkout of an earlier commit, whose ops
are built, takes its turns in a process of its own. Under load set OPENBLAS_NUM_THREADS=1: idle threads count
as CPU time.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any, NamedTuple
from unittest import mock

import _refresh_of
import numpy as np
import tensorflow as tf
from _refresh_of import ARRAYS
from _tables import add_results, keep, show
from lsh_refresh import train

from tfxc import samplers
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.optimizers import RowwiseAdagrad
from tfxc.samplers import midx, quantization
from tfxc.samplers.quantization import rows_to_fit

DIM, QUERIES, CENTRES, NORM, NOISE = 64, 128, 1000, 3.0, 0.3
REFRESHES, NEGATIVES, TURNS = (0, 100, 300), 512, 5
COLUMNS = "classes", "touched", "CPU s", "CPU s, whole", "ratio", "KL(softmax, Q)", "KL, whole"
EARLIER = "CPU s, earlier", "ratio to it", "ratio, whole", "KL, earlier"


def uniform_rows(head, num_rows, seed, weights):
    ids = np.random.default_rng(seed).choice(head.num_classes, min(num_rows, head.num_classes), replace=False)
    return head.class_vectors_of(tf.constant(np.sort(ids))).numpy(), weights[np.sort(ids)]


class Way(NamedTuple):
    """The choice of rows for k-means; whether queries have a spread, and classes weights in their cells."""

    rows: Any
    spread: bool = True
    own_weights: bool = True
    class_weights: str = "frequency"


# The ways by name; the first is that of the package.
WAYS = {
    "by weight": Way(rows_to_fit),
    "all": Way(lambda head, num_rows, *others: rows_to_fit(head, head.num_classes, *others)),
    "by weight, cells alike": Way(rows_to_fit, own_weights=False),
    "by weight, mean alone, cells alike": Way(rows_to_fit, spread=False, own_weights=False),
    "uniform": Way(uniform_rows),
    "uniform, mean alone, cells alike": Way(uniform_rows, spread=False, own_weights=False),
    "uniform, no weights, cells alike": Way(rows_to_fit, class_weights="uniform"),
}


def zipf(size, exponent, random):
    frequency = random.permutation(np.arange(1.0, size + 1) ** -exponent)
    return frequency / frequency.sum()


def problem(num_classes, exponent, seed):
    """A head and queries float32 [N, D]."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(CENTRES, DIM))
    centres *= NORM / np.linalg.norm(centres, axis=1, keepdims=True)
    cluster = random.choice(CENTRES, size=num_classes, p=zipf(CENTRES, exponent, random))
    table = NOISE * random.normal(size=(num_classes, DIM)).astype(np.float32)
    table += centres[cluster].astype(np.float32)
    frequency = zipf(num_classes, exponent, random)
    head = DenseHead(num_classes, use_bias=True)
    head.build((None, DIM))
    tf_variable(head.table).assign(table)
    tf_variable(head.bias).assign(np.log(frequency))
    own = cluster[random.choice(num_classes, size=QUERIES, p=frequency)]
    query = centres[own] + NOISE * random.normal(size=(QUERIES, DIM))
    return head, tf.constant(query, tf.float32)


def refresh(sampler, head, way):
    """Refreshes in one of the ways; returns CPU seconds, and the number of passes over all class vectors."""
    read, gather, weighted = [0], head.class_vectors_of, samplers.MIDX._weighted_cells

    def counted(class_ids):
        read[0] += len(class_ids)
        return gather(class_ids)

    def own(*args):
        rows = weighted(*args)
        return rows if way.own_weights else {**rows, "class_weight": np.ones_like(rows["class_weight"])}

    with (
        mock.patch.object(head, "class_vectors_of", counted),
        mock.patch.object(quantization, "rows_to_fit", way.rows),
        mock.patch.object(samplers.MIDX, "_weighted_cells", own),
    ):
        start = time.process_time()
        sampler.refresh(head)
        return time.process_time() - start, read[0] / head.num_classes


def measure(head, query, codewords, quantizer):
    """Figures of every way, by name."""
    results = {}
    for name, way in WAYS.items():
        options = {"quantizer": quantizer, "class_weights": way.class_weights}
        sampler = samplers.MIDX(100, num_codewords=codewords, seed=0, **options)
        sampler.build((head.num_classes, head.effective_dim))
        seen = head.effective_query(query)
        sampler.queries.follow(seen if way.spread else tf.reduce_mean(seen, 0, keepdims=True), 1)
        seconds, passes = refresh(sampler, head, way)
        quality = samplers.proposal_quality(sampler, head, query, tf.zeros([QUERIES, 1], tf.int32))
        results[name] = {
            "kl": float(tf.reduce_mean(quality.kl)),
            "effective_sample_size": float(tf.reduce_mean(quality.effective_sample_size)),
            "cpu_seconds": seconds,
            "passes": passes,
        }
    return results


@contextlib.contextmanager
def refreshes_of(package, model, sampler, query, label):
    """The divergence by the package in that folder, and a function that refreshes by it for CPU seconds."""
    arrays = [model.head.table, sampler.queries.mean, sampler.queries.mean_square, query, label]
    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip(ARRAYS, arrays, strict=True):
            np.save(pathlib.Path(folder, f"{name}.npy"), tf.convert_to_tensor(array))
        command = [sys.executable, _refresh_of.__file__, folder, str(sampler.num_codewords), str(NEGATIVES)]
        environment = {**os.environ, "PYTHONPATH": str(package)}
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **ends) as process:

            def ask():
                print(file=process.stdin, flush=True)
                return float(process.stdout.readline())

            yield float(process.stdout.readline()), ask


def after_steps(num_classes, codewords, num_steps, package=None):
    """A row of the table: what a refresh after the steps costs, and the proposal that it gives."""
    sampler = samplers.MIDX(NEGATIVES, num_codewords=codewords, shared=True, seed=0)
    model, inputs, labels = train(sampler, num_classes, num_steps, RowwiseAdagrad(0.02), REFRESHES)
    query = model.encoder(inputs[:QUERIES])
    before = {name: tf_variable(getattr(sampler, name)).numpy() for name in (*midx.STATE, *midx.INDEX)}
    seconds, divergence, changed, earlier = {False: [], True: []}, {}, [], []

    def chosen(self, num_changed, *_):
        changed.append(num_changed / num_classes)
        return is_whole

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(samplers.MIDX, "_is_whole", chosen))
        if package:
            beside = refreshes_of(package, model, sampler, query, labels[:QUERIES])
            earlier_divergence, refresh_earlier = stack.enter_context(beside)
        for is_whole in (False, True):
            sampler._assign_weights(before)
            sampler.refresh(model.head)
            quality = samplers.proposal_quality(sampler, model.head, query, labels[:QUERIES])
            divergence[is_whole] = float(tf.reduce_mean(quality.kl))
        for is_whole in [False, True] * TURNS:
            if package and not is_whole:
                earlier.append(refresh_earlier())
            sampler._assign_weights(before)
            start = time.process_time()
            sampler.refresh(model.head)
            seconds[is_whole].append(time.process_time() - start)
    kept, whole = map(statistics.median, seconds.values())
    row = [f"{num_classes:,}", f"{100 * changed[0]:.1f} %", kept, whole, kept / whole, *divergence.values()]
    if package:
        cost = statistics.median(earlier)
        row += [cost, kept / cost, whole / cost, earlier_divergence]
    return row


def mean_of(runs):
    """The means over runs of their figures, by name."""
    return {
        name: {figure: float(np.mean([run[name][figure] for run in runs])) for figure in row}
        for name, row in runs[0].items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[400_000, 1_000_000])
    parser.add_argument("--exponents", type=float, nargs="+", default=[1.0, 1.2], help="of Zipf's law")
    parser.add_argument("--codewords", type=int, default=64)
    parser.add_argument("--quantizers", nargs="+", choices=("rq", "pq"), default=["rq"])
    parser.add_argument("--problems", type=int, default=3)
    parser.add_argument("--steps", type=int, help="measures a refresh after so many training steps instead")
    parser.add_argument("--before", type=pathlib.Path, help="a checkout of an earlier commit, with ops")
    add_results(parser)
    args = parser.parse_args()
    if args.steps is not None:
        warnings.filterwarnings("ignore", message="train_on_batch does not refresh")
        show(
            f"A refresh after {args.steps:,} steps, C = {args.codewords}",
            [after_steps(size, args.codewords, args.steps, args.before) for size in args.classes],
            [*COLUMNS, *(EARLIER if args.before else [])],
        )
        keep(args.results)
        return
    for num_classes, exponent in itertools.product(args.classes, args.exponents):
        runs = {quantizer: [] for quantizer in args.quantizers}
        for seed in range(args.problems):
            head, query = problem(num_classes, exponent, seed)
            for quantizer, own in runs.items():
                own.append(measure(head, query, args.codewords, quantizer))
        for quantizer, own in runs.items():
            rows = [
                [name, row["kl"], row["effective_sample_size"], row["cpu_seconds"], f"{row['passes']:.2f}"]
                for name, row in mean_of(own).items()
            ]
            title = f"{num_classes:,} classes, Zipf's exponent {exponent}, {quantizer}, C = {args.codewords}"
            show(
                title,
                rows,
                ["rows of k-means", "KL(softmax, Q)", "effective of 100 draws", "refresh CPU s", "passes"],
            )
    keep(args.results)


if __name__ == "__main__":
    main()
