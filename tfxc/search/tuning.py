"""The cost of a query in an inverted index, and the cells and scanned classes that make it least."""

import operator

import numpy as np

from tfxc.class_vectors import SomeClasses
from tfxc.progress import progress
from tfxc.search.cells import cut_into_cells, lengths_of, promise_of_cells
from tfxc.search.exact import GROUP
from tfxc.search.scanned import Answers, most_promising

# A scanned class is part of one dense product. Gathering a row from a cell takes about ten times as long for
# a single query, and fifty times in batches.
_SCANNED_PER_READ = 10
_QUERIES_AT_ONCE = 16  # queries whose answers are compared with all cells at a time: megabytes
_COMPARED = 1 << 20  # classes that are cut each way to compare them
_MOST_SCANNED = 4  # at most 1/4 of all classes is scanned; with more, scoring all classes is about as fast


def cheapest(head, query, best, recall, numbers_of_cells, steps):
    """The cells and scanned classes at which a query costs least.

    Returns ``Cells`` of all classes, the ids int32 [H] of those to scan, and the ``Answers`` that chose them.
    ``recall`` is the share to find of the ``BestClasses`` [n, k] of effective queries [n, E]. The smallest of
    the numbers of cells is cut with and without cells of their own for long vectors; larger ones the better
    way, as long as they cost less. ``steps`` are the numbers of scanned classes to consider. Of more than a
    million classes it cuts a sample each way, and all classes the cheapest way alone.
    """
    lengths = lengths_of(head)  # first: it names a class vector that is not finite
    answers = Answers.of(query, best.scores[:, -1].numpy())
    promising = most_promising(head, answers, steps[-1])
    rank = np.full(head.num_classes, head.num_classes, np.int32)
    rank[promising] = np.arange(len(promising))
    wanted = best.ids.numpy()
    ids, stands_for = _sample(head.num_classes, wanted)
    some = SomeClasses(head, ids)
    given = some, query, np.searchsorted(ids, wanted), recall, rank[ids], steps, stands_for

    def cut(num_cells, skewed):
        cells = cut_into_cells(some, num_cells, skewed, lengths[ids])
        return *cheapest_step(cells, *given), num_cells, skewed, cells

    fewest, *more = sorted(numbers_of_cells)
    cost, *found = min(cut(fewest, False), cut(fewest, True), key=operator.itemgetter(0))
    for num_cells in more:
        next_cost, *others = cut(num_cells, found[2])
        if next_cost >= cost:
            break
        cost, found = next_cost, others
    num_scanned, num_cells, skewed, cells = found
    if len(ids) < head.num_classes:
        cells = cut_into_cells(head, num_cells, skewed, lengths)
    return cells, promising[:num_scanned], answers


def _sample(num_classes, wanted):
    """Ascending class ids [n], all of the wanted ones, and how many classes each stands for: float32 [n]."""
    if num_classes <= _COMPARED:
        return np.arange(num_classes), np.ones(num_classes, np.float32)
    drawn = np.random.default_rng(0).choice(num_classes, _COMPARED, replace=False)
    wanted = np.unique(wanted)
    ids = np.union1d(drawn, wanted)
    stands_for = np.full(len(ids), (num_classes - len(wanted)) / (len(ids) - len(wanted)), np.float32)
    stands_for[np.searchsorted(ids, wanted)] = 1
    return ids, stands_for


def fewest_probes(recall_of, recall, num_cells):
    """The smallest number of probes, up to ``num_cells``, that reaches a recall, and the recall it reaches.

    ``recall_of`` maps a number of probes to a recall that grows with it. The recall found is less than wanted
    only where all cells are too few.
    """
    # Doubles the number until it is enough, then bisects.
    too_few, enough, found = 0, 1, recall_of(1)
    while found < recall and enough < num_cells:
        too_few, enough = enough, min(2 * enough, num_cells)
        found = recall_of(enough)
    while found >= recall and enough - too_few > 1:
        between = (enough + too_few) // 2
        reached = recall_of(between)
        if reached >= recall:
            enough, found = between, reached
        else:
            too_few = between
    return enough, found


def cheapest_step(cells, head, query, wanted, recall, rank, steps, stands_for):
    """The cost of a query and the number of scanned classes, one of ``steps``, at which it is least.

    The cost is the number of rows of the ``cells`` that take as long to read; a centre counts as a row.
    ``wanted`` int [n, k] are the best classes of the queries, ``rank`` int [L] the place of each class in the
    order in which to scan them, ``stands_for`` float [L] how many classes each is counted as.
    """
    num_cells = len(cells.offsets) - 1
    cell_of = np.empty(len(cells.members), np.int32)
    cell_of[cells.members] = np.repeat(np.arange(num_cells), np.diff(cells.offsets))
    left = [np.bincount(cell_of, stands_for * (rank >= step), num_cells) for step in steps]
    left = np.array(left, np.float32)
    means, reaches = cells.moments(head)
    read = np.empty((len(steps), *wanted.shape), np.float32)
    with progress(len(query), "Costs", "queries") as bar:
        for start in range(0, len(query), _QUERIES_AT_ONCE):
            some = slice(start, start + _QUERIES_AT_ONCE)
            promise = promise_of_cells(means, reaches, query[some])
            own = np.take_along_axis(promise, cell_of[wanted[some]], axis=1)
            before = promise[:, np.newaxis] >= own[..., np.newaxis]
            read[:, some] = np.moveaxis(before.astype(np.float32) @ left.T, 2, 0)
            bar.update(len(query[some]))
    read[rank[wanted] < np.reshape(steps, [-1, 1, 1])] = 0
    return min(
        (float(np.count_nonzero(own_left) + step / _SCANNED_PER_READ + np.quantile(own, recall)), step)
        for own, step, own_left in zip(read, steps, left, strict=True)
    )


def scan_steps(num_classes):
    """Numbers of scanned classes to compare: none, and up to a quarter of all in steps of the root of 2.

    They are multiples of a group of ``grouped_top_k``, which copies the rest of the classes otherwise.
    """
    most = num_classes // _MOST_SCANNED
    return sorted({int(most * 0.5 ** (halvings / 2)) // GROUP * GROUP for halvings in range(13)} | {0})
