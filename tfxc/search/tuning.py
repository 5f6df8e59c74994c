"""The cost of a query in an inverted index, and the cells and scanned classes that make it least."""

import numpy as np

from tfxc.progress import progress
from tfxc.search.cells import cut_into_cells, order_of_cells
from tfxc.search.exact import GROUP
from tfxc.search.scanned import Answers, most_promising

# A scanned class is part of one dense product. Gathering a row from a cell takes about ten times as long for
# a single query, and fifty times in batches.
_SCANNED_PER_READ = 10
_QUERIES_AT_ONCE = 256  # queries whose cells are sorted at a time; all at once would take gigabytes
_MOST_SCANNED = 4  # at most 1/4 of all classes is scanned; with more, scoring all classes is about as fast


def cheapest(head, query, best, recall, numbers_of_cells, steps):
    """The cells and scanned classes at which a query costs least.

    Args:
        head: has the class vectors.
        query: float32 [n, E], effective queries.
        best: ``BestClasses`` [n, k] of the queries.
        recall: the share of them to find, in (0, 1].
        numbers_of_cells: set of ints, for ``cut_into_cells``. The smallest number is cut with and without
            cells of their own for long vectors; the other numbers are cut the better way.
        steps: numbers of scanned classes to consider; see ``scan_steps``.

    Returns:
        ``Cells`` of all classes, the ids of those to scan, int32 [H], and the ``Answers`` that chose them.

    Raises:
        ValueError: A class vector is not finite.
    """
    fewest, *more = sorted(numbers_of_cells)
    # First: it names a class vector that is not finite.
    kinds = [cut_into_cells(head, fewest, skewed) for skewed in (False, True)]
    answers = Answers.of(query, best.scores[:, -1].numpy())
    promising = most_promising(head, answers, steps[-1])
    given = head, query, best.ids.numpy(), recall, promising, steps
    cells, *_ = cheapest_of(kinds, *given)
    skewed = cells is kinds[True]
    every = [cells, *(cut_into_cells(head, num_cells, skewed) for num_cells in more)]
    cells, num_scanned, _ = cheapest_of(every, *given)
    return cells, promising[:num_scanned], answers


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


def cheapest_of(every, head, query, wanted, recall, promising, steps):
    """Chooses the cells and the number of scanned classes at which a query costs least.

    Args:
        every: list of ``Cells`` of all classes of the head.
        head: and ``query``, ``recall``, ``steps``: as of ``cheapest``.
        wanted: int32 [n, k], the ids of the queries' best classes.
        promising: class ids in the order in which to scan them.

    Returns:
        One of ``every``, one of ``steps``, and the cost of a query with them: the number of rows of cells
        that take as long to read; a centre counts as a row.
    """
    costs = {}
    for number, cells in enumerate(every):
        own = _costs(cells, head, query, wanted, recall, promising, steps)
        costs.update({(number, step): cost for step, cost in zip(steps, own, strict=True)})
    number, step = min(costs, key=costs.get)
    return every[number], step, costs[number, step]


def scan_steps(num_classes):
    """Numbers of scanned classes to compare: none, and up to a quarter of all in steps of the root of 2.

    They are multiples of a group of ``grouped_top_k``, which copies the rest of the classes otherwise.
    """
    most = num_classes // _MOST_SCANNED
    return sorted({int(most * 0.5 ** (halvings / 2)) // GROUP * GROUP for halvings in range(13)} | {0})


def _costs(cells, head, query, wanted, recall, promising, steps):
    """The cost of a query for each number of scanned classes, in rows read from cells."""
    num_cells, sizes = len(cells.offsets) - 1, np.diff(cells.offsets)
    cell_of = np.empty(len(cells.members), np.int32)
    cell_of[cells.members] = np.repeat(np.arange(num_cells), sizes)
    rank = np.full(len(cells.members), len(promising))  # the position of each class in ``promising``
    rank[promising] = np.arange(len(promising))
    left = [sizes - np.bincount(cell_of[promising[:step]], minlength=num_cells) for step in steps]
    moments = cells.moments(head)
    needed = np.empty((len(steps), *wanted.shape), np.int64)
    bar = progress(len(query), "Costs", "queries")
    for start in range(0, len(query), _QUERIES_AT_ONCE):
        some = slice(start, start + _QUERIES_AT_ONCE)
        bar.update(len(query[some]))
        order = order_of_cells(*moments, query[some])
        for own, step, sizes_left in zip(needed, steps, left, strict=True):
            read = np.empty(order.shape, np.int64)
            np.put_along_axis(read, order, np.cumsum(sizes_left[order], axis=1), axis=1)
            of_wanted = np.take_along_axis(read, cell_of[wanted[some]], axis=1)
            own[some] = np.where(rank[wanted[some]] < step, 0, of_wanted)
    bar.close()
    return [
        np.count_nonzero(sizes_left) + step / _SCANNED_PER_READ + np.quantile(own, recall)
        for own, step, sizes_left in zip(needed, steps, left, strict=True)
    ]
