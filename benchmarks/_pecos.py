"""PECOS' XR-Linear, in a Python of its own: it needs NumPy 1, which recent versions of TensorFlow exclude.

    python -m venv pecos; pecos/bin/pip install libpecos
    pecos/bin/python benchmarks/_pecos.py FOLDER K

It reads ``features.npz``, ``labels.npz`` and ``test.npz`` in the folder. It writes ``ids.npy``, the best K
labels of each test point, -1 where there is none, and ``result.json`` with times and memory.
"""

import json
import os
import sys
import time

import numpy as np
import scipy.sparse
from _measure import reset_peak, status
from pecos.utils.cluster_util import ClusterChain  # noqa: F401  (registers what Indexer.gen makes)
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel


def best(scores, k):
    ids = np.full((scores.shape[0], k), -1, np.int32)
    for row in range(scores.shape[0]):
        start, end = scores.indptr[row : row + 2]
        order = np.argsort(-scores.data[start:end], kind="stable")[:k]
        ids[row, : len(order)] = scores.indices[start:end][order]
    return ids


def main():
    folder, k = sys.argv[1], int(sys.argv[2])

    def load(name):
        return scipy.sparse.load_npz(os.path.join(folder, name)).tocsr().astype(np.float32)

    features, labels, test = map(load, ("features.npz", "labels.npz", "test.npz"))
    before = reset_peak()
    start, processor = time.perf_counter(), time.process_time()
    of_labels = LabelEmbeddingFactory.create(labels, features, method="pifa")
    model = XLinearModel.train(features, labels, C=Indexer.gen(of_labels))
    result = {
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
    }
    ids = best(model.predict(test, only_topk=k).tocsr(), k)
    result["peak"] = (status("VmHWM") - before) / 1024
    np.save(os.path.join(folder, "ids.npy"), ids)
    with open(os.path.join(folder, "result.json"), "w", encoding="utf-8") as file:
        json.dump(result, file)


main()
