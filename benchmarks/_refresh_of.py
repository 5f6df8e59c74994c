"""Refreshes of MIDX by the package that Python finds, an earlier one for ``midx_refresh.py --before``.

    python benchmarks/_refresh_of.py FOLDER CODEWORDS NEGATIVES

The folder holds the arrays of a trained model. The program refreshes once, and answers with the KL divergence
of the softmax from the proposal. Each line of the input asks for one more refresh, and for its CPU seconds.
"""

import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

from tfxc import samplers
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead

ARRAYS = "table", "mean", "mean_square", "query", "label"


def main():
    folder, codewords, negatives = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
    table, mean, mean_square, query, label = (np.load(folder / f"{name}.npy") for name in ARRAYS)
    head = DenseHead(len(table))
    head.build((None, table.shape[1]))
    tf_variable(head.table).assign(table)
    del table
    sampler = samplers.MIDX(negatives, num_codewords=codewords, shared=True, seed=0)
    sampler.build((head.num_classes, query.shape[1]))
    tf_variable(sampler.queries.mean).assign(mean)
    tf_variable(sampler.queries.mean_square).assign(mean_square)
    sampler.refresh(head)
    quality = samplers.proposal_quality(sampler, head, tf.constant(query), tf.constant(label))
    print(float(tf.reduce_mean(quality.kl)), flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        sampler.refresh(head)
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
