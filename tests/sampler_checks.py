import functools

import numpy as np
import tensorflow as tf
from scipy import special, stats

from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.samplers import Step
from tfxc.search import InvertedIndex

softmax = functools.partial(special.softmax, axis=-1)


def queries(num, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)


def labels_for(query, label=0):
    return tf.fill([len(query), 1], label)


def sample(sampler, query, labels, example_ids=None, score=None):
    step = Step(tf.convert_to_tensor(query), tf.convert_to_tensor(labels, tf.int32), example_ids, score)
    return [tf.convert_to_tensor(part) for part in sampler.sample(step)[:2]]


def log_expected_count(sampler, query, labels, ids, example_ids=None):
    query = tf.convert_to_tensor(query)
    labels = tf.zeros([len(query), 0], tf.int32) if labels is None else tf.convert_to_tensor(labels, tf.int32)
    return sampler.ask(Step(query, labels, example_ids)).log_expected_count(tf.convert_to_tensor(ids))


def head_of(vectors, **options):
    """A dense head with these class vectors [L, D]."""
    head = DenseHead(len(vectors), **options)
    head.build((None, vectors.shape[1]))
    tf_variable(head.table).assign(vectors)
    return head


def built(layer, *shape):
    """A layer that is built: of a sampler the shape is [L, D], of a head [None, D]."""
    layer.build(shape)
    return layer


def refreshed(sampler, head):
    """The sampler built for a head, which may be given by its class vectors [L, D], and refreshed."""
    head = head_of(head) if isinstance(head, np.ndarray) else head
    built(sampler, head.num_classes, head.effective_dim).refresh(head)
    return sampler


def clustered(num_classes, dim, num_clusters=6, scale=1.5, seed=0):
    """Class vectors float32 [L, D] around a few centres."""
    random = np.random.default_rng(seed)
    centres = scale * random.normal(size=(num_clusters, dim))
    noise = 0.2 * random.normal(size=(num_classes, dim))
    return (centres[random.integers(num_clusters, size=num_classes)] + noise).astype(np.float32)


def counts_of(num_classes):
    return np.random.default_rng(1).poisson(3, size=num_classes)


def quantised(sampler):
    first, second = (tf_variable(codebook).numpy().astype(np.float64) for codebook in sampler.codebooks)
    row, column = np.divmod(tf_variable(sampler.cell).numpy(), sampler.num_codewords)
    parts = first[row], second[column]
    return sum(parts) if sampler.quantizer == "rq" else np.concatenate(parts, axis=1)


def quantised_softmax(sampler, query):
    """MIDX's Q by hand: the softmax over the quantised class vectors, times the classes' own weights."""
    return softmax(query @ quantised(sampler).T + np.log(tf_variable(sampler.class_weight).numpy()))


def divergence(p, q):
    return np.mean(np.sum(p * (np.log(p) - np.log(q)), axis=1))


def all_probs(sampler, query):
    """Q float64 [N, L]; [1, L] where the sampler draws one set for all queries."""
    ids = tf.range(sampler.num_classes)
    if not sampler.shared:
        ids = tf.tile(ids[tf.newaxis], [len(query), 1])
    log_prob = sampler.log_prob(tf.constant(query), ids).numpy().astype(np.float64)
    return np.exp(np.atleast_2d(log_prob))


def p_value(ids, probs):
    """The p-value of the chi-square test; classes expected fewer than 5 times count as one."""
    probs = np.asarray(probs, np.float64)
    counts, expected = np.bincount(ids, minlength=len(probs)).astype(float), probs / probs.sum() * len(ids)
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    assert observed[~keep].sum() == 0
    return stats.chisquare(observed[keep], expected[keep]).pvalue if keep.sum() > 1 else 1.0


def check_distribution(sampler, dim, num_draws=200_000, seed=0):
    size = sampler.num_negatives
    base = queries(1 if sampler.shared else 2, dim, seed)
    probs = all_probs(sampler, base)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
    query = np.repeat(base, num_draws // 2 // size, axis=0)
    labels = labels_for(query)
    step = Step(tf.constant(query), labels)
    ids, counts, label_counts, _ = sampler.sample(step)
    assert ids.dtype == tf.int32 and counts.dtype == tf.float32 and counts.shape == ids.shape
    np.testing.assert_allclose(counts, sampler.ask(step).log_expected_count(ids), atol=1e-4)
    np.testing.assert_allclose(label_counts, sampler.ask(step).log_expected_count(labels), atol=1e-4)
    log_prob = np.asarray(sampler.log_prob(tf.constant(query), ids))
    np.testing.assert_allclose(counts, np.log(size) + log_prob, atol=1e-4)
    ids = ids.numpy()
    assert ids.min() >= 0 and ids.max() < sampler.num_classes
    if sampler.shared:
        assert ids.shape == (size,)
        assert p_value(ids, probs[0]) > 1e-3
        return
    assert ids.shape == (len(query), size)
    for part, prob in zip(np.split(ids, 2), probs, strict=True):
        assert p_value(part.ravel(), prob) > 1e-3


def index_of(head, num_cells=None, num_probes=None, dtype="float32", num_scanned=None):
    """An ``InvertedIndex`` over the class vectors of a head."""
    index = InvertedIndex(num_cells, num_probes, dtype, num_scanned)
    index.build_from(head)
    return index
