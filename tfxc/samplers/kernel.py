"""Kernel samplers: draws by a kernel of query and class vector, in time that grows as the root of L."""

import math

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight, tf_variable
from tfxc.arguments import number_in, positive_int, real_number
from tfxc.class_vectors import copy_class_vectors
from tfxc.ops.block_draw import BlockIndex, Kernel, block_draw, block_log_prob
from tfxc.ops.candidate_scores import candidate_scores
from tfxc.samplers.sampler import Sampler
from tfxc.samplers.step import Step

_BLOCK_MULTIPLE = 8  # classes the compiled op works on at once
_ELEMENTS_AT_ONCE = 1 << 22


class KernelSampler(Sampler):
    """Draws a block of classes, by a product that gives its summed kernel, and then a class of the block.

    A subclass defines the ``kernel`` of the product of a class's and a query's ``_features``, the
    ``_block_sums`` over the classes of a block, and the ``_block_mass`` that a query makes of the sums.
    """

    def build_index(self):
        row_width, sum_width = self._widths
        # Both levels then cost a query the same: L/b sums of sum_width floats, and S blocks of b rows.
        balanced = math.sqrt(self.num_classes * sum_width / (self.num_negatives * row_width))
        self.block_size = max(1, round(balanced / _BLOCK_MULTIPLE)) * _BLOCK_MULTIPLE
        num_blocks = -(-self.num_classes // self.block_size)
        # With features of 0 all classes are alike, and Q is exactly uniform.
        self.rows = add_weight(self, "rows", (self.num_classes, row_width), trainable=False)
        self.sums = add_weight(self, "sums", (num_blocks, sum_width), trainable=False)

    def refresh(self, head) -> None:
        """Takes over the head's class vectors, block by block."""
        self.check_head(head)
        copy_class_vectors(head, tf_variable(self.rows), self._features)
        self._add_up()

    def _add_up(self):
        """Sums the rows of each block."""
        rows, sums = tf_variable(self.rows), tf_variable(self.sums).numpy()
        at_once = max(1, _ELEMENTS_AT_ONCE // (self.block_size * rows.shape[1] + sums.shape[1]))
        for start in range(0, len(sums), at_once):
            part = np.arange(start, min(start + at_once, len(sums)))
            ids = part[:, np.newaxis] * self.block_size + np.arange(self.block_size)
            inside = tf.constant(ids < self.num_classes)[:, :, tf.newaxis]
            features = tf.gather(rows, np.minimum(ids, self.num_classes - 1).astype(np.int32))
            sums[part] = self._block_sums(tf.where(inside, features, 0.0))
        # The sums are assigned whole: after a scatter, TensorFlow would copy them whenever a draw reads them.
        tf_variable(self.sums).assign(sums)

    def prepare(self, step: Step):
        """The queries' features, and the kernel's sums [N, blocks] over each block of classes."""
        features = self._features(step.query)
        return features, self._block_mass(features)

    def draw(self, given, seed):
        ids, log_prob = block_draw(*given, self._index(), self.num_negatives, seed)
        return ids, self.log_num_draws + log_prob

    def log_expected_count(self, given, ids):
        return self.log_num_draws + self._log_prob(*given, ids)

    def _index(self):
        return BlockIndex(tf_variable(self.rows), self.block_size, self.kernel)


@register
class Sphere(KernelSampler):
    """Draws by the quadratic kernel of the logit: ``Q(i|z) = (α·o_i² + 1) / (α·zᵀGz + L)``, ``o_i = z·w_i``.

    With ``G = Σ_i w_i w_iᵀ``, log Q of any class has a closed form. The same sum over a block of b classes
    gives its share: a draw takes a block, then a class in it, exactly by Q. Classes of large logits of either
    sign come often; ``MIDX`` follows the softmax more closely. The kernel squares the head's whole logit,
    with its bias and temperature.

    With ``b = sqrt(L·D / 2S)`` both levels cost a query the same, ``sqrt(2·L·S·D³)`` multiplications in all:
    no gain below 2·S·D classes. Memory: 4·D bytes a class, and D(D+1)/2 floats a block. Before its first
    ``refresh`` Q is exactly uniform. Refresh once an epoch (``tfxc.callbacks.SamplerRefresh``).

    Args:
        num_negatives, shared, seed: see ``Sampler``.
        alpha: α > 0, the weight of the squared logit against the constant 1.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = Sphere(4, seed=1)
        >>> sampler.build((10, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> draw.ids.shape, round(float(tf.exp(draw.log_expected_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Blanc, Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling", 2018.
    """

    def __init__(
        self,
        num_negatives: int,
        *,
        alpha: float = 100.0,
        shared: bool = False,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.alpha = number_in(alpha, "alpha", "(0, inf)")

    def get_config(self):
        return {**super().get_config(), "alpha": self.alpha}

    @property
    def kernel(self):
        return Kernel(quadratic=self.alpha, linear=0.0, constant=1.0, floor=1.0)

    @property
    def _widths(self):
        return self.query_dim, self.query_dim * (self.query_dim + 1) // 2

    @property
    def _pairs(self):
        """The entries of the upper triangle of a symmetric [D, D] matrix."""
        return np.triu_indices(self.query_dim)

    def build_index(self):
        super().build_index()
        # One product of a query with the whole of G gives the exact sum of the kernel over all classes.
        shape = (self.query_dim, self.query_dim)
        self.total = add_weight(self, "total", shape, dtype="float64", trainable=False)

    def _features(self, vectors):
        return vectors

    def _block_sums(self, features):
        """The upper triangles of ``Σ w wᵀ`` over blocks of vectors [m, b, D], off the diagonal doubled."""
        products = tf.reshape(tf.matmul(features, features, transpose_a=True), [len(features), -1])
        first, second = self._pairs
        sums = tf.gather(products, first * self.query_dim + second, axis=1)
        return sums * np.where(first == second, 1, 2).astype(np.float32)

    def _add_up(self):
        super()._add_up()
        total = np.zeros(self.total.shape)
        total[self._pairs] = tf_variable(self.sums).numpy().sum(0, dtype=np.float64) / 2
        tf_variable(self.total).assign(total + total.T)

    def _block_mass(self, query):
        first, second = self._pairs
        columns = math.sqrt(self.alpha) * tf.transpose(query)  # to gather rows is faster than columns
        factors = tf.gather(columns, first) * tf.gather(columns, second)  # α z_i z_j, [D(D+1)/2, N]
        return tf.matmul(factors, tf_variable(self.sums), transpose_a=True, transpose_b=True)

    def _log_prob(self, query, mass, ids):
        exact = tf.cast(query, tf.float64)
        total = tf.reduce_sum(tf.matmul(exact, tf_variable(self.total)) * exact, 1)
        total = tf.maximum(self.alpha * total, 0.0) + self.num_classes
        logits = tf.cast(candidate_scores(tf_variable(self.rows), query, ids), tf.float64)
        log_prob = tf.math.log(self.kernel(logits)) - tf.math.log(total)[:, tf.newaxis]
        return tf.cast(log_prob, tf.float32)


@register
class RFF(KernelSampler):
    """Draws by random Fourier features, which estimate the softmax of the cosines.

    Query and class vectors are scaled to length 1, and ``φ(u) = D_r^(−1/2) [cos(Ωu), sin(Ωu)]``, the D_r
    rows of Ω drawn once from N(0, ν·I) and shared by all vectors. ``k_i = φ(z)·φ(w_i)`` estimates
    ``exp(−ν|z − w_i|²/2)``, which is proportional to ``exp(ν·z·w_i)``. An estimate may be negative, and the
    sum of a block does not tell which ones are, so Q has two steps, over blocks of b consecutive ids:

    ``P(block) ∝ max(Σ_{i in block} k_i, ε·|block|)``, ``P(i|block) ∝ max(k_i, ε)``,
    ``Q(i|z) = P(block)·P(i|block)``, with ε = exp(−ν), the kernel of vectors at a right angle.

    Draws follow this Q exactly, and so does log Q of any class, which costs one block a class.

    A head with temperature t (``DenseHead(normalize=True, temperature=t)``) trains the softmax of
    ``τ·cos``, τ = 1/t. ν = τ would estimate just that, but with few features a smaller ν gives less noise.

    With ``b = sqrt(L / S)`` both levels cost a query the same, ``4·D_r·sqrt(L·S)`` multiplications in all.
    Memory: 8·D_r bytes a class, and as much for a block. Before its first ``refresh`` Q is exactly uniform.
    Refresh once an epoch (``tfxc.callbacks.SamplerRefresh``). In all of docs/benchmarks models of these draws
    rank below those of ``Unigram``, which take less time: ``compile`` warns of it.

    Args:
        num_negatives, shared, seed: see ``Sampler``; the seed also draws Ω.
        num_features: D_r, the number of random directions; the noise of k falls as its root.
        nu: ν in (0, 50], the inverse squared width of the kernel.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = RFF(4, seed=1)
        >>> sampler.build((10, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> draw.ids.shape, round(float(tf.exp(draw.log_expected_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Rawat et al., "Sampled Softmax with Random Fourier Features", 2019.
    """

    def __init__(
        self,
        num_negatives: int,
        *,
        num_features: int = 32,
        nu: float = 4.0,
        shared: bool = False,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.nu = real_number(nu, "nu")
        if not 0 < self.nu <= 50:
            raise ValueError(f"nu must be in (0, 50]: the kernel is as small as exp(-2 nu); got {nu}.")
        self.num_features = positive_int(num_features, "num_features")

    def get_config(self):
        return {**super().get_config(), "num_features": self.num_features, "nu": self.nu}

    @property
    def kernel(self):
        return Kernel(quadratic=0.0, linear=1.0, constant=0.0, floor=math.exp(-self.nu))

    @property
    def _widths(self):
        return 2 * self.num_features, 2 * self.num_features

    def build_index(self):
        super().build_index()
        random = np.random.default_rng(self.seed % 2**31)
        directions = math.sqrt(self.nu) * random.normal(size=(self.query_dim, self.num_features))
        # The directions are a weight because the features fit these directions alone.
        self._add_weights({"directions": directions.astype(np.float32)})

    def _features(self, vectors):
        unit = tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24)
        angles = tf.matmul(unit, tf_variable(self.directions))
        return tf.concat([tf.cos(angles), tf.sin(angles)], -1) / math.sqrt(self.num_features)

    def _block_sums(self, features):
        return tf.reduce_sum(features, 1)

    def _block_mass(self, features):
        return tf.matmul(features, tf_variable(self.sums), transpose_b=True)

    def _log_prob(self, features, mass, ids):
        return block_log_prob(features, mass, self._index(), ids)
