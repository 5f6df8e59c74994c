"""The MACH head: millions of classes share the buckets of a few small classifiers."""

from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import config_of
from tfxc._keras.weights import add_weight, constant, tf_variable
from tfxc.arguments import one_of, positive_int, seed_or_drawn
from tfxc.class_rows import ClassRows
from tfxc.hashing.universal import UniversalHash, next_prime, universal_coefficients
from tfxc.ids import check_ids, drop_duplicates
from tfxc.infinity import infinity_is_meant
from tfxc.layers.head import Head
from tfxc.layers.mach_plan import collision_bound
from tfxc.ops.library import use_compiled
from tfxc.ops.mach_decode import DECODERS, class_scores, mach_top_k, mach_top_k_probed

_UNBIASED, _GEOMETRIC = "unbiased", "geometric"
_ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.nn.sigmoid}
_LOG_ACTIVATIONS = {"softmax": tf.nn.log_softmax, "sigmoid": tf.math.log_sigmoid}
_LEAST_LOG = -87.0  # about the logarithm of the smallest float32


@register
class MACHHead(Head):
    """R classifiers of M buckets stand for L classes: memory ``R · M · D`` instead of ``L · D``.

    Repetition r sends class i to bucket ``h_r(i)``, by a hash function of the 2-universal family, and learns
    ``P_r``, the probabilities of its M buckets. A class scores the geometric mean of ``P_r[h_r(i)]`` over r.
    Other decoders take the mean, as the paper does, the minimum or the median. "unbiased", for the softmax,
    scales the mean such that its expectation over the hash functions is the probability of the class:
    ``(mean − q) / (1 − q)``, where q, about 1/M, is the chance that two classes share a bucket. (The sigmoid
    gives a bucket the chance that any of its classes applies, which is no sum.) Scores are not logits: train
    the head in ``ExtremeClassifier``.

    **The loss** of a MACH head, in training as in ``evaluate``, is the mean over the repetitions of the given
    loss over the M buckets, whose labels are the buckets of the labels. It compares MACH heads of equal M
    only. Labels that meet in a bucket count once, but each for ``SoftmaxCrossentropy`` without
    ``decoupled=True``, whose probabilities add up.

    Training holds a few ``[B, R · M]`` tensors, and ranking no ``[B, L]`` tensor. ``top_k`` is exact. With
    ``num_probes`` it looks into the best buckets only, many times faster in an exported model
    (docs/benchmarks/tagging.md), and may find fewer than k classes; ``evaluate`` measures what is served.

    Args:
        num_classes: L.
        num_buckets: M, at least 1 ("unbiased": 2); :func:`suggest_mach` helps to choose M and R.
        num_repetitions: R.
        decoder: "geometric" (of logarithms, so exact to 1e-5 of itself), "mean", "min", "median" or, with the
            softmax, "unbiased".
        activation: "softmax" for one label an example, "sigmoid" for several.
        num_probes: None to rank exactly, or how many buckets of each repetition ``top_k`` looks into. Where
            these hold a quarter of all classes, it ranks all; an export looks into them alone.
        first_repetition: number of the first repetition. With one seed, different numbers give different hash
            functions: heads may be trained separately and merged by :func:`merge_mach_heads`.
        num_groups: how many equal parts the query has, each of which feeds equally many repetitions.
        kernel_initializer: initializer of the weights.
        bias_initializer: initializer of the biases. For "which of L labels apply" start where no label
            applies, at ``Constant(log(labels a point / M))``.
        seed: int, at least 0, of the hash functions; default: from Python's ``random``.

    Call arguments:
        query: float [..., D]. The call returns scores float32 [..., L].

    Raises:
        ValueError: for arguments outside their range, a sampler, or a loss that does not suit the activation.

    Example:
        >>> head = MACHHead(100_000, num_buckets=500, num_repetitions=4, seed=1)
        >>> head.build((None, 16))
        >>> scores, ids = head.top_k(tf.ones([2, 16]), k=5)
        >>> ids.shape, head.count_params()
        (TensorShape([2, 5]), 34012)

    Reference:
        Medini et al., "Extreme Classification in Log Memory using Count-Min Sketch", 2019; Serrà,
        Karatzoglou, "Getting Deep Recommenders Fit", 2017 (the product of probabilities).
    """

    indexable = False  # it has no class vectors

    def __init__(
        self,
        num_classes: int,
        num_buckets: int,
        num_repetitions: int,
        decoder: Literal["mean", "min", "median", "geometric", "unbiased"] = "geometric",
        activation: Literal["softmax", "sigmoid"] = "softmax",
        num_probes: int | None = None,
        first_repetition: int = 0,
        num_groups: int = 1,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.decoder = one_of(decoder, "decoder", (*DECODERS, _GEOMETRIC, _UNBIASED))
        self.activation = one_of(activation, "activation", _ACTIVATIONS)
        self.num_buckets = positive_int(num_buckets, "num_buckets", 2 if decoder == _UNBIASED else 1)
        self.num_repetitions = positive_int(num_repetitions, "num_repetitions")
        self.num_probes = None if num_probes is None else positive_int(num_probes, "num_probes")
        self.first_repetition = positive_int(first_repetition, "first_repetition", least=0)
        self.num_groups = positive_int(num_groups, "num_groups")
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = positive_int(seed_or_drawn(seed), "seed", least=0)
        if self.decoder == _UNBIASED and self.activation != "softmax":
            raise ValueError(
                'decoder="unbiased" needs activation="softmax": take decoder="mean", which ranks the same.'
            )
        if self.num_probes is not None and self.num_probes > self.num_buckets:
            raise ValueError(f"num_probes must be None or in [1, {num_buckets}] (M), but got {num_probes}.")
        if self.num_repetitions % self.num_groups:
            raise ValueError(
                f"The {self.num_repetitions} repetitions cannot be split into {self.num_groups} equal groups."
            )

    def get_config(self):
        sizes = "num_buckets", "num_repetitions", "num_probes", "first_repetition", "num_groups", "seed"
        kinds = "decoder", "activation", "kernel_initializer", "bias_initializer"
        return {**super().get_config(), **config_of(self, *sizes, *kinds)}

    def build(self, input_shape):
        dim = input_shape[-1]
        if dim % self.num_groups:
            raise ValueError(f"Queries of width {dim} cannot be split into {self.num_groups} equal groups.")
        width = self.num_repetitions * self.num_buckets
        shape = (dim // self.num_groups, width // self.num_groups)
        initializer = self.kernel_initializer
        for group in range(self.num_groups):
            # An initializer gives the same numbers each time: each group takes a copy. A function has none.
            if hasattr(initializer, "from_config"):
                initializer = type(initializer).from_config(initializer.get_config())
            # An attribute for each: tf.train.Checkpoint misses weights that Keras 3 finds in a list.
            setattr(self, f"kernel_{group}", add_weight(self, f"kernel_{group}", shape, initializer))
        self.bias = add_weight(self, "bias", (width,), self.bias_initializer)
        numbers = range(self.first_repetition, self.first_repetition + self.num_repetitions)
        hashes = universal_coefficients(self.num_classes, numbers, self.seed)
        # Saved as weights, since what was learnt is of no use with other functions.
        self.hashes = add_weight(self, "hashes", hashes.shape, constant(hashes), "int64", trainable=False)
        super().build(input_shape)

    @property
    def kernels(self) -> list:
        """The weights of the groups, each [D / groups, R · M / groups]."""
        return [getattr(self, f"kernel_{group}") for group in range(self.num_groups)]

    @property
    def family(self) -> UniversalHash:
        """The hash functions, a ``tfxc.hashing.UniversalHash``."""
        coefficients = tf.convert_to_tensor(tf_variable(self.hashes))
        return UniversalHash(coefficients, self.num_classes, self.num_buckets)

    def bucket_logits(self, query) -> tf.Tensor:
        """Logits [N, R, M] of the buckets, for queries [N, D]: one matmul for each group."""
        query = tf.cast(query, tf.float32)
        kernels = [tf_variable(kernel) for kernel in self.kernels]
        parts = tf.split(query, self.num_groups, axis=1) if self.num_groups > 1 else [query]
        logits = [tf.matmul(part, kernel) for part, kernel in zip(parts, kernels, strict=True)]
        logits = tf.concat(logits, 1) if self.num_groups > 1 else logits[0]
        return tf.reshape(logits + tf_variable(self.bias), [-1, self.num_repetitions, self.num_buckets])

    def _bucket_scores(self, query):
        """Scores [N, R, M] of the buckets, at least 0: probabilities, or logarithms above the least one."""
        logits = self.bucket_logits(query)
        if self.decoder != _GEOMETRIC:
            return _ACTIVATIONS[self.activation](logits)
        above = _LOG_ACTIVATIONS[self.activation](logits) - _LEAST_LOG
        return tf.where(above < 0, 0.0, above)  # NaN stays

    def blocks(self, query):
        """As of ``Head``; scores, not logits."""
        of_buckets = self._bucket_scores(query)
        return lambda start, stop: self._decoded(of_buckets, tf.range(start, stop))

    def score(self, query, class_ids) -> tf.Tensor:
        """As of ``Head``; scores, not logits."""
        class_ids = check_ids(class_ids, self.num_classes, "class")
        scores = self._decoded(self._bucket_scores(query), tf.maximum(class_ids, 0))
        return scores * tf.cast(class_ids >= 0, tf.float32)

    def _decoded(self, of_buckets, class_ids):
        return self._finished(class_scores(of_buckets, self.family, class_ids, self._ranking_decoder))

    @property
    def _ranking_decoder(self):
        return self.decoder if self.decoder in DECODERS else "mean"

    def _finished(self, scores):
        """The scores that the user asked for, from those that rank; the order stays."""
        if self.decoder == _GEOMETRIC:  # -inf, for no class, stays
            return tf.where(tf.math.is_inf(scores), scores, tf.exp(scores + _LEAST_LOG))
        if self.decoder != _UNBIASED:
            return scores
        chance = self.family.collision_probability
        return (scores - chance) / (1 - chance)

    @infinity_is_meant()
    def best(self, query, k, exclude, num_probes=None):
        if self.num_probes is None and not use_compiled():
            return super().best(query, k, exclude)
        of_buckets, arguments = self._bucket_scores(query), (exclude, self._ranking_decoder)
        if self.num_probes is None:
            scores, ids = mach_top_k(of_buckets, self.family, k, *arguments)
        else:
            num_probes = self.num_probes if num_probes is None else num_probes
            scores, ids = mach_top_k_probed(of_buckets, self.family, k, num_probes, *arguments)
        return self._finished(scores), ids

    def losses(self, query, labels, loss, training=False):
        logits = tf.reshape(self.bucket_logits(query), [-1, self.num_buckets])
        buckets = tf.where(labels >= 0, self.family.buckets(tf.maximum(labels, 0)), -1)
        # reshape cannot infer -1 where there is no query and no label.
        shape = [tf.shape(logits)[0], tf.shape(labels)[1]]
        buckets = tf.reshape(tf.transpose(buckets, [1, 0, 2]), shape)
        # In a loss without its other labels, a bucket of two labels would be missing from its own term.
        if not loss.labels_share_probability or loss.decoupled:
            buckets = drop_duplicates(buckets)
        losses = loss.combine(*loss.reduce_logits(logits, buckets), buckets >= 0)
        return tf.reduce_mean(tf.reshape(losses, [-1, self.num_repetitions]), 1)

    def losses_and_best(self, query, labels, loss, k, exclude=None):
        return self.losses(query, labels, loss), self.top_k(query, k, exclude)

    def check(self, sampler=None, loss=None, optimizer=None):
        super().check(sampler, loss, optimizer)
        if sampler is not None:
            raise ValueError(
                f"MACHHead trains all of its {self.num_repetitions} x {self.num_buckets} buckets in every "
                f"step: there is nothing to choose for {type(sampler).__name__}. Give sampler=None."
            )
        if loss is None:
            return
        if loss.needs_sampler:
            raise ValueError(
                f"{type(loss).__name__} needs a sampler, but MACHHead takes none: take SoftmaxCrossentropy."
            )
        fitting = "softmax" if loss.labels_share_probability else "sigmoid"
        if self.activation != fitting:
            raise ValueError(
                f"MACHHead(activation={self.activation!r}) does not suit {type(loss).__name__}: give it "
                f'activation={fitting!r} ("softmax" is for one label an example, "sigmoid" for several).'
            )

    def class_rows(self) -> list[ClassRows]:
        """No weights: classes share buckets, and have no rows."""
        return []

    def config_for(self, old_ids: np.ndarray) -> dict[str, Any]:
        """As of ``Head``; ValueError if a class would get other buckets, which learnt nothing about it."""
        moved = np.flatnonzero((old_ids >= 0) & (old_ids != np.arange(len(old_ids))))
        if len(moved):
            raise ValueError(
                f"A MACHHead finds the buckets of a class by its id, but class {old_ids[moved[0]]} would "
                f"become {moved[0]}: keep the ids of the classes that stay, with the names of "
                "tfxc.data.Vocabulary.merge. While fewer names are new than retired, keep some of these."
            )
        if next_prime(len(old_ids)) != next_prime(self.num_classes):
            raise ValueError(
                f"The hash functions of this MACHHead are made for {self.num_classes} classes, not for "
                f"{len(old_ids)}: keep the number, leave retired names in the list until new ones take their "
                "ids, and begin with spare ones."
            )
        return super().config_for(old_ids)

    def describe(self):
        told = super().describe()
        if self.query_dim is not None:
            told += f" (a dense head: {self.num_classes * (self.query_dim + 1) * 4 / 2**20:,.1f} MB)"
        chance = collision_bound(self.num_classes, self.num_buckets, self.num_repetitions)
        what = f"two classes share all {self.num_repetitions} buckets"
        return f"{told}. The chance that {what} is at most {chance:.1g}."


def num_probes_of(head: Head) -> int | None:
    """How many buckets of each repetition a head looks into; None for a head that ranks all classes."""
    return head.num_probes if isinstance(head, MACHHead) else None
