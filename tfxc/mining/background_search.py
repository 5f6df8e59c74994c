"""The search for the hard classes of every example, in one thread of low priority."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.background import lower_priority
from tfxc.class_vectors import one_thread, vector_of_each
from tfxc.layers.class_cache import old_class_vectors
from tfxc.mining.hard_negative_table import NUM_CHECKED, Queries
from tfxc.search.faiss_index import build_index, search, share_found

_BLOCK_ROWS = 4096


class ClassVectors(NamedTuple):
    """The class vectors that a search reads: ``class_vectors(start, stop)`` -> float32 [stop - start, dim].

    ``best``: None, or a function (queries [n, D] as the head takes them, k) -> ids [n, k] of the classes
    that a search should find; with None, those of the largest inner products.
    """

    num_classes: int
    class_vectors: Callable
    best: Callable | None = None


def head_vectors(head):
    """The vectors of a head as they are: a cache that training makes old meanwhile is not refreshed."""

    def class_vectors(start, stop):
        return vector_of_each(head, tf.range(start, stop))

    def best(query, k):
        with old_class_vectors():
            return head.top_k(tf.constant(query), k).ids.numpy()

    return ClassVectors(head.num_classes, class_vectors, best)


def given_vectors(vectors, dim):
    """Vectors [L, d] instead of a head's; columns d to dim are 0."""

    def padded(start, stop):
        rows = np.asarray(vectors[start:stop], np.float32)
        return tf.constant(np.pad(rows, [(0, 0), (0, dim - rows.shape[1])]))

    return ClassVectors(len(vectors), padded)


class BackgroundSearch:
    """A thread that searches the best classes of all collected queries and writes them to a new table.

    While ``running`` is true nothing else may be read. Then ``found`` says whether the table of the queries'
    epoch is written, with ``recall`` and ``seconds``; if not, ``error`` says why.
    """

    def __init__(self, head, queries, table, factory):
        self.queries = queries
        self.found, self.recall, self.seconds = False, float("nan"), float("nan")
        self.error = "the thread ended without a result"
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(head, table, factory), name="hard-negative-search", daemon=True
        )
        self._thread.start()

    @property
    def running(self):
        return self._thread.is_alive()

    def stop(self):
        """Ends the search after its current block, and waits for that."""
        self._stopped.set()
        self.wait()

    def wait(self):
        self._thread.join()

    def _run(self, head, table, factory):
        try:
            lower_priority()
            with one_thread():
                start = time.perf_counter()
                self.recall = self._find(head, table, factory)
                self.seconds = time.perf_counter() - start
                self.found = True
        except BaseException as error:  # noqa: BLE001 - training goes on after any error, and reports it
            self.error = f"{type(error).__name__}: {error}"

    def _find(self, head, table, factory):
        values, seen, checked, _ = self.queries
        known = np.flatnonzero(seen)
        if not len(known):
            raise ValueError("no example of the epoch gave a query")
        some = values[known[:: max(1, len(known) // NUM_CHECKED)][:NUM_CHECKED]]
        index, recall = build_index(head, factory, some, table.shape[1])
        if head.best is not None and checked:
            found = search(index, values[list(checked)], table.shape[1])
            recall = share_found(head.best(np.stack(list(checked.values())), table.shape[1]), found)
        table.write(self._blocks(index, table), self.queries.epoch)
        return recall

    def _blocks(self, index, table):
        values, seen, *_ = self.queries
        for start in range(0, len(values), _BLOCK_ROWS):
            if self._stopped.is_set():
                raise InterruptedError("the search was stopped")
            block = np.arange(start, min(start + _BLOCK_ROWS, len(values)))
            rows, known = table.rows(block), seen[block]
            if known.any():
                rows[known] = search(index, values[block[known]], table.shape[1])
            yield rows


class FinishedSearch(NamedTuple):
    """The result of a ``BackgroundSearch`` that a training had not adopted when it was interrupted."""

    queries: Queries
    recall: float
    seconds: float
    running: bool = False
    found: bool = True

    def stop(self):
        """It has ended."""

    def wait(self):
        """It has ended."""
