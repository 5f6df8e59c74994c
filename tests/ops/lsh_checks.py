import numpy as np

from tfxc.ops.hash_tables import hash_tables
from tfxc.ops.library import stock_ops
from tfxc.ops.lsh_draw import Scheme

SCHEMES = {
    "draws": Scheme(40, 0.2),
    "uniform draws": Scheme(40, 1.0),
    "union": Scheme(40, 0.2, bucket_slots=2),
}


def random_tables(num_classes, num_tables, num_buckets, seed=0):
    codes = np.random.default_rng(seed).integers(num_buckets, size=(num_classes, num_tables))
    with stock_ops():
        return hash_tables(codes.astype(np.uint16), num_buckets)


def random_queries(num, num_parts, num_tables, num_buckets, seed=1):
    """Codes [N, M, T]; of several parts some are absent, of the last query all."""
    random = np.random.default_rng(seed)
    codes = random.integers(num_buckets, size=(num, num_parts, num_tables))
    if num_parts > 1:
        codes[random.random((num, num_parts)) < 0.4] = -1
        codes[-1] = -1
    return codes.astype(np.int32)


def slow_counts(query_codes, tables, scheme):
    """The expected count float64 [N, L] of every class, one bucket after the other."""
    codes = tables.codes.numpy()
    num_classes, num_tables = codes.shape
    counts = np.zeros((len(query_codes), num_classes))
    for count, parts in zip(counts, query_codes, strict=True):
        parts = [part for part in parts if part[0] >= 0]
        missed, draws = np.ones(num_classes), np.zeros(num_classes)
        for table in range(num_tables):
            taken = np.zeros(num_classes)
            for part in parts:
                inside = codes[:, table] == part[table]
                taken += inside * min(1, scheme.bucket_slots / max(inside.sum(), 1)) / len(parts)
                inside = inside if inside.any() else np.ones(num_classes)
                draws += inside / inside.sum() / (num_tables * len(parts))
            missed *= 1 - taken
        if scheme.bucket_slots:
            count += (scheme.num_candidates - scheme.bucket_slots * num_tables) / num_classes + 1 - missed
        else:
            uniform = scheme.uniform_fraction if parts else 1.0
            count += scheme.num_candidates * (uniform / num_classes + (1 - uniform) * draws)
    return counts
