"""Changes the classes of a trained model: seconds, and peak memory in addition to that of the model.

    python benchmarks/change_classes.py [--classes 5000000]

The model is a dense head of D = 64 with Adam slots and a MIDX index. One class in a hundred is retired, and
as many are new. In one run names keep their ids where possible (``Vocabulary.merge``); in another they are in
random order, so that every row moves; in a third none is retired. The program compares the scores of classes
that stay bit by bit.
"""

import argparse
import time

import numpy as np
import pyarrow.compute as pc
import tensorflow as tf
from _measure import measured
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.data import Vocabulary

DIM, BATCH, SHARE = 64, 256, 100
MERGED, SHUFFLED, GROWN = "ids stay", "all rows move", "none retired"


def names_of(numbers):
    return Vocabulary(f"item-{number}" for number in numbers).names


def new_names(case, names):
    """The list of names of the next day."""
    num_classes, num_changed = len(names), len(names) // SHARE
    if case == GROWN:
        return names_of(range(num_classes + num_changed))
    rng = np.random.default_rng(1)
    stay = np.delete(np.arange(num_classes), rng.choice(num_classes, num_changed, replace=False))
    numbers = np.append(stay, num_classes + np.arange(num_changed))
    if case == SHUFFLED:
        return names_of(rng.permutation(numbers))
    return Vocabulary.merge(names, names_of(numbers)).names


def trained_model(names, x):
    """A model after a few steps, so that it has every slot; what it has learnt does not matter."""
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)])
    sampler = tfxc.samplers.MIDX(100, num_codewords=64, seed=0)
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(len(names)), sampler, class_names=names)
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    y = np.random.default_rng(0).integers(0, len(names), len(x))
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return model


def scores(model, x, names):
    """The scores of the classes of these names (an Arrow array) for some queries."""
    ids = pc.index_in(names, value_set=model.class_names.array).to_numpy().astype(np.int32)
    return model.head.score(model.encoder(x[:8]), tf.constant(ids)).numpy()


def size_of(model):
    """MB of a model and its optimizer."""
    variables = map(tf_variable, [*model.weights, *model.optimizer.variables])
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables) / 2**20


def change(set_up_done, num_classes, case):
    """Changes the classes of a model; returns seconds, MB, and whether the scores of kept classes stay."""
    x = np.random.default_rng(0).normal(size=(8 * BATCH, DIM)).astype(np.float32)
    model = trained_model(names_of(range(num_classes)), x)
    names = new_names(case, model.class_names)
    some = model.class_names.array.take(np.random.default_rng(2).integers(0, num_classes, 20_000))
    some = some.filter(pc.is_in(some, value_set=names.array))
    before, size = scores(model, x, some), size_of(model)
    set_up_done()
    start = time.perf_counter()
    model = tfxc.change_classes(model, names)
    seconds = time.perf_counter() - start
    return seconds, size, (scores(model, x, some) == before).all()


def measure(num_classes, case):
    """A row of the table."""
    more, (seconds, size, same) = measured(change, num_classes, case)
    return case, seconds, size, 1 + more / size, "equal to the bit" if same else "differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=5_000_000)
    add_results(parser)
    args = parser.parse_args()
    rows = [measure(args.classes, case) for case in (MERGED, SHUFFLED, GROWN)]
    columns = "names", "seconds", "model MB", "peak memory / model", "scores of classes that stay"
    show(f"{args.classes:,} classes of {DIM} numbers with Adam slots", rows, columns)
    keep(args.results)


if __name__ == "__main__":
    main()
