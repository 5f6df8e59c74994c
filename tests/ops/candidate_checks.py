import numpy as np


def problem(rows, width, queries, *slots, row_offset=0):
    """A table, queries, and for each number of slots class ids [N, S]."""
    random = np.random.default_rng(rows * width + slots[-1])
    table, query = (random.normal(size=(size, width)).astype(np.float32) for size in (rows, queries))
    high = rows - row_offset
    return table, query, *(random.integers(-1, high, (queries, size)).astype(np.int32) for size in slots)


def expected_scores(table, query, ids, upstream, normalize=False, row_offset=0):
    """Scores [N, S] and the gradients of query and table, in float64 and one slot after the other."""
    table, query = table.astype(np.float64), query.astype(np.float64)
    scores, query_gradient, table_gradient = np.zeros(ids.shape), np.zeros_like(query), np.zeros_like(table)
    for (n, s), i in np.ndenumerate(ids):
        if i == -1:
            continue
        row = table[i + row_offset]
        norm = np.linalg.norm(row) if normalize else 1.0
        unit = row / norm
        scores[n, s] = query[n] @ unit
        query_gradient[n] += upstream[n, s] * unit
        across = query[n] - scores[n, s] * unit if normalize else query[n]
        table_gradient[i + row_offset] += upstream[n, s] * across / norm
    return scores, query_gradient, table_gradient
