"""Generated data with a planted truth: clustered classes, as skewed as words, with a known best ranking."""

import numpy as np

# Standard deviations of each coordinate: of classes around their centre, and of examples around their class;
# centres have 1. So about ten classes compete for an example, most of them of one cluster.
SPREAD, NOISE = 0.5, 1.5


def planted(num_classes, dim, num_queries, seed=0):
    """Class vectors [L, D] around L / 200 centres, and queries [n, D] near to some of them."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(num_classes // 200, 1), dim), np.float32)
    vectors = SPREAD * random.standard_normal((num_classes, dim), np.float32)
    vectors += centres[random.integers(len(centres), size=num_classes)]
    near = vectors[random.integers(num_classes, size=num_queries)]
    return vectors, near + 0.3 * random.standard_normal((num_queries, dim), np.float32)


class PlantedTruth:
    """Examples whose classes have known probabilities.

    Class frequencies follow Zipf's law; an example is the planted vector of its class plus normal noise of
    deviation s. So the probability of class i given x is a softmax over
    ``x · w_i / s² + log f_i - |w_i|² / (2 s²)``, and no model ranks better than that.

    Args:
        num_classes: L.
        dim: D, of classes and examples.
        seed: the seed of the planted vectors.
        noise: s. The square root of D/64 times the default keeps as many classes apart in D dimensions.
    """

    def __init__(self, num_classes, dim, seed=0, noise=NOISE):
        self.noise = noise
        self.vectors, _ = planted(num_classes, dim, 1, seed)
        frequencies = 1 / (10.0 + np.arange(num_classes))
        self.frequencies = frequencies / frequencies.sum()
        self._up_to = np.cumsum(self.frequencies)

    def examples(self, num_examples, random):
        """Examples float32 [n, D] and their classes int32 [n, 1]."""
        class_ids = np.searchsorted(self._up_to, random.random(num_examples)).clip(0, len(self.vectors) - 1)
        noise = self.noise * random.standard_normal((num_examples, self.vectors.shape[1]), np.float32)
        return self.vectors[class_ids] + noise, class_ids.astype(np.int32)[:, np.newaxis]

    def batches(self, batch_size, seed):
        """Endless batches."""
        random = np.random.default_rng(seed)
        while True:
            yield self.examples(batch_size, random)

    def optimum(self):
        """Class vectors [L, D] and biases [L] whose logits are the logarithms of the true odds."""
        vectors = self.vectors / self.noise**2
        return vectors, np.log(self.frequencies) - 0.5 * (self.vectors * vectors).sum(1)


def best_head(truth):
    """A built head whose logits are the logarithms of the true odds of a ``PlantedTruth``."""
    import tfxc  # here, because a process that serves must not import it
    from tfxc._keras.weights import tf_variable

    num_classes, dim = truth.vectors.shape
    head = tfxc.layers.DenseHead(num_classes, use_bias=True)
    head.build((None, dim))
    for weight, value in zip((head.table, head.bias), truth.optimum(), strict=True):
        tf_variable(weight).assign(value)
    return head


def trained(num_classes, dim, num_queries, num_steps, seed=0):
    """Trains a model on planted classes: two dense layers and a head, with MIDX's negatives.

    Returns:
        ``(vectors, queries, found)``: the class vectors [L, D] of the trained head, queries [n, D] from the
        trained encoder, for unseen examples, and the share of them whose class is among the 10 best.
    """
    import tfxc
    from tfxc._keras import keras
    from tfxc._keras.weights import tf_variable

    truth = PlantedTruth(num_classes, dim, seed)
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4 * dim, "gelu"), keras.layers.Dense(dim)]
    encoder = keras.Sequential([keras.Input((dim,), name="x"), *layers])
    sampler = tfxc.samplers.MIDX(100, num_codewords=128)
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(num_classes), sampler=sampler, k=10)
    rate = keras.optimizers.schedules.CosineDecay(0.01, num_steps)
    model.compile(tfxc.optimizers.LazyAdam(rate), loss=tfxc.losses.SoftmaxCrossentropy())
    model.fit(truth.batches(512, seed), steps_per_epoch=max(num_steps // 10, 1), epochs=10, verbose=2)
    inputs, class_ids = truth.examples(num_queries, np.random.default_rng(seed + 1))
    queries = model.encoder.predict(inputs, batch_size=512, verbose=0)
    parts = [model.head.top_k(queries[i : i + 512], 10).ids.numpy() for i in range(0, num_queries, 512)]
    found = (np.concatenate(parts) == class_ids).any(1).mean()
    return tf_variable(model.head.table).numpy(), queries, float(found)
