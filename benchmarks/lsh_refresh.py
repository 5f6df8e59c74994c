"""What a refresh of LSH costs after training steps, compared with a whole one.

    python benchmarks/lsh_refresh.py [--classes 1000000] [--steps 1000] [--shared 64 512]

D = 64, the class vectors are generated around a thousand centres, and labels follow Zipf's law. Steps have
512 positions and draw negatives that the batch shares. Then the refresh after them and one that hashes all
classes take turns; the time is in CPU seconds. The program ends with an error unless both give the same
tables, to the bit.
"""

import argparse
import statistics
import time
import warnings

import numpy as np
from _tables import add_results, keep, show
from lsh_draw import DIM, head_of

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.samplers import LSH

POSITIONS, ROUNDS = 512, 5
TABLES = (16, 4), (50, 9)  # the defaults, and the LNS paper's for text8


def train(sampler, num_classes, steps, optimizer, refreshes=(0,)):
    """Trains a model with the sampler, which is refreshed before some of the steps.

    Returns the model, and the inputs and labels of the last step.
    """
    random = np.random.default_rng(0)
    head = head_of(num_classes, DIM**-0.5)
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM, kernel_initializer="identity")])
    model = tfxc.ExtremeClassifier(encoder, head, sampler)
    model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy())
    classes, share = random.permutation(num_classes), 1 / np.arange(1.0, num_classes + 1)
    share = np.cumsum(share) / share.sum()
    for step in range(steps):
        if step in refreshes:
            sampler.refresh(head)
        labels = classes[np.minimum(np.searchsorted(share, random.random(POSITIONS)), num_classes - 1)]
        noise = random.normal(size=(POSITIONS, DIM)).astype(np.float32)
        inputs = head.class_vectors_of(labels) + noise
        model.train_on_batch(inputs, labels)
    return model, inputs, labels


def measure(num_classes, steps, negatives, num_tables, num_bits):
    """The share of classes that changed; CPU seconds of the refresh after the steps, and of a whole one."""
    sampler = LSH(negatives, num_tables=num_tables, num_bits=num_bits, shared=True, seed=0)
    head = train(sampler, num_classes, steps, tfxc.optimizers.LazyAdam(1e-3))[0].head
    names = "codes", "offsets", "members", "fingerprint"
    before = {name: tf_variable(getattr(sampler, name)).numpy() for name in names}
    starts = {"changed": before, "whole": {**before, "fingerprint": np.zeros_like(before["fingerprint"])}}
    seconds, after = {name: [] for name in starts}, {}
    for _ in range(ROUNDS):
        for name, start in starts.items():
            sampler._assign_weights(start)
            begin = time.process_time()
            sampler.refresh(head)
            seconds[name].append(time.process_time() - begin)
            after[name] = [tf_variable(getattr(sampler, part)).numpy() for part in names]
    for changed, whole in zip(after["changed"], after["whole"], strict=True):
        np.testing.assert_array_equal(changed, whole)
    share = np.mean(before["fingerprint"] != after["whole"][-1])
    return float(share), *(statistics.median(times) for times in seconds.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--shared", type=int, nargs="+", default=[64, 512], help="negatives of a batch")
    add_results(parser)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="train_on_batch does not refresh")
    rows = []
    for num_tables, num_bits in TABLES:
        for negatives in args.shared:
            share, changed, whole = measure(args.classes, args.steps, negatives, num_tables, num_bits)
            tables = f"{num_tables} of {num_bits} bits"
            rows.append([tables, negatives, f"{100 * share:.1f} %", changed, whole, changed / whole])
    show(
        f"A refresh after {args.steps:,} steps, {args.classes:,} classes",
        rows,
        ["tables", "negatives a step", "classes touched", "CPU s", "CPU s, all hashed", "ratio"],
    )
    keep(args.results)


if __name__ == "__main__":
    main()
