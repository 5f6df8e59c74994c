"""LSH: draws classes whose vectors hash like the query, or like the vector of its label."""

from typing import Literal

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import tf_variable
from tfxc.arguments import number_in, one_of, positive_int
from tfxc.class_vectors import changed_classes, vectors_of
from tfxc.hashing.lsh import draw_dwta, draw_simhash, dwta, simhash
from tfxc.ops.hash_tables import HashTables, hash_tables
from tfxc.ops.lsh_draw import Scheme, lsh_draw, lsh_log_expected_count
from tfxc.require import finite_rows
from tfxc.samplers.sampler import Sampler, no_log_prob
from tfxc.samplers.step import Step

# For each family, what draws the parameters and what hashes with them.
_FAMILIES = {"simhash": (draw_simhash, simhash), "dwta": (draw_dwta, dwta)}
_MOST_BITS_AT_ONCE = 1 << 22
_ROWS_HASHED = 1 << 14  # at once; a product of fewer rows may round differently


@register
class LSH(Sampler):
    """Draws classes in the buckets of the query, in T hash tables over the class vectors.

    A class i whose bits agree with the query's with probability ρ shares at least one of T buckets of b-bit
    codes with probability ``1 − (1 − ρ^b)^T``: near classes often, far ones seldom. Given the tables, the
    sampler knows exactly how often a class is expected, and the loss corrects for it. With ``|t|`` the size
    of the query's bucket in table t:

    * ``candidates="draws"``: S independent draws, a share ε of them from all classes, the others from a
      bucket chosen uniformly (from all classes, if it is empty):
      ``Q(i|z) = ε/L + (1 − ε)/T Σ_t [i in bucket] / |t|``.
    * ``candidates="union"``: the distinct classes of all T buckets, at most c of each, and u = S − c·T
      uniform draws. The number c is the largest that leaves about ε·S of these. Class i is expected
      ``u/L + 1 − Π_t (1 − [i in bucket] min(1, c/|t|))`` times; a slot that nothing fills is empty.

    A draw costs O(T), whatever L; the tables take (6·T + 8)·L bytes. Before the first ``refresh`` all
    classes are in one bucket and draws are uniform. ``refresh`` reads all class vectors, but hashes only
    those that changed since the last one: a checksum of 64 bits a class tells which, whatever changed them.
    The tables are, to the bit, those that hashing all would give. Vectors change less and less, so refresh at
    growing intervals: ``SamplerRefresh(every=50, growth=1.5)``.

    Args:
        num_negatives: S, draws (or slots of the union) a query; for a union at least T more than there are
            uniform draws, which are ε·S, at least one.
        num_tables: T. More tables see more of the near classes.
        num_bits: b, in [1, 16]: 2^b buckets a table. More bits: fewer classes in a bucket, and nearer ones.
        family: "simhash" (signs of random projections), or "dwta" (densified winner-take-all) for sparse or
            non-negative queries and class vectors.
        query: "embedding", or "label": the buckets of the label's own class vector (of a label chosen
            uniformly, where there are several), at no hashing cost. Candidates that depend on the label bias
            the estimates of the softmax; at 400,000 classes that bias hardly falls with S. Those of
            ``BinaryCrossentropy`` stay unbiased.
        candidates: "draws" or "union".
        uniform_fraction: ε in (0, 1], the share of uniform draws, which keep every class within reach.
        shared, seed: see ``Sampler``; the seed also draws the hash functions.

    Raises:
        ValueError: for arguments outside their range, or a label query of shared draws.

    Example:
        >>> sampler = LSH(4, num_tables=2, num_bits=3, seed=1)
        >>> sampler.build((10, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> draw.ids.shape, round(float(tf.exp(draw.log_expected_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Daghaghi et al., "A Tale of Two Efficient and Informative Negative Sampling Distributions", 2021
        (union, queries, schedule); Spring, Shrivastava, "A New Unbiased and Efficient Class of LSH-Based
        Samplers and Estimators for Partition Function Computation in Log-Linear Models", 2017 (weights).
    """

    def __init__(
        self,
        num_negatives: int,
        *,
        num_tables: int = 16,
        num_bits: int = 4,
        family: Literal["simhash", "dwta"] = "simhash",
        query: Literal["embedding", "label"] = "embedding",
        candidates: Literal["draws", "union"] = "draws",
        uniform_fraction: float = 0.1,
        shared: bool = False,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.num_tables = positive_int(num_tables, "num_tables")
        self.num_bits = positive_int(num_bits, "num_bits", most=16)
        self.family = one_of(family, "family", _FAMILIES)
        self.query = one_of(query, "query", ("embedding", "label"))
        self.candidates = one_of(candidates, "candidates", ("draws", "union"))
        self.uniform_fraction = number_in(uniform_fraction, "uniform_fraction", "(0, 1]")
        if query == "label" and shared:
            raise ValueError(
                'Draws that the batch shares have no label of their own: use query="embedding" with shared.'
            )
        self._bucket_slots = self._plan_union() if candidates == "union" else 0

    def get_config(self):
        names = ("num_tables", "num_bits", "family", "query", "candidates", "uniform_fraction")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    @property
    def _scheme(self):
        return Scheme(self.num_negatives, self.uniform_fraction, self._bucket_slots)

    def _plan_union(self):
        """The number of classes that each table may add."""
        num_uniform = max(1, round(self.uniform_fraction * self.num_negatives))
        slots = (self.num_negatives - num_uniform) // self.num_tables
        if slots < 1:
            raise ValueError(
                f"A union takes a class from each of {self.num_tables} tables and {num_uniform} uniform "
                f"draws, but num_negatives={self.num_negatives} has no room for them: raise it, or lower "
                "num_tables."
            )
        return slots

    def build_index(self):
        draw, self._hash = _FAMILIES[self.family]
        parameters = draw(self.query_dim, self.num_tables, self.num_bits, self.seed % 2**31)
        # The parameters are weights because the tables fit these hash functions alone.
        self._parameters = tuple(parameters)
        codes = np.zeros((self.num_classes, self.num_tables), np.uint16)
        with tf.init_scope():  # computes values even while a step is traced
            tables = hash_tables(codes, 1 << self.num_bits)._asdict()
        fingerprint = np.zeros(self.num_classes, np.int64)
        values = {**parameters, **tables, "fingerprint": fingerprint}
        self._add_weights({name: np.asarray(value) for name, value in values.items()})

    def refresh(self, head) -> None:
        """Hashes the class vectors that changed, and sorts the classes into buckets anew."""
        self.check_head(head)
        codes, fingerprint = (tf_variable(part).numpy() for part in (self.codes, self.fingerprint))
        any_moved = False
        changed = ((ids, vectors_of(head, ids)) for ids in changed_classes(head, fingerprint))
        for ids, vectors in _padded(changed, self._rows_hashed):
            hashed = self._codes_of(vectors).numpy()[: len(ids)]
            any_moved = any_moved or (codes[ids] != hashed).any()
            codes[ids] = hashed
        tables = hash_tables(codes, 1 << self.num_bits)._asdict() if any_moved else {}
        self._assign_weights({**tables, "fingerprint": fingerprint})

    def classes_changed(self, head, added):
        # Offsets came along from the tables of the other classes, since their shape is the same.
        tables = hash_tables(tf_variable(self.codes).numpy(), 1 << self.num_bits)
        self._assign_weights(tables._asdict())
        self.refresh(head)

    @property
    def _rows_hashed(self):
        """How many rows each product takes: always as many, so a row's code depends on no other row."""
        rows = min(_ROWS_HASHED, _MOST_BITS_AT_ONCE // (self.num_tables * self.num_bits), self.num_classes)
        return max(rows // 64, 1) * 64

    def prepare(self, step: Step):
        """Codes int32 [N, M, T] of the query (M = 1) or of its M labels, and the tables."""
        # The variables are read whole: after a gather, TensorFlow would copy them at every later read.
        parts = (self.codes, self.offsets, self.members)
        tables = HashTables(*(tf.convert_to_tensor(tf_variable(part)) for part in parts))
        if self.query == "label":
            codes = tf.cast(tf.gather(tables.codes, tf.maximum(step.labels, 0)), tf.int32)
            return tf.where(step.labels[:, :, tf.newaxis] < 0, -1, codes), tables
        with tf.control_dependencies(finite_rows(step.query, "query")):
            return self._codes_of(step.query)[:, tf.newaxis], tables

    def draw(self, given, seed):
        return lsh_draw(*given, self._scheme, seed)

    def log_expected_count(self, given, ids):
        query_codes, tables = given
        return lsh_log_expected_count(query_codes, ids, tables, self._scheme)

    def log_prob(self, query, ids):
        if self.query == "label" or self.candidates == "union":
            kind = f"query={self.query!r} and candidates={self.candidates!r}"
            no_log_prob(f"with {kind} its candidates are not draws of one distribution")(self, query, ids)
        return super().log_prob(query, ids)

    def _codes_of(self, vectors):
        parameters = {name: tf_variable(getattr(self, name)) for name in self._parameters}
        return self._hash(vectors, self.num_bits, **parameters)


def _padded(parts, size):
    """Joins pairs of ids and rows into such of ``size`` rows; zeros follow the last ones."""
    ids = rows = None
    for part in parts:
        ids, rows = part if ids is None else map(np.concatenate, zip((ids, rows), part, strict=True))
        while len(ids) >= size:
            yield ids[:size], rows[:size]
            ids, rows = ids[size:], rows[size:]
    if len(ids):
        yield ids, np.pad(rows, [(0, size - len(ids)), (0, 0)])
